"""Soundness of tasks: the harness behind ``fhir-gym tasks check``."""

from fhir_gym.tasks.soundness.harness import Progress, check, check_task
from fhir_gym.tasks.soundness.report import Failure, SoundnessReport, Tally, TaskReport

__all__ = ["Failure", "Progress", "SoundnessReport", "Tally", "TaskReport", "check", "check_task"]
