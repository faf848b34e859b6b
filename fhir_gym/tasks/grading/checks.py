"""Checks (named conditions on the end of an episode), and diagnoses that explain a failure."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

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


class Diagnosis(BaseModel):
    """The diagnosis of an episode. It explains the verdict and never changes it.

    Attributes:
        steps: The steps that an expert would take. Each is a check whether the agent took the step. Steps after a
            failed step may be missing.
        error: The error that caused the failure; None for a success.
        step: Name of the step in which the error occurred; None for a success.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: tuple[Check, ...]
    error: str | None = None
    step: str | None = None

    @model_validator(mode="after")
    def _error_has_its_step(self) -> Self:
        if (self.error is None) != (self.step is None):
            raise ValueError("an error belongs to a step")
        if self.step is not None and self.culprit is None:
            raise ValueError(f"no step {self.step!r} failed")
        return self

    @property
    def culprit(self) -> Check | None:
        """The step in which the error occurred, with its expected and actual values."""
        return next((step for step in self.steps if step.name == self.step and not step.passed), None)
