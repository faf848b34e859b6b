"""P3: releases of records under policies."""

from fhir_gym.tasks.packs.shift.p3_releases.kind import TASKS

__all__ = ["TASKS"]
