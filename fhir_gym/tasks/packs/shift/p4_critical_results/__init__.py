"""P4: critical results under policies."""

from fhir_gym.tasks.packs.shift.p4_critical_results.kind import TASKS

__all__ = ["TASKS"]
