"""P2: order sets under policies."""

from fhir_gym.tasks.packs.shift.p2_order_sets.kind import TASKS

__all__ = ["TASKS"]
