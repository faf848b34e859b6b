"""S4: recalls of patients."""

from fhir_gym.tasks.packs.shift.s4_recalls.kind import TASKS

__all__ = ["TASKS"]
