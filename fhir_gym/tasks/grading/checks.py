"""Checks: named conditions on the end of an episode."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from fhir_gym.types import Json

Level = Literal["exists", "value"]
"""Level of a check.

An ``exists`` check requires a resource of the right kind (FHIR-AgentEval's light validation). A ``value`` check
requires a right value.
"""


class Check(BaseModel):
    """One condition on the end of an episode.

    Attributes:
        name: Short description of the condition, unique within a verdict.
        passed: Whether the condition holds.
        expected: Expected value.
        actual: Actual value.
        level: ``exists`` or ``value``. Light validation uses only ``exists`` checks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    passed: bool
    expected: Json = None
    actual: Json = None
    level: Level = "value"


def equal(name: str, actual: Json, expected: Json, *, level: Level = "value") -> Check:
    """Return a check that two JSON values are equal."""
    return Check(name=name, passed=actual == expected, expected=expected, actual=actual, level=level)
