"""Where a wrong number may come from: another window, a part of the right one, another result, a slip of arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from fractions import Fraction
from functools import cached_property
from statistics import median
from typing import NamedTuple

from fhir_gym.tasks.action_reasoning.cases import Plan
from fhir_gym.tasks.action_reasoning.deriving import mean
from fhir_gym.tasks.action_reasoning.ranges import as_written
from fhir_gym.tasks.action_reasoning.series import Reading, Series, between
from fhir_gym.tasks.clock import parse_instant
from fhir_gym.tasks.diagnosis import ErrorLabel

__all__ = ["Records", "Source", "explained", "is_given", "selection", "sources", "windows"]

_HOURS = (12, 23, 24, 25, 36, 48, 72, 168)
"""Windows that are taken for another one."""


class Source(NamedTuple):
    """What would give a number.

    Attributes:
        label: The error that it is.
        words: What it is, in words.
        value: The number.
    """

    label: ErrorLabel
    words: str
    value: Fraction


@dataclass(frozen=True)
class Records:
    """The results of an episode's patient and test, and which of them the agent was shown.

    Attributes:
        plan: How the task was made.
        now: The world's present.
        series: All results.
        seen: Ids of the Observations the agent was shown.
        strangers: Numbers of shown Observations of other tests or patients, by what they are in words.
    """

    plan: Plan
    now: datetime
    series: Series
    seen: frozenset[str] = frozenset()
    strangers: Mapping[str, tuple[float, ...]] | None = None

    @cached_property
    def as_of(self) -> datetime:
        """The moment the task looks back from."""
        return parse_instant(self.plan.as_of)

    @cached_property
    def start(self) -> datetime | None:
        """The beginning of the window; None for that of the record."""
        hours = self.plan.window_hours
        return None if hours is None else self.as_of - timedelta(hours=hours)

    @cached_property
    def window(self) -> tuple[Reading, ...]:
        """The results that count."""
        return between(self.series.counted, self.start, self.as_of)

    @cached_property
    def shown(self) -> tuple[Reading, ...]:
        """Results that would count in some window and that the agent was shown."""
        return self._shown(self.series.counted)

    @cached_property
    def uncounted(self) -> tuple[tuple[str, tuple[Reading, ...]], ...]:
        """Results that count in no window and that the agent was shown, by what they are."""
        series = self.series
        kinds = (
            ("a withdrawn result", series.void),
            ("a result that was replaced", series.superseded),
            ("a result in another unit", series.others),
        )
        return tuple((name, found) for name, readings in kinds if (found := self._shown(readings)))

    @property
    def complete(self) -> bool:
        """Whether the agent was shown all of the window, and there is something in it."""
        return bool(self.window) and self.were_shown(self.window)

    def were_shown(self, readings: Sequence[Reading]) -> bool:
        """Whether the agent was shown all of some results."""
        return all(one.id in self.seen for one in readings)

    def _shown(self, readings: Sequence[Reading]) -> tuple[Reading, ...]:
        return tuple(one for one in readings if one.id in self.seen)


def windows(records: Records) -> Iterator[tuple[str, tuple[Reading, ...]]]:
    """What other windows hold, where that is something else than the right one does; the likeliest first."""
    found = {records.window}
    for words, readings in _windows(records):
        if readings not in found:
            found.add(readings)
            yield words, readings


def _windows(records: Records) -> Iterator[tuple[str, tuple[Reading, ...]]]:
    start, as_of, now, right = records.start, records.as_of, records.now, records.window
    counted, hours = records.series.counted, records.plan.window_hours
    inner = tuple(one for one in right if one.taken != start)
    yield "the window without its beginning", inner
    yield "the window without its end", tuple(one for one in right if one.taken != as_of)
    yield "the window without its ends", tuple(one for one in inner if one.taken != as_of)
    if now > as_of:
        yield "the window and what came after it", between(counted, start, now)
        if hours is not None:
            yield f"the last {hours:g} hours before the present", between(counted, now - timedelta(hours=hours), now)
    for other in _HOURS:
        yield f"a window of {other} hours", between(counted, as_of - timedelta(hours=other), as_of)
    midnight = datetime.combine(as_of.astimezone(UTC).date(), time(), UTC)
    yield "the calendar day", between(counted, midnight, as_of)
    yield "the whole calendar day", between(counted, midnight, midnight + timedelta(days=1, microseconds=-1))
    if start is not None:
        first = datetime.combine(start.astimezone(UTC).date(), time(), UTC)
        yield "the calendar days of the window", between(counted, first, as_of)
        yield "all before the present", between(counted, None, as_of)
    yield "the whole record", counted


def is_given(answer: float, exact: Fraction, digits: int | None) -> bool:
    """Whether a number is another one, rounded half up to so many digits or more.

    Args:
        answer: What was answered, a finite number.
        exact: The other number.
        digits: Digits after the decimal point; None if nothing is rounded.
    """
    told = Fraction(as_written(answer))
    if abs(told - exact) <= Fraction(1, 10**9) * max(Fraction(1), abs(exact)):  # a sum of binary fractions is no other number
        return True
    if digits is None:
        return False
    places = digits
    while (told * 10**places).denominator != 1:
        places += 1
    return told == Fraction((exact * 10**places + Fraction(1, 2)).__floor__(), 10**places)


def explained(records: Records, answer: float) -> Source | None:
    """The first source that gives an answer; None if none does."""
    digits = records.plan.digits if records.plan.family == "aggregation" else None
    return next((one for one in sources(records) if is_given(answer, one.value, digits)), None)


def sources(records: Records) -> Iterator[Source]:
    """What may be answered in place of the right value, the likeliest first; only of results the agent was shown."""
    yield from _of_mean(records) if records.plan.family == "aggregation" else _of_latest(records)
    for words, numbers in (records.strangers or {}).items():
        for number in numbers:
            yield Source("incorrect value retrieved", words, Fraction(as_written(number)))


def _of_mean(records: Records) -> Iterator[Source]:
    """Wrong means: of just what was shown, then mis-rounded ones, other windows, parts, slips."""
    yield from _of_what_was_shown(records)
    if records.complete:
        yield from _roundings(_mean(records.window), records.plan.digits)
    for words, readings in windows(records):
        if readings and records.were_shown(readings):
            yield Source("window boundary", f"the mean of {words}", _mean(readings))
    for words, readings in _parts(records.window):
        if records.were_shown(readings):
            yield Source("incomplete inclusion", words, _mean(readings))
    if records.complete:
        yield from _slips(records.window)
    for one in records.shown:
        yield Source("incorrect value retrieved", f"the single result of {one.text}", Fraction(as_written(one.value)))
    yield from _uncounted(records)


def _of_what_was_shown(records: Records) -> Iterator[Source]:
    """Means of all that a search found: if they explain an answer, it was the search that was wrong."""
    window, shown = records.window, records.shown
    inside = between(shown, records.start, records.as_of)
    if shown and shown != window:
        label, words = selection(records)
        yield Source(label, words, _mean(shown))
    if inside and inside not in (shown, window):
        yield Source("incomplete inclusion", f"the mean of {len(inside)} of the {len(window)} results", _mean(inside))
    for kind, readings in records.uncounted:
        label = "incomplete inclusion" if kind == "a result that was replaced" else "incorrect value retrieved"
        for counted, more in ((inside, between(readings, records.start, records.as_of)), (shown, readings)):
            if more:
                yield Source(label, f"a mean into which {kind} went", _mean((*counted, *more)))


def selection(records: Records) -> tuple[ErrorLabel, str]:
    """What it is to take the mean of all that was shown, where that is not the window."""
    shown = records.shown
    for words, readings in windows(records):
        if readings == shown:
            return "window boundary", f"the mean of {words}"
    right = {one.id for one in records.window}
    ids = {one.id for one in shown}
    if ids.isdisjoint(right):
        return "incorrect value retrieved", "results from outside the window"
    if ids > right:
        return "window boundary", f"the mean of all {len(ids)} results that were retrieved"
    return "incomplete inclusion", f"the mean of the {len(ids)} results that were retrieved"


def _roundings(exact: Fraction, digits: int) -> Iterator[Source]:
    """A right mean, rounded otherwise."""
    for places in range(digits, -1, -1):
        scale = 10**places
        floor = (exact * scale).__floor__()
        for rounded in (floor, floor + 1):
            yield Source("arithmetic", f"the mean, rounded otherwise to {places} digits", Fraction(rounded, scale))


def _parts(window: tuple[Reading, ...]) -> Iterator[tuple[str, tuple[Reading, ...]]]:
    """Proper parts of a window, and the window with one result taken twice."""
    whole = len(window)
    if whole < 2:
        return
    yield "the latest result alone", window[-1:]
    yield "the first result alone", window[:1]
    for left_out in range(whole):
        yield f"the mean without {window[left_out].text}", (*window[:left_out], *window[left_out + 1 :])
    for twice in window:
        yield f"the mean with {twice.text} counted twice", (*window, twice)
    for size in range(2, whole - 1):
        yield f"the mean of the first {size} results", window[:size]
        yield f"the mean of the last {size} results", window[-size:]
    different = {one.value: one for one in window}
    yield "the mean of the different values", tuple(different.values())
    yield "the least result", (min(window, key=lambda one: one.value),)
    yield "the greatest result", (max(window, key=lambda one: one.value),)


def _slips(window: Sequence[Reading]) -> Iterator[Source]:
    """Wrong calculations with the right results."""
    values = [Fraction(as_written(one.value)) for one in window]
    total, count = sum(values, Fraction()), len(values)
    yield Source("arithmetic", "the sum in place of the mean", total)
    yield Source("arithmetic", "the median", Fraction(median(values)))
    for divisor in (count - 1, count + 1):
        if divisor:
            yield Source("arithmetic", f"the sum of {count} divided by {divisor}", total / divisor)
    for factor in (Fraction(10), Fraction(1, 10)):
        yield Source("arithmetic", "the mean with the decimal point misplaced", total / count * factor)
    yield Source("arithmetic", "the middle between the least and the greatest", (min(values) + max(values)) / 2)


def _of_latest(records: Records) -> Iterator[Source]:
    """Other results than the latest of the window, then what was made of results though nobody asked for it."""
    right = records.window[-1:]
    for words, readings in windows(records):
        if readings[-1:] not in (right, ()) and records.were_shown(readings[-1:]):
            yield Source("window boundary", f"the latest of {words}", Fraction(as_written(readings[-1].value)))
    for one in reversed(records.shown):
        yield Source("incorrect value retrieved", f"the result of {one.text}", Fraction(as_written(one.value)))
    yield from _uncounted(records)
    if right and records.were_shown(right):
        yield from _roundings(_mean(right), records.plan.digits)
    for readings in (records.window, records.shown):
        if len(readings) > 1 and records.were_shown(readings):
            yield Source("arithmetic", f"the mean of {len(readings)} results in place of one", _mean(readings))


def _uncounted(records: Records) -> Iterator[Source]:
    for kind, readings in records.uncounted:
        for one in readings:
            words = f"{kind}, of {one.text}"
            yield Source("incorrect value retrieved", words, Fraction(as_written(one.value)))


def _mean(readings: Sequence[Reading]) -> Fraction:
    return mean([one.value for one in readings])
