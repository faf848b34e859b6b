"""Q2: requests to change appointments."""

from fhir_gym.tasks.packs.shift.q2_changes.kind import TASKS

__all__ = ["TASKS"]
