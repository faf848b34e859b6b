"""Run the experiments of FHIR-AgentEval: train memories, test configurations of an agent, resume, report progress."""

from fhir_gym.experiments.folder import (
    ConfigurationStatus,
    ExperimentStatus,
    MemoryStatus,
    ModelPrices,
    experiment_status,
    require_manifest,
)
from fhir_gym.experiments.manifest import MANIFEST_VERSION, STUDY_CONFIGURATIONS, ExperimentConfig, Manifest
from fhir_gym.experiments.runner import run_experiment

__all__ = [
    "MANIFEST_VERSION",
    "STUDY_CONFIGURATIONS",
    "ConfigurationStatus",
    "ExperimentConfig",
    "ExperimentStatus",
    "Manifest",
    "MemoryStatus",
    "ModelPrices",
    "experiment_status",
    "require_manifest",
    "run_experiment",
]
