"""The tool environment, the rollout function and the episodes for GRPO with TRL."""

from fhir_gym.training.grpo import EpisodeRows, FHIRToolEnv, OpenConfigs, PolicyRollouts, make_row

__all__ = ["EpisodeRows", "FHIRToolEnv", "OpenConfigs", "PolicyRollouts", "make_row"]
