"""Estimate the confidence that a task is sound: 1 minus the weights of the task's signals (warning signs)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType

from fhir_gym.art_curation.examination import Examination
from fhir_gym.art_curation.exported import ExportedResult
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec

REVIEW_BELOW = 0.6
"""Tasks whose confidence is at most this number need human review."""

WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "value at a limit": 0.30,
        "value next to a limit": 0.10,
        "implausible value": 0.30,
        "result at the edge": 0.25,
        "result near the edge": 0.10,
        "tie resolved": 0.25,
        "void result nearby": 0.15,
        "corrected result": 0.10,
        "unusual status": 0.25,
        "other unit nearby": 0.20,
        "few values": 0.05,
        "nothing counts": 0.15,
        "later results": 0.05,
        "past moment": 0.05,
        "age near a limit": 0.20,
        "mean near a half": 0.15,
        "reworded": 0.20,
        "made by others": 0.20,
    }
)
"""How much each signal lowers the confidence."""

_USUAL = frozenset({"final", "corrected", "amended"})
_NEAR_EDGE = timedelta(minutes=5)
_NEARBY = timedelta(hours=24)
_BIRTHDAY = 30  # days
_FEW = 3


@dataclass(frozen=True, slots=True)
class Signal:
    """A warning sign that a reviewer should check.

    Attributes:
        name: A key of `WEIGHTS`.
        note: Details about this task.
    """

    name: str
    note: str

    @property
    def weight(self) -> float:
        """How much the signal lowers the confidence."""
        return WEIGHTS[self.name]


def confidence(signals_of_task: tuple[Signal, ...]) -> float:
    """Return 1 minus the sum of the signals' weights, but at least 0."""
    taken = sum(Decimal(str(signal.weight)) for signal in signals_of_task)
    return float(max(Decimal(0), 1 - taken))


def signals(
    plan: CaseSpec, examination: Examination, now: datetime, *, reworded: bool = False, own: bool = True
) -> tuple[Signal, ...]:
    """Return the signals of a task, each at most once, in the order of `WEIGHTS`.

    Args:
        plan: Specification of the case.
        examination: Result of deriving the answer again.
        now: Current time.
        reworded: Whether the instruction differs from its template.
        own: Whether the case contains its specification (external cases do not).
    """
    first: dict[str, Signal] = {}
    for parts in (
        _of_value(plan, examination),
        _of_time(examination, now),
        _of_record(examination),
        _of_person(plan, examination, now),
    ):
        for part in parts:
            first.setdefault(part.name, part)
    if reworded:
        first["reworded"] = Signal("reworded", "the instruction differs from its template")
    if not own:
        first["made by others"] = Signal("made by others", "its wording and limits are not checked")
    return tuple(first[name] for name in WEIGHTS if name in first)


def _of_value(plan: CaseSpec, examination: Examination) -> Iterator[Signal]:
    value, exact, digits = examination.value, examination.exact, plan.digits
    if value is None or exact is None:
        yield Signal("nothing counts", "the answer is -1")
        return
    step = Decimal(1).scaleb(-digits)
    for name, limit in examination.limits.items():
        words = f"{name.replace('_', ' ')} limit {limit}"
        if value == limit:
            yield Signal("value at a limit", f"{value} is the {words}")
        elif abs(value - limit) <= step:
            yield Signal("value next to a limit", f"{value} is one step from the {words}")
    if examination.row is not None:
        low, high = examination.limits["critically_low"] / 3, examination.limits["critically_high"] * 3
        if not low <= value <= high:
            yield Signal("implausible value", f"{value} is far beyond the critical limits")
    if plan.family == "aggregation":
        scaled = exact.scaleb(digits) % 1
        if abs(scaled - Decimal("0.5")) <= Decimal("0.05"):
            yield Signal("mean near a half", f"the mean is {exact:.{digits + 3}f}")
        if len(examination.used) == _FEW:
            yield Signal("few values", f"a mean of {_FEW} values")


def _of_time(examination: Examination, now: datetime) -> Iterator[Signal]:
    reading = examination.reading
    if reading.end != now:
        yield Signal("past moment", f"the reference time is {reading.end.isoformat()}")
    if reading.later:
        yield Signal("later results", f"{len(reading.later)} results after the reference time")
    ends = [end for end in (reading.start, reading.end) if end is not None]
    around = [*reading.counted, *reading.later, *(row for row in reading.before if row.taken is not None)]
    for row in around:
        apart = min(abs(_at(row) - end) for end in ends)
        if apart == timedelta(0):
            yield Signal("result at the edge", f"{row.id} was taken exactly at an end of the window")
        elif apart <= _NEAR_EDGE:
            yield Signal("result near the edge", f"{row.id} was taken within five minutes of an end of the window")


def _of_record(examination: Examination) -> Iterator[Signal]:
    reading, used = examination.reading, examination.used
    since = min((_at(row) for row in used), default=reading.start)
    deciding = {row.taken for row in used}
    for row in reading.replaced:
        if row.taken in deciding:
            yield Signal("tie resolved", f"{row.id} of the same instant was issued earlier or created later")
    for row in reading.void:
        if _near(row, since, reading.end):
            yield Signal("void result nearby", f"{row.id} is {row.status}")
    for row in used:
        if row.status not in _USUAL:
            yield Signal("unusual status", f"{row.id} is {row.status or 'without status'}")
        elif row.status != "final":
            yield Signal("corrected result", f"{row.id} is {row.status}")
    for row in reading.strange:
        if _near(row, None if since is None else since - _NEARBY, reading.end):
            yield Signal("other unit nearby", f"{row.id} is in {row.unit or 'no unit'}")
    if len(used) == 1 and len(reading.counted) + len(reading.before) == 1:
        yield Signal("few values", f"{used[0].id} is the only result of its kind")


def _of_person(plan: CaseSpec, examination: Examination, now: datetime) -> Iterator[Signal]:
    row, age = examination.row, examination.age
    if row is None or age is None or plan.scenario != "demographic":
        return
    days = examination.person.days_to_birthday(now.astimezone(UTC).date())
    if (age == row.first_age or age == row.last_age) and days is not None and days <= _BIRTHDAY:
        yield Signal("age near a limit", f"{days} days from the birthday that changes the range")


def _near(row: ExportedResult, since: datetime | None, end: datetime) -> bool:
    return row.taken is not None and (since is None or row.taken >= since) and row.taken <= end


def _at(row: ExportedResult) -> datetime:
    if row.taken is None:
        raise ValueError(f"{row.id} has no instant")
    return row.taken
