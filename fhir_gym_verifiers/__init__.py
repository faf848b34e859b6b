"""The environment under the id that verifiers accepts: `vf-eval fhir-gym-verifiers`. It cannot be in a package."""

from fhir_gym.integrations.verifiers import ChatHarness, FHIREnv, FHIRTaskset

__all__ = ["ChatHarness", "FHIREnv", "FHIRTaskset"]
