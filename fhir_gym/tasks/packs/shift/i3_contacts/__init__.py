"""I3: questions about contacts of patients."""

from fhir_gym.tasks.packs.shift.i3_contacts.kind import TASKS

__all__ = ["TASKS"]
