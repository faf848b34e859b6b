"""I2: questions about trends of results."""

from fhir_gym.tasks.packs.shift.i2_trends.kind import TASKS

__all__ = ["TASKS"]
