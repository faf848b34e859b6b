"""S1: absences of practitioners."""

from fhir_gym.tasks.packs.shift.s1_absences.kind import TASKS

__all__ = ["TASKS"]
