"""Q1: requests for appointments."""

from fhir_gym.tasks.packs.shift.q1_bookings.kind import TASKS

__all__ = ["TASKS"]
