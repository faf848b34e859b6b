"""Draw the results of all patients in a scene (the records that a task adds) by the same random process."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, Person, instant
from fhir_gym.tasks.packs.medagentbench.labs import VOID_STATUSES, LabChart, LabScene, LabTest, Result

DAY_MINUTES = 24 * 60
NEWEST_AGO = (8, 18)
"""Bounds in minutes of the age of the scene's newest result; the prompt never asks about the patient of this result."""
_FINAL = ("final", "final", "final", "final", "corrected", "amended")
_OLDEST = 400 * DAY_MINUTES
_WITHDRAWN, _BESIDE, _OLD = (1, 1, 1, 1, 2, 3), (1, 1, 1, 2), (1, 1, 1, 2, 2)
"""Numbers of results to choose from: withdrawn results, results of another test, and older results."""
_LONG, _PAGE = 1 / 25, 22
_TIE_DELAY, _EDGE_DELAY = 50, 90
_TRIES = 50

_Row = tuple[int, int, float, str, str, str]
"""A result: minutes since it was taken, minutes from taking to issuing, value, unit, status, code."""


class ChartPlan(NamedTuple):
    """The planned content of a patient's chart; each time is a number of minutes before the current time.

    Attributes:
        counted: Time and value (in the requested unit) of the results that determine the answer.
        newest: Withdrawn results and results of another test, which do not count, are newer than this time.
        stale: Further results are older than this time; None if there are no further results.
        counterfactual: If no result counts, the time of a result that would count but is not on the server.
        tie: Whether the chart may contain a second result of the first counted specimen.
        lone: Whether the chart contains only the counted results.
    """

    counted: Sequence[tuple[int, float]] = ()
    newest: int = DAY_MINUTES
    stale: int | None = None
    counterfactual: int = 0
    tie: bool = True
    lone: bool = False


def draw_recent(rng: random.Random) -> int:
    """Draw how many minutes ago a result was taken: minutes to weeks ago."""
    return rng.randrange(20, rng.choice((300, 3_000, 60_000)))


def draw_within_day(rng: random.Random) -> int:
    """Draw how many minutes ago a result was taken: up to 24 hours, sometimes exactly 24 hours."""
    return DAY_MINUTES if rng.random() < 0.2 else rng.randrange(20, DAY_MINUTES)


class ChartFiller:
    """Fills the charts of one scene.

    Args:
        rng: Random generator.
        test: The test that the prompt asks about.
        converted: Fraction of results whose value is in the test's other unit.
    """

    def __init__(self, rng: random.Random, test: LabTest, converted: float) -> None:
        self.rng, self._test, self._converted = rng, test, converted
        self._levels: set[float] = set()

    def level(self, low: float | None = None, high: float | None = None) -> float:
        """Draw a level that no other patient has."""
        level = self._value(self._levels, low, high)
        self._levels.add(level)
        return level

    def scene(self, world: World, people: Iterable[Person], plans: Iterable[ChartPlan]) -> LabScene:
        """Draw the charts of all patients, and return the scene."""
        drawn = [(person, plan, self._rows(plan)) for person, plan in zip(people, plans, strict=True)]
        ids = IdAllocator(self.rng, world)
        charts = []
        for person, plan, rows in drawn:
            results = [_result(world.now, ids.new("Observation"), person.id, row) for row in rows]
            counterfactual = None if plan.counted else results.pop()
            charts.append(LabChart(person=person, results=tuple(results), counterfactual=counterfactual))
        return LabScene(now=instant(world.now), charts=tuple(charts))

    def _rows(self, plan: ChartPlan) -> list[_Row]:
        """Draw a patient's results; if no result counts, the last one is the counterfactual result."""
        rng, test = self.rng, self._test
        if plan.lone:
            return [self._row(ago, level, "final") for ago, level in plan.counted]
        taken = {ago for ago, _ in plan.counted}
        levels = {level for _, level in plan.counted}
        rows = [self._row(ago, level, rng.choice(_FINAL)) for ago, level in plan.counted]
        if plan.counted and plan.tie and rng.random() < 0.25:
            ago, _, value, unit, status, code = rows[0]
            rows[0] = ago, _TIE_DELAY, value, unit, status, code
            rows.append(self._row(ago, self._value(levels), rng.choice(_FINAL), delay=0))
        empty = not plan.counted
        for _ in range(rng.choice(_WITHDRAWN)):
            rows.append(self._row(self._ago(taken, 1, plan.newest), self._value(levels), rng.choice(VOID_STATUSES)))
        for _ in range(rng.choice(_BESIDE)):
            ago = self._ago(taken, 1, plan.newest)
            rows.append((ago, self._delay(), self._value(levels), test.unit, "final", test.neighbour))
        if plan.stale is not None:
            rows += self._stale(plan.stale, taken, levels)
        if empty:
            # The time of the result is random, so its status is, too.
            rows.append(self._row(plan.counterfactual, self._value(levels), _FINAL[plan.counterfactual % len(_FINAL)]))
        return rows

    def _stale(self, stale: int, taken: set[int], levels: set[float]) -> list[_Row]:
        """Draw older results, sometimes more than one page; the first is valid, and some others are withdrawn."""
        rng = self.rng
        rows = []
        if rng.random() < 0.5:
            rows.append(self._row(stale + 1, self._value(levels), rng.choice(_FINAL), delay=_EDGE_DELAY))
        many = _PAGE if rng.random() < _LONG else rng.choice(_OLD)
        while len(rows) < many:
            status = rng.choice(VOID_STATUSES) if rows and rng.random() < 0.15 else rng.choice(_FINAL)
            rows.append(self._row(self._ago(taken, stale + 30, stale + _OLDEST), self._value(levels), status))
        return rows

    def _row(self, ago: int, value: float, status: str, *, delay: int | None = None) -> _Row:
        """Return a result of the test, sometimes in the other unit."""
        test, unit = self._test, self._test.unit
        if test.other_unit and self.rng.random() < self._converted:
            value, unit = round(value / test.factor, test.other_digits), test.other_unit
        return ago, self._delay() if delay is None else delay, value, unit, status, test.code

    def _delay(self) -> int:
        return 10 + int(100 * self.rng.random())

    def _value(self, levels: set[float], low: float | None = None, high: float | None = None) -> float:
        """Draw a value, if possible one that is not among `levels`."""
        test, value = self._test, 0.0
        low, high = test.low if low is None else low, test.high if high is None else high
        for _ in range(_TRIES):
            value = round(self.rng.uniform(low, high), test.digits)
            if value not in levels and low <= value <= high:
                break
        return value

    def _ago(self, taken: set[int], first: int, last: int) -> int:
        """Draw how many minutes ago a result was taken, other than the times in `taken`."""
        while (ago := first + int((last - first) * self.rng.random())) in taken:
            pass
        taken.add(ago)
        return ago


def _result(now: datetime, id: str, owner: str, row: _Row) -> Result:
    ago, delay, value, unit, status, code = row
    taken, issued = instant(now - timedelta(minutes=ago)), instant(now - timedelta(minutes=max(0, ago - delay)))
    return Result(id=id, owner=owner, code=code, taken=taken, issued=issued, value=value, unit=unit, status=status)
