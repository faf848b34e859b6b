"""Q4: orders of medications and tests."""

from fhir_gym.tasks.packs.shift.q4_orders.kind import TASKS

__all__ = ["TASKS"]
