"""The environments under the id that verifiers accepts, ``fhir-gym-verifiers``. It cannot be in a package.

verifiers 0.4 reads the taskset and its companions, earlier versions call `load_environment`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fhir_gym.integrations.verifiers import ChatHarness, FHIREnv, FHIRTaskset

__all__ = ["ChatHarness", "FHIREnv", "FHIRTaskset"]


def load_environment(**settings: Any) -> Any:
    """Return the environment of the classic interface; see `fhir_gym.integrations.verifiers_classic`."""
    from fhir_gym.integrations.verifiers_classic import load_environment

    return load_environment(**settings)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fhir_gym.integrations import verifiers

    return getattr(verifiers, name)
