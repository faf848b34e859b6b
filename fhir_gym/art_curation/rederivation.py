"""Derive a task's ground truth again, from exported results and in decimal arithmetic.

The functions apply the rules that the prompts state, and report the cases for which these rules give no single answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal

from fhir_gym.art_curation.exported import ExportedResult

VOID = frozenset({"cancelled", "entered-in-error"})
"""A result with one of these statuses does not count."""

_DAY = timedelta(days=1)


@dataclass(frozen=True)
class LookBack:
    """A patient's results of one test, classified by a time span.

    Attributes:
        start: Start of the span; None if the span starts with the record.
        end: End of the span.
        counted: Results that count, one for each instant, oldest first.
        replaced: Results that another result of the same instant replaces, because it was issued later or stored first.
        ties: Instants that have several values and no rule for choosing among them.
        foreign: Results that do not count only because of their unit.
        vague: Results that might count but lack an exact time or value.
        void: Cancelled results and results entered in error.
        before: Results that do not count only because they are before the start.
        later: Results that do not count only because they are after the end.
        strange: Results in another unit, at any time.
    """

    start: datetime | None
    end: datetime
    counted: tuple[ExportedResult, ...]
    replaced: tuple[ExportedResult, ...]
    ties: frozenset[datetime]
    foreign: tuple[ExportedResult, ...]
    vague: tuple[ExportedResult, ...]
    void: tuple[ExportedResult, ...]
    before: tuple[ExportedResult, ...]
    later: tuple[ExportedResult, ...]
    strange: tuple[ExportedResult, ...]

    @property
    def latest(self) -> ExportedResult | None:
        """The latest result that counts."""
        return self.counted[-1] if self.counted else None

    def doubts_of_latest(self) -> list[str]:
        """Return the reasons why the latest result is uncertain."""
        since = self.latest.taken if self.latest else None
        doubts = []
        if since in self.ties:
            doubts.append(f"several values were taken at {self._text(since)} and the rules do not say which counts")
        if any(_after(row, since) for row in self.foreign):
            doubts.append("the latest result is in another unit")
        if any(_after(row, since) for row in self.vague):
            doubts.append("a result without an exact time or value may be the latest")
        return doubts

    def doubts_of_all(self) -> list[str]:
        """Return the reasons why the set of results that count is uncertain."""
        doubts = [
            f"several values were taken at {self._text(moment)} and the rules do not say which counts"
            for moment in sorted(self.ties)
        ]
        if self.foreign:
            doubts.append("a result of the window is in another unit")
        if self.vague:
            doubts.append("a result without an exact time or value may belong to the window")
        return doubts

    def _text(self, moment: datetime | None) -> str:
        return "" if moment is None else moment.isoformat()


def look_back(rows: Sequence[ExportedResult], unit: str, end: datetime, window: timedelta | None) -> LookBack:
    """Classify results by the time span from ``end - window`` to ``end``; both ends belong to the span.

    Args:
        rows: All results of one patient and test.
        unit: Only results in this unit count.
        end: Reference time of the question.
        window: Length of the time span; None if it covers the whole record up to `end`.
    """
    start = None if window is None else end - window
    alive = [row for row in rows if row.status not in VOID]
    timed: dict[datetime, list[ExportedResult]] = {}
    vague: list[ExportedResult] = []
    before: list[ExportedResult] = []
    later: list[ExportedResult] = []
    for row in alive:
        if row.taken is None:
            if row.value is not None and _may_lie(row.text, start, end):
                vague.append(row)
        elif row.value is None:
            continue
        elif start is not None and row.taken < start:
            before.append(row)
        elif row.taken > end:
            later.append(row)
        elif not row.exact:
            vague.append(row)
        else:
            timed.setdefault(row.taken, []).append(row)
    counted: list[ExportedResult] = []
    foreign: list[ExportedResult] = []
    replaced: list[ExportedResult] = []
    ties: set[datetime] = set()
    for moment in sorted(timed):
        last = max(row.issued or moment for row in timed[moment])
        final = [row for row in timed[moment] if (row.issued or moment) == last]
        winner = min(final, key=lambda row: row.order)
        if any((row.value, row.unit) != (winner.value, winner.unit) for row in final):
            ties.add(moment)
        replaced += [row for row in timed[moment] if row is not winner]
        (counted if winner.unit == unit else foreign).append(winner)
    return LookBack(
        start,
        end,
        counted=tuple(counted),
        replaced=tuple(replaced),
        ties=frozenset(ties),
        foreign=tuple(foreign),
        vague=tuple(vague),
        void=tuple(row for row in rows if row.status in VOID),
        before=tuple(row for row in before if row.unit == unit),
        later=tuple(row for row in later if row.unit == unit),
        strange=tuple(row for row in alive if row.value is not None and row.unit != unit),
    )


def mean(values: Iterable[Decimal]) -> Decimal:
    """Return the unrounded average."""
    numbers = list(values)
    return sum(numbers, Decimal(0)) / len(numbers)


def places(value: Decimal, digits: int) -> Decimal:
    """Round to `digits` decimal places, halves away from zero."""
    return value.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)


def on_half(value: Decimal, digits: int) -> bool:
    """Return whether a number is exactly halfway between two numbers with `digits` decimal places."""
    return abs(value.scaleb(digits) % 1) == Decimal("0.5")


def hours(number: float) -> timedelta:
    """Convert hours to a time span, rounded to seconds."""
    return timedelta(seconds=round(Decimal(str(number)) * 3600))


def band(value: Decimal, limits: Mapping[str, Decimal], width: Decimal) -> str:
    """Return the category of a value, such as ``borderline_high``.

    Args:
        value: The value.
        limits: ``low``, ``high``, ``critically_low`` and ``critically_high``.
        width: Width of the two borderline bands, which are inside the range next to the limits.
    """
    if value <= limits["critically_low"]:
        return "critically_low"
    if value >= limits["critically_high"]:
        return "critically_high"
    if value < limits["low"]:
        return "low"
    if value > limits["high"]:
        return "high"
    if value - limits["low"] <= width:
        return "borderline_low"
    return "borderline_high" if limits["high"] - value <= width else "normal"


def _after(row: ExportedResult, since: datetime | None) -> bool:
    """Return whether a result may be later than a time."""
    return since is None or row.taken is None or row.taken >= since


def _may_lie(text: str, start: datetime | None, end: datetime) -> bool:
    """Return whether a date, month or year may be within a time span, in any time zone."""
    if not text:
        return False
    first = (start or end) - _DAY
    days = {(first + n * _DAY).date().isoformat() for n in range((end + _DAY - first).days + 1)}
    return start is None or any(day.startswith(text[: len(day)]) for day in days)
