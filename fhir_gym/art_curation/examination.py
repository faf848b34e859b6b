"""Derive the ground truth of one task again, from an export, and check whether the rules determine the answer.

From the task pack, this module uses only the tables of tests, ranges and orders, not the code that makes tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from fhir_gym.art_curation.exported import ExportedPatient, ExportedResult, Extract
from fhir_gym.art_curation.rederivation import LookBack, band, hours, look_back, mean, on_half, places
from fhir_gym.tasks.packs.action_reasoning.cases import (
    FIRST_YEAR,
    LEAST_SHIFT,
    LONGEST_WINDOW,
    MOST_SHIFT,
    CaseSpec,
    GroundTruth,
    ReasoningCase,
)
from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS
from fhir_gym.tasks.packs.action_reasoning.phrasing import LENGTHS, PROMPTS
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS, RANGES, ReferenceRange
from fhir_gym.types import Json

_SCENARIOS = {
    "retrieval": ("sparse", "cluster", "edge"),
    "aggregation": ("window",),
    "conditional": ("general", "demographic"),
}
_MOST_DIGITS = 3
_THEIR_OWN = frozenset({"threshold_low", "threshold_high", "value_category"})
_LIMITS = ("low", "high", "critically_low", "critically_high")


class ExaminationError(Exception):
    """The export lacks the data to check a task."""


@dataclass(frozen=True)
class Examination:
    """Result of deriving a task's answer again.

    Attributes:
        person: The patient.
        age: Age in full years at the current time; None if the full birth date is unknown.
        reading: The patient's results of the test, classified by the time window.
        used: Results that determine the value, oldest first.
        exact: The value before rounding; None if no result counts.
        value: The latest result or the rounded mean; None if no result counts.
        row: The patient's reference range; None if the task has no range.
        limits: Limits of the range after the shift that the specification requires.
        truth: Expected ground truth.
        sol: Correct answer.
        doubts: Reasons why the rules do not determine the answer.
    """

    person: ExportedPatient
    age: int | None
    reading: LookBack
    used: tuple[ExportedResult, ...]
    exact: Decimal | None
    value: Decimal | None
    row: ReferenceRange | None
    limits: Mapping[str, Decimal]
    truth: Mapping[str, Any]
    sol: tuple[Json | Decimal, ...]
    doubts: tuple[str, ...]


def examine(case: ReasoningCase, plan: CaseSpec, extract: Extract) -> Examination:
    """Derive the ground truth of a task from an export.

    Raises:
        ExaminationError: The record number does not identify one patient, or not exactly one range applies.
    """
    person = _person(case.eval_MRN, extract)
    today = extract.now.astimezone(UTC).date()
    age = person.age(today)
    window = None if plan.window_hours is None else hours(plan.window_hours)
    unit = LABS[plan.lab].unit
    reading = look_back(extract.of(plan.lab, person.id), unit, moment(plan.as_of), window)
    average = plan.family == "aggregation"
    used = reading.counted if average else reading.counted[-1:]
    doubts = reading.doubts_of_all() if average else reading.doubts_of_latest()
    exact = mean(row.value for row in used if row.value is not None) if used else None
    value = exact
    if exact is not None and average:
        value = places(exact, plan.digits)
        if on_half(exact, plan.digits):
            doubts.append(f"the mean {exact} is exactly halfway between two roundings")
    looks = plan.family == "conditional"
    row = _range(plan.lab, person.gender, age) if looks and case.plan else None
    limits = _limits(row, plan.shift) if row else _thresholds(case)
    truth: dict[str, Any] = dict.fromkeys(GroundTruth.model_fields)
    truth |= {"value": value, "timestamp": used[-1].text if used else None}
    truth |= {"patient_age": age, "patient_gender": person.gender}
    sol: tuple[Json | Decimal, ...] = (Decimal(-1) if value is None else value,)
    if looks:
        truth |= _judged(row, limits, value, plan)
        sol += (truth["should_order"],)
    if case.plan is None:
        truth = {name: right for name, right in truth.items() if _is_said(name, case.ground_truth)}
    return Examination(person, age, reading, used, exact, value, row, limits, truth, sol, tuple(doubts))


def disagreements(case: ReasoningCase, examination: Examination) -> Iterator[str]:
    """Yield the differences between the task's stated ground truth and answer and the derived ones."""
    for name, right in examination.truth.items():
        said = getattr(case.ground_truth, name)
        if not _same(name, said, right):
            yield f"{name} is {_shown(right)}, but the task says {_shown(said)}"
    if len(case.sol) != len(examination.sol) or not all(
        _same("sol", *pair) for pair in zip(case.sol, examination.sol, strict=False)
    ):
        right_answer = ", ".join(map(_shown, examination.sol))
        yield f"the answer is [{right_answer}], but the task says [{', '.join(map(_shown, case.sol))}]"


