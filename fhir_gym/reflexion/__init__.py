"""Train a memory by Reflexion: play training episodes, criticise the runs, and keep lessons that generalise."""

from fhir_gym.reflexion.config import (
    MemoryTrainingConfig,
    ModelSettings,
    TrainingEpisode,
    load_memory_config,
    make_memory_config,
)
from fhir_gym.reflexion.leak_filter import Filtered, InstanceData, LeakFilter
from fhir_gym.reflexion.reviewing import Critique
from fhir_gym.reflexion.training import train_memory
from fhir_gym.reflexion.training_folder import training_usage

__all__ = [
    "Critique",
    "Filtered",
    "InstanceData",
    "LeakFilter",
    "MemoryTrainingConfig",
    "ModelSettings",
    "TrainingEpisode",
    "load_memory_config",
    "make_memory_config",
    "train_memory",
    "training_usage",
]
