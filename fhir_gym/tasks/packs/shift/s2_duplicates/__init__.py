"""S2: duplicate records."""

from fhir_gym.tasks.packs.shift.s2_duplicates.kind import TASKS

__all__ = ["TASKS"]