def plan_faults(plan: CaseSpec, now: datetime, *, own: bool) -> Iterator[str]:
    """Yield the errors of a specification; the audit examines a task only if there are none.

    Args:
        plan: The specification.
        now: Current time.
        own: Whether the case contains its specification. Then its order must be in the catalogue.
    """
    if plan.lab not in LABS:
        yield f"unknown test {plan.lab!r}"
        return
    lab = LABS[plan.lab]
    if plan.unit != lab.unit:
        yield f"the unit of {plan.lab} is {lab.unit}, not {plan.unit!r}"
    least = lab.digits
    if not least <= plan.digits <= (_MOST_DIGITS if plan.family == "aggregation" else least):
        yield f"{plan.lab} has {least} decimal places, not {plan.digits}"
    yield from _text_faults(plan)
    if plan.family == "conditional":
        yield from _order_faults(plan) if own else ()
    elif plan.direction is not None or plan.order is not None or plan.shift:
        yield f"{plan.family} tasks have no direction, order or shift"
    if plan.family == "aggregation" and plan.window_hours is None:
        yield "an average needs a window"
    if plan.window_hours is not None and not 0 < plan.window_hours <= LONGEST_WINDOW:
        yield f"a window of {plan.window_hours:g} hours is not above 0 and up to {LONGEST_WINDOW}"
    if not LEAST_SHIFT <= plan.shift <= MOST_SHIFT:
        yield f"a shift of {plan.shift:g} is not from {LEAST_SHIFT:g} to {MOST_SHIFT:g}"
    yield from _moment_faults(plan.as_of, now)


def _moment_faults(text: str, now: datetime) -> Iterator[str]:
    try:
        time = moment(text)
    except (ValueError, OverflowError):  # converting year 1 or 9999 to UTC may overflow
        yield f"{text!r} is not an instant"
        return
    if time > now:
        yield f"{text} is after the current time"
    elif time.year < FIRST_YEAR:
        yield f"{text} is before {FIRST_YEAR}"


def _text_faults(plan: CaseSpec) -> Iterator[str]:
    if plan.scenario not in _SCENARIOS[plan.family]:
        yield f"{plan.family} tasks have no scenario {plan.scenario}"
    elif not 0 <= plan.phrasing < len(PROMPTS[plan.scenario]):
        yield f"unknown phrasing {plan.phrasing}"
    if plan.length not in LENGTHS:
        yield f"unknown length {plan.length}"


def moment(text: str) -> datetime:
    """Parse an instant and convert it to UTC; raise `ValueError` for other text."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return time.astimezone(UTC)


def _order_faults(plan: CaseSpec) -> Iterator[str]:
    demographic = len(RANGES[plan.lab]) > 1
    if (plan.scenario == "demographic") != demographic:
        yield f"the range of {plan.lab} {'depends' if demographic else 'does not depend'} on sex and age"
    if plan.order not in ORDERS:
        yield f"unknown order {plan.order!r} for direction {plan.direction!r}"
    elif plan.order != f"{plan.lab} {plan.direction}":
        yield f"order {plan.order!r} is not for {plan.lab} {plan.direction}"


def _person(number: str, extract: Extract) -> ExportedPatient:
    holders = extract.holders.get(number, ())
    if holders != (number,):  # the prompt says that the record number is the patient's id
        raise ExaminationError(f"the record number {number} belongs to {', '.join(holders) or 'no patient'}")
    return extract.people[number]


def _range(lab: str, sex: str | None, age: int | None) -> ReferenceRange:
    fitting = []
    for row in RANGES[lab]:
        anybody = row.sex is None and row.first_age == 0 and row.last_age is None
        of_age = age is not None and row.first_age <= age <= (row.last_age if row.last_age is not None else age)
        if anybody or (of_age and row.sex in (None, sex)):
            fitting.append(row)
    if len(fitting) != 1:
        raise ExaminationError(f"{len(fitting)} ranges of {lab} apply to sex {sex}, age {age}")
    return fitting[0]


def _limits(row: ReferenceRange, shift: float) -> dict[str, Decimal]:
    """Return the limits of a range after a relative shift; a shift of 0.1 raises them by ten percent."""
    limits = {name: Decimal(str(getattr(row, name))) for name in _LIMITS}
    if not shift:
        return limits
    share = 1 + Decimal(str(shift))
    return {name: places(limit * share, LABS[row.lab].digits) for name, limit in limits.items()}


def _thresholds(case: ReasoningCase) -> dict[str, Decimal]:
    """Return the limits that an external case states."""
    truth = case.ground_truth
    named = {"low": truth.threshold_low, "high": truth.threshold_high}
    return {name: Decimal(str(limit)) for name, limit in named.items() if limit is not None}


def _is_said(name: str, truth: GroundTruth) -> bool:
    """Return whether to compare a field of an external case: not if it is omitted or depends on the case's ranges."""
    return name == "value" or (name not in _THEIR_OWN and getattr(truth, name) is not None)


def _judged(
    row: ReferenceRange | None, limits: Mapping[str, Decimal], value: Decimal | None, plan: CaseSpec
) -> dict[str, Any]:
    low, high = limits.get("low"), limits.get("high")
    figures: dict[str, Any] = {"threshold_low": low, "threshold_high": high, "should_order": False}
    if value is not None:
        is_low, is_high = low is not None and value < low, high is not None and value > high
        due = (is_low and plan.direction != "high") or (is_high and plan.direction != "low")
        figures |= {"is_low": is_low, "is_high": is_high, "should_order": due}
        if row is not None:
            figures["value_category"] = band(value, limits, Decimal(str(row.borderline)))
    return figures


def _same(name: str, said: Json, right: Any) -> bool:
    if isinstance(right, Decimal):
        return isinstance(said, int | float) and not isinstance(said, bool) and Decimal(str(said)) == right
    if name == "timestamp" and isinstance(said, str) and right is not None:
        try:
            return moment(said) == moment(right)
        except (ValueError, OverflowError):
            return False
    return type(said) is type(right) and bool(said == right)


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Decimal) else repr(value)
