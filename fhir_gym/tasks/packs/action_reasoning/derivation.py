"""Derive the ground truth of a case from the world, and the wrong answers to which typical shortcuts lead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from fhir_gym.errors import TaskError
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.packs.action_reasoning.cases import (
    FIRST_YEAR,
    LEAST_SHIFT,
    LONGEST_WINDOW,
    MOST_SHIFT,
    CaseSpec,
    Direction,
    Family,
    GroundTruth,
)
from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS
from fhir_gym.tasks.packs.action_reasoning.phrasing import LENGTHS, PROMPTS
from fhir_gym.tasks.packs.action_reasoning.pitfalls import is_halfway, mean_digits, mean_of, round_half_up
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS, ReferenceRange, as_written, range_of
from fhir_gym.tasks.packs.action_reasoning.series import LabHistory, LabResult, Series
from fhir_gym.types import Json

_OTHER_HOURS = (1, 6, 12, 36, 48, 72)
_MOST_DIGITS = 17
"""Maximum number of decimal places; allows unrounded means of external files (a float has at most 17 digits)."""


@dataclass(frozen=True, slots=True)
class DerivedTruth:
    """The correct values, the ids of the Observations that determine them (oldest first), and the unrounded value."""

    ground: GroundTruth
    deciding: tuple[str, ...]
    exact: float | None


def derive_truth(plan: CaseSpec, mrn: str, chart: LabHistory, row: ReferenceRange | None = None) -> DerivedTruth:
    """Derive the ground truth of a case.

    Args:
        plan: Specification of the case.
        mrn: Record number of the patient.
        chart: Results of the world.
        row: A reference range that replaces the patient's row of the table; None to use the table.

    Raises:
        TaskError: The patient does not exist, it is ambiguous which results count, or the specification is invalid.
    """
    require_possible(plan, mrn)
    series = chart.one(mrn, plan.lab)
    used = _used(plan, series)
    _require(plan, series, used, chart.now)
    exact = mean_of(used) if used else None
    if exact is not None and plan.family == "aggregation" and is_halfway(exact, plan.digits):
        raise TaskError(f"the mean of {plan.lab} of {mrn} is exactly halfway between two roundings: {float(exact):g}")
    value = None if exact is None else _rounded(plan, exact)
    person, age = chart.person(mrn), chart.age(mrn)
    ground = {
        "value": value,
        "timestamp": used[-1].text if used else None,
        "patient_age": age,
        "patient_gender": person.sex or None,
    }
    if plan.family == "conditional":
        row = row or limits(plan, person.sex, age)
        ground |= {"threshold_low": row.low, "threshold_high": row.high, "should_order": False}
        if value is not None:
            ground |= _judged(row, value) | {"should_order": is_order_due(row, value, plan.direction)}
    ids = tuple(result.id for result in used)
    return DerivedTruth(GroundTruth.model_validate(ground), ids, None if exact is None else float(exact))


def require_possible(plan: CaseSpec, what: str) -> None:
    """Check that a specification is valid in any world.

    Args:
        plan: Specification of a case.
        what: Name of the case for the error message.

    Raises:
        TaskError: A test, order, phrasing or instant is unknown, or a number is out of range.
    """
    problem = next(_impossible(plan), None)
    if problem is not None:
        raise TaskError(f"{what}: {problem}")


def _impossible(plan: CaseSpec) -> Iterator[str]:
    if plan.lab not in LABS:
        yield f"unknown laboratory test {plan.lab!r}; known tests are {', '.join(LABS)}"
    if plan.order is not None and plan.order not in ORDERS:
        yield f"unknown order {plan.order!r}"
    if not 0 <= plan.phrasing < len(PROMPTS[plan.scenario]):
        yield f"phrasing is {plan.phrasing}, not from 0 to {len(PROMPTS[plan.scenario]) - 1}"
    if plan.length not in LENGTHS:
        yield f"length is {plan.length}, not one of {', '.join(map(str, LENGTHS))}"
    yield from _beyond_sense(plan)


def _beyond_sense(plan: CaseSpec) -> Iterator[str]:
    try:
        year = parse_instant(plan.as_of).year
    except ValueError:
        yield f"as_of is {plan.as_of!r}, not an instant like 2023-11-13T10:15:00Z"
    else:
        if year < FIRST_YEAR:
            yield f"as_of is {plan.as_of}, before the year {FIRST_YEAR}"
    if plan.window_hours is not None and not 0 < plan.window_hours <= LONGEST_WINDOW:
        yield f"window_hours is {plan.window_hours:g}, not above 0 and up to {LONGEST_WINDOW}"
    if not LEAST_SHIFT <= plan.shift <= MOST_SHIFT:
        yield f"shift is {plan.shift:g}, not from {LEAST_SHIFT:g} to {MOST_SHIFT:g}"
    if not 0 <= plan.digits <= _MOST_DIGITS:
        yield f"digits is {plan.digits}, not from 0 to {_MOST_DIGITS}"


def digits_of(family: Family, lab: str) -> int:
    """Return the number of decimal places of an answer."""
    return mean_digits(lab) if family == "aggregation" else LABS[lab].digits


def solution(plan: CaseSpec, ground: GroundTruth) -> tuple[Json, ...]:
    """Return the correct answer."""
    value = -1 if ground.value is None else ground.value
    value = int(value) if value == int(value) else value
    return (value, bool(ground.should_order)) if plan.family == "conditional" else (value,)


def limits(plan: CaseSpec, sex: str | None, age: int | None) -> ReferenceRange:
    """Return the reference range for a patient's sex and age, with shifted limits if the specification shifts them.

    Raises:
        TaskError: No range applies.
    """
    row = range_of(plan.lab, sex, age)
    return row.shifted(plan.shift) if plan.shift else row


def is_order_due(row: ReferenceRange, value: float, direction: Direction | None) -> bool:
    """Return whether a value requires the order."""
    at = as_written(value)
    low, high = at < as_written(row.low), at > as_written(row.high)
    return (low and direction in ("low", "outside")) or (high and direction in ("high", "outside"))


def wrong_answers(plan: CaseSpec, mrn: str, chart: LabHistory) -> dict[str, float]:
    """Return the wrong answers to which typical shortcuts lead, by shortcut."""
    series, as_of = chart.one(mrn, plan.lab), parse_instant(plan.as_of)
    used = _used(plan, series)
    right = _rounded(plan, mean_of(used)) if used else None
    said = {
        name: _rounded(plan, mean_of(readings)) for name, readings in _wrong_readings(plan, series, as_of) if readings
    }
    return {name: value for name, value in said.items() if value != right}


def _wrong_readings(plan: CaseSpec, series: Series, as_of: datetime) -> Iterator[tuple[str, Sequence[LabResult]]]:
    """Yield each shortcut with the results that it would use."""
    until_now, whole = series.upto(as_of), series.counted
    takes_one = plan.family != "aggregation"
    if plan.window_hours is not None:
        for hours in _OTHER_HOURS:
            inside = series.window(as_of, hours)
            yield f"of {hours} hours", inside[-1:] if takes_one else inside
        start = as_of - timedelta(hours=plan.window_hours)
        yield "from before the window", [result for result in until_now if result.taken < start][-1:]
        inside = series.window(as_of, plan.window_hours)
        yield "of the window's first result", inside[:1]
        yield "of the window's last result", inside[-1:]
        yield "of all but the first result of the window", inside[1:]
    yield "of the latest result of the record", whole[-1:]
    yield "of the oldest result", whole[:1]
    yield "of the whole record", whole
    yield "of the previous result", until_now[-2:-1]
    yield "of a withdrawn result", series.void[-1:]
    yield "of a replaced result", series.superseded[-1:]
    yield "of a result in another unit", series.others[-1:]


def _used(plan: CaseSpec, series: Series) -> tuple[LabResult, ...]:
    as_of = parse_instant(plan.as_of)
    inside = series.upto(as_of) if plan.window_hours is None else series.window(as_of, plan.window_hours)
    return inside if plan.family == "aggregation" else inside[-1:]


def _require(plan: CaseSpec, series: Series, used: Sequence[LabResult], now: datetime) -> None:
    """Raise TaskError if it is ambiguous which results count."""
    as_of = parse_instant(plan.as_of)
    start = None if plan.window_hours is None else as_of - timedelta(hours=plan.window_hours)
    if used and plan.family != "aggregation":
        start = used[-1].taken
    problem = series.objection(start, as_of, now)
    if problem is not None:
        raise TaskError(f"the {plan.lab} results of patient {series.patient} are ambiguous: {problem}")


def _rounded(plan: CaseSpec, exact: Fraction) -> float:
    return round_half_up(exact, plan.digits) if plan.family == "aggregation" else float(exact)


def _judged(row: ReferenceRange, value: float) -> dict[str, Json]:
    at = as_written(value)
    return {
        "is_low": at < as_written(row.low),
        "is_high": at > as_written(row.high),
        "value_category": row.category(value),
    }
