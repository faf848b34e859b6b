"""Rollouts: run agents on episodes, record them, and turn the records into datasets."""

from fhir_gym.rollouts.budget import Budget, BudgetTracker, Prices
from fhir_gym.rollouts.dataset import FORMATS, ExportSummary, Format, Selection, export, write_dataset, write_hub_folder
from fhir_gym.rollouts.plan import EpisodeSpec, RunPlan, parse_numbers, plan
from fhir_gym.rollouts.ray_cluster import RayCluster
from fhir_gym.rollouts.record import SCHEMA_VERSION, Rollout, StopReason, TaskRecord, Turn
from fhir_gym.rollouts.rollout_files import completed, no_rollouts, read_rollouts, write_rollouts
from fhir_gym.rollouts.runner import run, run_plan

__all__ = [
    "FORMATS",
    "SCHEMA_VERSION",
    "Budget",
    "BudgetTracker",
    "EpisodeSpec",
    "ExportSummary",
    "Format",
    "Prices",
    "RayCluster",
    "Rollout",
    "RunPlan",
    "Selection",
    "StopReason",
    "TaskRecord",
    "Turn",
    "completed",
    "export",
    "no_rollouts",
    "parse_numbers",
    "plan",
    "read_rollouts",
    "run",
    "run_plan",
    "write_dataset",
    "write_hub_folder",
    "write_rollouts",
]
