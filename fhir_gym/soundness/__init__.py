"""Soundness checks of tasks: the implementation of ``fhir-gym tasks check``."""

from fhir_gym.soundness.report import Failure, SoundnessReport, Tally, TaskReport, merge_reports
from fhir_gym.soundness.task_check import Progress, available, by_world, check, check_task, check_tasks

__all__ = [
    "Failure",
    "Progress",
    "SoundnessReport",
    "Tally",
    "TaskReport",
    "available",
    "by_world",
    "check",
    "check_task",
    "check_tasks",
    "merge_reports",
]
