"""Find the shortcuts that give a wrong answer to a question: apply each shortcut to the patient's results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

from fhir_gym.tasks.packs.action_reasoning.cases import Family
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS, ReferenceRange, as_written, find_range, others
from fhir_gym.tasks.packs.action_reasoning.series import LabResult, Series, between, settle

PAGE = 20
"""Default page size of a search."""

PITFALLS = (
    "latest regardless of window",
    "whole record",
    "first page",
    "later results",
    "void result",
    "tie",
    "other sex",
    "other age",
)
"""Names of shortcuts that may give a wrong answer.

In this order: use the latest result although it is outside the window; average the whole record; read only the first
page of an unsorted search; ignore the reference time; count withdrawn results; count replaced results; use the range
for the other sex; use the range for another age.
"""


_OPPOSITE: dict[str | None, str] = {"female": "male", "male": "female"}


def mean_digits(lab: str) -> int:
    """Return the number of decimal places of a mean: one more than the laboratory reports."""
    return LABS[lab].digits + 1


def mean(values: Iterable[float]) -> Fraction:
    """Return the exact mean of values as written in decimal notation."""
    numbers = [as_written(value) for value in values]
    return Fraction(sum(numbers, Decimal())) / len(numbers)


def mean_of(results: Iterable[LabResult]) -> Fraction:
    """Return the exact mean of the values of results."""
    return mean(result.value for result in results)


def is_halfway(exact: Fraction, digits: int) -> bool:
    """Return whether a mean is exactly halfway between two numbers with `digits` decimal places."""
    return (exact * 10**digits * 2).denominator == 1 and int(exact * 10**digits * 2) % 2 == 1


def round_half_up(exact: Fraction, digits: int) -> float:
    """Round a mean half up."""
    return float(Fraction((exact * 10**digits + Fraction(1, 2)).__floor__(), 10**digits))


class Misread:
    """The results that an agent counts if it misreads a series.

    Args:
        series: All results of the patient and test.
    """

    def __init__(self, series: Series) -> None:
        self.series = series

    @cached_property
    def first_page(self) -> tuple[LabResult, ...]:
        """The results that an agent counts if it reads only the first page of a search."""
        first = frozenset(self.series.listed[:PAGE])
        return self._counting(result for result in self._valid if result.id in first)

    @cached_property
    def with_void(self) -> tuple[LabResult, ...]:
        """The results that an agent counts if it also counts withdrawn results."""
        return self._counting((*self._valid, *self.series.void))

    @property
    def _valid(self) -> tuple[LabResult, ...]:
        return (*self.series.counted, *self.series.superseded, *self.series.others)

    def _counting(self, readings: Iterable[LabResult]) -> tuple[LabResult, ...]:
        position = {id: number for number, id in enumerate(self.series.listed)}
        counting, _, _ = settle(sorted(readings, key=lambda reading: position[reading.id]))
        foreign = self.series.foreign
        return tuple(result for result in counting if result.id not in foreign)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the results of a patient and test.

    Attributes:
        family: Kind of task.
        series: The results.
        misread: The results that an agent counts if it misreads the series.
        now: Current time of the world.
        as_of: Reference time of the question.
        hours: Length of the time window; None if the question has no window.
    """

    family: Family
    series: Series
    misread: Misread
    now: datetime
    as_of: datetime
    hours: float | None = None

    def used(self) -> tuple[LabResult, ...]:
        """Return the results that determine the answer, oldest first."""
        return self._used_of(self.series.counted, self.as_of)

    def answer(self) -> float | None:
        """Return the latest value or the rounded mean; None if no result counts."""
        return self._answer_of(self.used())

    def _used_of(self, counted: tuple[LabResult, ...], as_of: datetime) -> tuple[LabResult, ...]:
        start = None if self.hours is None else as_of - timedelta(hours=self.hours)
        inside = between(counted, start, as_of)
        return inside if self.family == "aggregation" else inside[-1:]

    def _answer_of(self, used: tuple[LabResult, ...]) -> float | None:
        if not used:
            return None
        if self.family == "aggregation":
            return round_half_up(mean_of(used), mean_digits(self.series.lab))
        return used[-1].value

    def lazy_answers(self) -> Iterator[tuple[str, float | None]]:
        """Yield each shortcut with its answer; a shortcut that has several variants occurs once for each variant."""
        series, used = self.series, self.used()
        until_now = series.upto(self.as_of)
        if self.hours is not None:
            yield "latest regardless of window", until_now[-1].value if until_now else None
        if self.family == "aggregation":
            yield "whole record", self._answer_of(until_now)
            yield "whole record", self._answer_of(series.counted)
        yield "first page", self._answer_of(self._used_of(self.misread.first_page, self.as_of))
        if self.as_of < self.now:
            yield "later results", self._answer_of(self._used_of(series.counted, self.now))
        if series.void:
            yield "void result", self._answer_of(self._used_of(self.misread.with_void, self.as_of))
            if self.family == "aggregation":
                yield "void result", self._answer_of((*used, *self._used_of(series.void, self.as_of)))
        replaced = [result for result in series.superseded if used and used[0].taken <= result.taken <= used[-1].taken]
        if replaced:
            if self.family == "aggregation":
                yield "tie", self._answer_of((*used, *replaced))
            else:
                yield "tie", replaced[-1].value


def find_pitfalls(question: Question) -> frozenset[str]:
    """Return the shortcuts that give a wrong answer in all their variants."""
    right = question.answer()
    verdicts: dict[str, bool] = {}
    for name, answer in question.lazy_answers():
        verdicts[name] = verdicts.get(name, True) and answer != right
    return frozenset(name for name, wrong in verdicts.items() if wrong)


def range_pitfalls(row: ReferenceRange, age: int | None, value: float) -> frozenset[str]:
    """Return the names of wrong ranges (``other sex``, ``other age``) for which a value lies on another side.

    Args:
        row: The patient's reference range.
        age: Age of the patient in full years.
        value: The value.
    """
    opposite = find_range(row.lab, _OPPOSITE.get(row.sex), age)
    older_or_younger = [
        reference_range for reference_range in others(row) if row.sex is None or reference_range.sex in (None, row.sex)
    ]
    wrong = {"other sex"} if opposite is not None and opposite.side(value) != row.side(value) else set()
    if any(reference_range.side(value) != row.side(value) for reference_range in older_or_younger):
        wrong.add("other age")
    return frozenset(wrong)
