"""Data model of a task in the format of the ART paper (figure 2), with a specification for deriving the answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from pydantic import ConfigDict, Field

from fhir_gym.tasks import Params
from fhir_gym.types import Json

ErrorLabel = Literal[
    "format",
    "missing retrieval",
    "incorrect value retrieved",
    "window boundary",
    "incomplete inclusion",
    "arithmetic",
    "hallucinated value",
    "context-insensitive range",
    "boundary misclassification",
    "wrong action",
]
ERRORS: tuple[ErrorLabel, ...] = get_args(ErrorLabel)


ENV_ID = "FHIRAgent/ActionReasoning-v0"

FIRST_YEAR = 1900
"""Earliest allowed year of a reference time (`CaseSpec.as_of`)."""
LONGEST_WINDOW = 24 * 366
"""Maximum length of a window in hours: one year."""
LEAST_SHIFT, MOST_SHIFT = -0.9, 1.0
"""Bounds of the relative shift of reference limits."""

Family = Literal["retrieval", "aggregation", "conditional"]
"""The three kinds of task of the paper (Table 2)."""

GROUPS: Mapping[Family, str] = MappingProxyType(
    {"retrieval": "Retrieval", "aggregation": "Aggregation", "conditional": "Threshold / conditional"}
)
"""Names of the kinds of task in reports."""

Scenario = Literal["sparse", "cluster", "edge", "window", "general", "demographic"]
"""What makes a record difficult (section 3.1 of the paper).

Retrieval tasks: `sparse` (few results), `cluster` (results close together), `edge` (results near the start of the
window). Aggregation tasks: `window`. Conditional tasks: `general` (one range for everybody), `demographic` (ranges by
sex and age).
"""

Category = Literal["critically_low", "low", "borderline_low", "normal", "borderline_high", "high", "critically_high"]
"""Position of a value relative to its reference range; borderline values are just inside the range (figure 2)."""

Direction = Literal["low", "high", "outside"]
"""Side of the reference range that requires an order."""


class GroundTruth(Params):
    """The correct values, named as in the paper.

    Attributes:
        value: The requested value, rounded as the instruction says; None if no result counts.
        timestamp: Time of the specimen or, if the value is a mean, of the latest specimen; None if no result counts.
        patient_age: Age in full years at the world's current time.
        patient_gender: Gender of the Patient resource.
        threshold_low: Lower limit of the patient's range; None if the task has no range.
        threshold_high: Upper limit of the patient's range; None if the task has no range.
        is_low: Whether the value is below the lower limit; a value that equals a limit is inside the range.
        is_high: Whether the value is above the upper limit.
        should_order: Whether an order is due.
        value_category: Position of the value relative to the range, such as ``borderline_low``.
    """

    value: float | None
    timestamp: str | None = None
    patient_age: int | None = None
    patient_gender: str | None = None
    threshold_low: float | None = None
    threshold_high: float | None = None
    is_low: bool | None = None
    is_high: bool | None = None
    should_order: bool | None = None
    value_category: Category | None = None


class CaseSpec(Params):
    """Specification of a case: everything needed to derive the ground truth from the world.

    Attributes:
        family: Kind of task.
        scenario: What makes the record difficult.
        lab: The hospital's name for the test, such as ``K``.
        unit: Unit of the value.
        as_of: Reference time of the question (instant): the time that the instruction names or, if it names no time,
            the world's current time.
        window_hours: Length of the time window, to which both ends belong; None if the question has no window.
        digits: Decimal places of the answer.
        direction: Side of the range that requires an order; conditional tasks only.
        order: Key of the order in `orders.ORDERS`; conditional tasks only.
        shift: Relative shift of both limits; 0.1 raises them by ten percent.
        phrasing: Index of the instruction's template.
        length: Amount of irrelevant context: 0 is none, 1 some, 2 much.
    """

    family: Family
    scenario: Scenario
    lab: str
    unit: str
    as_of: str
    window_hours: float | None = None
    digits: int
    direction: Direction | None = None
    order: str | None = None
    shift: float = 0.0
    phrasing: int = 0
    length: int = 0


class ReasoningCase(Params):
    """One task of a task file: figure 2 of the paper, plus the specification under the key ``fhir_gym``.

    Attributes:
        id: Id within the file.
        instruction: The request.
        context: Codes, reference ranges and rules.
        sol: The correct answer: the value (-1 if no result counts) and, in conditional tasks, whether an order is due.
        eval_MRN: Record number of the patient.
        ground_truth: The correct values.
        plan: The specification, under the key ``fhir_gym``; None for external cases.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    id: str
    instruction: str
    context: str = ""
    sol: tuple[Json, ...]
    eval_MRN: str
    ground_truth: GroundTruth
    plan: CaseSpec | None = Field(default=None, alias="fhir_gym")
