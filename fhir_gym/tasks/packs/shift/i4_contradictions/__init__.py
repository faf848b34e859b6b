"""I4: questions about contradictions in records."""

from fhir_gym.tasks.packs.shift.i4_contradictions.kind import TASKS

__all__ = ["TASKS"]
