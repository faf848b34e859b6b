"""Q3: registrations of patients."""

from fhir_gym.tasks.packs.shift.q3_registrations.kind import TASKS

__all__ = ["TASKS"]
