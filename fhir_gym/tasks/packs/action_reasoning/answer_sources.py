"""Explain a wrong number: find the results and the calculation that give it.

An explanation is another time window, a part of the right window, a result that does not count, or an arithmetic error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from fractions import Fraction
from functools import cached_property
from statistics import median
from typing import NamedTuple

from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, ErrorLabel
from fhir_gym.tasks.packs.action_reasoning.pitfalls import mean, mean_of
from fhir_gym.tasks.packs.action_reasoning.ranges import as_written
from fhir_gym.tasks.packs.action_reasoning.series import LabResult, Series, between

_HOURS = (12, 23, 24, 25, 36, 48, 72, 168)
"""Lengths in hours of wrong windows that an agent may have used."""


_WRONG_VALUE: ErrorLabel = "incorrect value retrieved"
_WINDOW: ErrorLabel = "window boundary"
_INCLUSION: ErrorLabel = "incomplete inclusion"
_ARITHMETIC: ErrorLabel = "arithmetic"

_REPLACED = "a result that was replaced"
_FEW = 3
"""In windows with more results than this, an explanation by rounding is more likely than one by an omitted result."""


class AnswerSource(NamedTuple):
    """A possible source of an answered number; the agent may have rounded a computed number."""

    label: ErrorLabel
    words: str
    value: Fraction
    computed: bool = True


@dataclass(frozen=True)
class Records:
    """The results that an episode is about, and the results that the agent saw.

    Attributes:
        plan: Specification of the case.
        now: Current time of the world.
        series: All results of the episode's patient and test.
        seen: Ids of the Observations that the agent saw.
        strangers: Numbers that the agent saw in Observations of other tests or patients, by description.
        truncated: Whether the agent's last search had further pages that the agent did not read.
        dated: Whether the agent searched by date.
    """

    plan: CaseSpec
    now: datetime
    series: Series
    seen: frozenset[str] = frozenset()
    strangers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    truncated: bool = False
    dated: bool = False

    @cached_property
    def as_of(self) -> datetime:
        """Reference time of the question."""
        return parse_instant(self.plan.as_of)

    @cached_property
    def start(self) -> datetime | None:
        """Start of the window; None if the question has no window."""
        hours = self.plan.window_hours
        return None if hours is None else self.as_of - timedelta(hours=hours)

    @cached_property
    def window(self) -> tuple[LabResult, ...]:
        """The results in the window that count."""
        return between(self.series.counted, self.start, self.as_of)

    @cached_property
    def shown(self) -> tuple[LabResult, ...]:
        """The results that the agent saw and that count if they are in the window."""
        return self._shown(self.series.counted)

    @cached_property
    def uncounted(self) -> tuple[tuple[str, tuple[LabResult, ...]], ...]:
        """The results that the agent saw but that count in no window, grouped by description."""
        series = self.series
        return (
            ("a result in another unit", self._shown(series.others)),
            ("a withdrawn result", self._shown(series.void)),
            (_REPLACED, self._shown(series.superseded)),
        )

    @property
    def complete(self) -> bool:
        """Whether the window has results and the agent saw all of them."""
        return bool(self.window) and self.were_shown(self.window)

    def were_shown(self, readings: Sequence[LabResult]) -> bool:
        """Return whether the agent saw all of these results."""
        return all(reading.id in self.seen for reading in readings)

    def _shown(self, readings: Sequence[LabResult]) -> tuple[LabResult, ...]:
        return tuple(reading for reading in readings if reading.id in self.seen)


def windows(records: Records) -> Iterator[tuple[str, tuple[LabResult, ...]]]:
    """Yield each wrong window and its results, most likely window first, if the results differ from the right ones."""
    distinct = {records.window}
    for words, readings in _windows(records):
        if readings not in distinct:
            distinct.add(readings)
            yield words, readings


def _windows(records: Records) -> Iterator[tuple[str, tuple[LabResult, ...]]]:
    start, as_of, now, right = records.start, records.as_of, records.now, records.window
    counted, hours = records.series.counted, records.plan.window_hours
    inner = tuple(result for result in right if result.taken != start)
    yield "the window without its beginning", inner
    yield "the window without its end", tuple(result for result in right if result.taken != as_of)
    yield "the window without its ends", tuple(result for result in inner if result.taken != as_of)
    if now > as_of:
        yield "the window and what came after it", between(counted, start, now)
        if hours is not None:
            yield f"the last {hours:g} hours before the present", between(counted, now - timedelta(hours=hours), now)
    yield "the whole record", counted
    for other in _HOURS:
        yield f"a window of {other} hours", between(counted, as_of - timedelta(hours=other), as_of)
    midnight = datetime.combine(as_of.astimezone(UTC).date(), time(), UTC)
    yield "the calendar day", between(counted, midnight, as_of)
    yield "the whole calendar day", between(counted, midnight, midnight + timedelta(days=1, microseconds=-1))
    if start is not None:
        yield "the record up to that moment", between(counted, None, as_of)
        first = datetime.combine(start.astimezone(UTC).date(), time(), UTC)
        yield "the calendar days of the window", between(counted, first, as_of)


def is_given(answer: float, exact: Fraction, digits: int | None) -> bool:
    """Return whether an answer equals a number rounded to `digits` or more places, with halves rounded up or down.

    Args:
        answer: The answer, a finite number.
        exact: The number before rounding.
        digits: Minimum number of decimal places; None to compare without rounding.
    """
    told = Fraction(as_written(answer))
    slack = Fraction(1, 10**9) * max(Fraction(1), abs(exact))  # tolerance for binary floating point
    if digits is None:
        return abs(told - exact) <= slack
    places = digits
    while (told * 10**places).denominator != 1:
        places += 1
    return abs(told - exact) <= Fraction(1, 2 * 10**places) + slack


def explain_answer(records: Records, answer: float) -> AnswerSource | None:
    """Return the most likely source of an answer; None if no source gives the answer."""
    digits = records.plan.digits
    return next(
        (
            answer_source
            for answer_source in answer_sources(records)
            if is_given(answer, answer_source.value, digits if answer_source.computed else None)
        ),
        None,
    )


def answer_sources(records: Records) -> Iterator[AnswerSource]:
    """Yield the possible sources of a wrong answer, most likely first; they use only results that the agent saw."""
    average = records.plan.family == "aggregation"
    yield from _of_mean(records) if average else _of_latest(records)
    for words, numbers in records.strangers.items():
        for number in numbers:
            yield _stored(f"{number:g}, one of {words}", number)
        if average and numbers:
            yield AnswerSource(_WRONG_VALUE, f"the mean of {words}", mean(numbers))


def _of_mean(records: Records) -> Iterator[AnswerSource]:
    """Yield the possible sources of a wrong mean, most likely first."""
    window = records.window
    yield from _of_what_was_shown(records)
    if records.complete:
        yield AnswerSource(_INCLUSION, "the latest result alone", mean_of(window[-1:]), computed=False)
        yield from _roundings(mean_of(window), records.plan.digits)
        yield from _slips(window)
    if records.complete and len(window) > _FEW:
        yield from _coarsely(records)
    others = [
        AnswerSource(_WINDOW, f"the mean of {words}", mean_of(readings))
        for words, readings in windows(records)
        if readings and records.were_shown(readings)
    ]
    parts = _of_parts(records)
    # If the agent saw exactly the results in the window, it probably did not use another window.
    yield from (*parts, *others) if records.shown == window else (*others, *parts)
    if records.complete:
        yield from _coarsely(records)
        for result in window:
            yield AnswerSource(_INCLUSION, f"the result of {result.text} alone", mean_of([result]), computed=False)
    for reading in (*records.shown, *(reading for _, readings in records.uncounted for reading in readings)):
        yield _stored(f"the single result of {reading.text}", reading.value)


def _of_what_was_shown(records: Records) -> Iterator[AnswerSource]:
    """Yield means of all results that the agent saw; they explain an answer by a wrong search."""
    (_, foreign), *kinds = records.uncounted
    # An agent that ignores units may also make another error.
    read = [records.shown, _together(records.shown, foreign)] if foreign else [records.shown]
    for shown in read:
        for readings in (shown, between(shown, records.start, records.as_of)):
            if readings and readings != records.window:
                yield AnswerSource(*selection(records, readings), mean_of(readings))
    for shown in read:
        inside = between(shown, records.start, records.as_of)
        for words, more in kinds:
            label = _INCLUSION if words == _REPLACED else _WRONG_VALUE
            if within := between(more, records.start, records.as_of):
                in_place = tuple({result.taken: result for result in (*inside, *within)}.values())
                for readings in ((*inside, *within), in_place, (*shown, *more)):
                    yield AnswerSource(label, f"a mean into which {words} went", mean_of(readings))


def selection(records: Records, readings: tuple[LabResult, ...]) -> tuple[ErrorLabel, str]:
    """Return the error of an agent that averaged `readings` instead of the results in the window."""
    right = {result.id for result in records.window}
    ids = {reading.id for reading in readings}
    if not records.truncated or not ids < right:
        for words, others in windows(records):
            if {result.id for result in others} == ids & {result.id for result in records.series.counted}:
                return _WINDOW, f"the mean of {words}"
    if ids.isdisjoint(right):
        return _WINDOW if len(ids) > 1 else _WRONG_VALUE, "results from outside the window"
    if ids > right or (records.dated and not records.truncated):
        return _WINDOW, f"the mean of the {len(ids)} results of another span of time"
    return _INCLUSION, f"the mean of {len(ids)} results, with {len(ids & right)} of the {len(right)}"


def _roundings(exact: Fraction, places: int) -> Iterator[AnswerSource]:
    """Yield the right number rounded down and rounded up."""
    scale = 10**places
    for rounded in ((exact * scale).__floor__(), (exact * scale).__ceil__()):
        yield AnswerSource(
            _ARITHMETIC, f"rounded to {places} digits, or cut off", Fraction(rounded, scale), computed=False
        )


def _coarsely(records: Records) -> Iterator[AnswerSource]:
    """Yield the right mean with too few decimal places."""
    for places in range(records.plan.digits):
        yield from _roundings(mean_of(records.window), places)


def _of_parts(records: Records) -> Iterator[AnswerSource]:
    """Yield means of some results in the window, and means that count one result twice.

    Results that a wrong window gives are omitted: `windows` explains them.
    """
    windowed = {readings for _, readings in windows(records)}
    for words, readings in _parts(records.window):
        if readings not in windowed and records.were_shown(readings):
            yield AnswerSource(_INCLUSION, words, mean_of(readings))


def _parts(window: tuple[LabResult, ...]) -> Iterator[tuple[str, tuple[LabResult, ...]]]:
    whole = len(window)
    if whole < 2:
        return
    for left_out in range(whole):
        yield f"the mean without {window[left_out].text}", (*window[:left_out], *window[left_out + 1 :])
    for twice in window:
        yield f"the mean with {twice.text} counted twice", (*window, twice)
    for size in range(2, whole - 1):
        yield f"the mean of the first {size} results", window[:size]
        yield f"the mean of the last {size} results", window[-size:]
    different = {result.value: result for result in window}
    if len(different) < whole:
        yield "the mean of the different values", tuple(different.values())


def _slips(window: Sequence[LabResult]) -> Iterator[AnswerSource]:
    """Yield wrong calculations with the right results."""
    values = [Fraction(as_written(result.value)) for result in window]
    total, count = sum(values, Fraction()), len(values)
    yield AnswerSource(_ARITHMETIC, "the sum in place of the mean", total)
    yield AnswerSource(_ARITHMETIC, "the median", Fraction(median(values)))
    for divisor in (count - 1, count + 1):
        if divisor:
            yield AnswerSource(_ARITHMETIC, f"the sum of {count} divided by {divisor}", total / divisor)
    for factor in (Fraction(10), Fraction(1, 10)):
        yield AnswerSource(_ARITHMETIC, "the mean with the decimal point misplaced", total / count * factor)


def _of_latest(records: Records) -> Iterator[AnswerSource]:
    """Yield wrong results that the agent may have taken for the latest one, then computed values such as means."""
    right, shown = records.window[-1:], records.shown
    if records.truncated and not records.were_shown(right):
        for result in reversed(between(shown, records.start, records.as_of)):
            yield _stored(f"the result of {result.text}, the latest that was read", result.value)
    yield from _of_other_windows(records)
    for result in reversed(shown):
        yield _stored(f"the result of {result.text}", result.value)
    for kind, readings in records.uncounted:
        for reading in readings:
            yield _stored(f"{kind}, of {reading.text}", reading.value)
    if right and records.were_shown(right):
        for places in range(records.plan.digits + 1):
            yield from _roundings(mean_of(right), places)
    for read in (shown, _together(shown, records.uncounted[0][1])):
        for readings in (between(read, records.start, records.as_of), read):
            if len(readings) > 1:
                yield AnswerSource(
                    _ARITHMETIC, f"the mean of {len(readings)} results in place of one", mean_of(readings)
                )


def _of_other_windows(records: Records) -> Iterator[AnswerSource]:
    """Yield the latest result of each wrong window."""
    right = records.window[-1:]
    for words, readings in windows(records):
        latest = readings[-1:]
        # An earlier result in the right window indicates a wrong window only if the agent also saw the latest result.
        outside = not set(latest) <= set(records.window)
        if latest not in (right, ()) and records.were_shown(latest) and (outside or records.were_shown(right)):
            yield AnswerSource(_WINDOW, f"the latest of {words}", mean_of(latest), computed=False)


def _stored(words: str, value: float) -> AnswerSource:
    return AnswerSource(_WRONG_VALUE, words, Fraction(as_written(value)), computed=False)


def _together(some: tuple[LabResult, ...], more: tuple[LabResult, ...]) -> tuple[LabResult, ...]:
    """Return the results of both groups in chronological order."""
    return tuple(sorted((*some, *more), key=lambda result: result.taken)) if more else some
