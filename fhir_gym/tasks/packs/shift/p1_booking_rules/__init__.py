"""P1: appointments under policies."""

from fhir_gym.tasks.packs.shift.p1_booking_rules.kind import TASKS

__all__ = ["TASKS"]
