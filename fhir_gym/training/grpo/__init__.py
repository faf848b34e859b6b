"""GRPO: a model plays groups of equal episodes and learns from the differences of their rewards."""

from fhir_gym.training.grpo.config import GrpoConfig
from fhir_gym.training.grpo.episodes import EpisodeRows, OpenConfigs, RowShape, make_row
from fhir_gym.training.grpo.policy import PolicyRollouts
from fhir_gym.training.grpo.recipe import train_grpo
from fhir_gym.training.grpo.tool_env import FHIRToolEnv
from fhir_gym.training.token_tree import TokenSequence

__all__ = [
    "EpisodeRows",
    "FHIRToolEnv",
    "GrpoConfig",
    "OpenConfigs",
    "PolicyRollouts",
    "RowShape",
    "TokenSequence",
    "make_row",
    "train_grpo",
]
