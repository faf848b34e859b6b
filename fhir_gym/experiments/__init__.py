"""Run the experiments of FHIR-AgentEval: train memories, test configurations of an agent, resume, report progress."""

from fhir_gym.experiments.config import STUDY_CONFIGURATIONS, ExperimentConfig
from fhir_gym.experiments.folder import require_manifest
from fhir_gym.experiments.manifest import MANIFEST_VERSION, Manifest
from fhir_gym.experiments.runner import run_experiment
from fhir_gym.experiments.status import (
    ConfigurationStatus,
    ExperimentStatus,
    MemoryStatus,
    ModelPrices,
    experiment_status,
)

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
