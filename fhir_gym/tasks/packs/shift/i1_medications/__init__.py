"""I1: questions about medications."""

from fhir_gym.tasks.packs.shift.i1_medications.kind import TASKS

__all__ = ["TASKS"]
