"""Base classes of the tasks about laboratory results; one process draws the results of all patients."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, NamedTuple

from typing_extensions import override

from fhir_gym.actions import Action, Finish
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Gold, SceneTask
from fhir_gym.tasks.authoring import IdAllocator, Person, instant, parse_instant
from fhir_gym.tasks.packs.medagentbench.internist_task import (
    NO_RESULT,
    READ_ONLY,
    ItemsAnswer,
    draw_namesakes,
    ids_only,
    number_check,
    patient_with_mrn,
)
from fhir_gym.tasks.packs.medagentbench.labs import (
    VOID_STATUSES,
    LabChart,
    LabParams,
    LabScene,
    LabTest,
    ParsedResult,
    Result,
    counted_results,
    day_before,
    results_search,
)
from fhir_gym.tasks.packs.medagentbench.single_dose import explicit_single_doses, invalid_timings
from fhir_gym.types import Json, Resource

NOTHING, SOMETHING = "nothing", "something"
"""Strata of patients: no result counts, or at least one result counts. The first is also a branch (see `LabTask`)."""
_NEWCOMER = "newcomer"


class LabFinding(NamedTuple):
    """The correct value according to a patient's results.

    Attributes:
        level: The value in the requested unit; None if no result counts.
        tolerance: Maximum difference between an accepted answer and the value.
        taken: When the result that determines the value was taken; None if no result counts.
        deciding: Ids of the results that determine the value.
    """

    level: float | None = None
    tolerance: float = 0.0
    taken: str | None = None
    deciding: tuple[str, ...] = ()

    def differs(self, other: LabFinding) -> bool:
        """Return whether no answer is right for both findings."""
        if self.level is None or other.level is None:
            return self.level is not other.level
        return abs(self.level - other.level) > self.tolerance + other.tolerance + 1e-6


@dataclass(frozen=True, slots=True)
class LabCandidate:
    """A patient that the prompt could ask about.

    Attributes:
        chart: The patient's chart.
        found: The correct value according to the chart.
        target: Reference to the record that the prompt asks about.
    """

    chart: LabChart
    found: LabFinding
    target: str


class LabTask(SceneTask[LabParams, LabScene, LabCandidate]):
    """A task with an answer or order that depends on a patient's laboratory results.

    Because an agent could guess a value, success requires evidence that the agent read the results.

    Attributes:
        test: The laboratory test.
        window: Only results taken within this time before the current time count; None if all results count.
        converted: Fraction of results whose value is in the test's other unit.
        branches: One outcome for each patient that the prompt could ask about, such as ``nothing`` (no result counts).
        newcomer: Whether the scene has one more patient, with the newest result of all: a search that omits the
            patient finds this result first.
    """

    answer: ClassVar[ItemsAnswer] = ItemsAnswer("[number]", (("number",),))
    evidence_before_changes = True
    evidence_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {"Observation": ("valueQuantity",)}
    test: ClassVar[LabTest]
    window: ClassVar[timedelta | None] = None
    converted: ClassVar[float] = 0.3
    branches: ClassVar[tuple[str, ...]]
    newcomer: ClassVar[bool] = True

    @abstractmethod
    def plan(self, filler: ChartFiller, branch: str, world: World) -> ChartPlan:
        """Plan a chart whose results lead to an outcome, which is one of `branches`."""

    @override
    def may_match(self, p: LabParams, seen: Resource, counterfactual: Resource) -> bool:
        taken = str(seen.get("effectiveDateTime", ""))
        late = self.window is None or "T" not in taken or parse_instant(taken) >= parse_instant(p.now) - self.window
        others = {name: value for name, value in seen.items() if name != "status"}
        return late and seen.get("status") not in VOID_STATUSES and super().may_match(p, others, counterfactual)

    @override
    def draw_scene(self, rng: random.Random, world: World) -> LabScene:
        order = [*self.branches, _NEWCOMER] if self.newcomer else [*self.branches]
        people = draw_namesakes(rng, world, len(order))
        rng.shuffle(order)
        while _alike(people, order):
            rng.shuffle(order)
        filler = ChartFiller(rng, self.test, self.converted)
        plans = [_just_in(filler) if branch == _NEWCOMER else self.plan(filler, branch, world) for branch in order]
        return filler.scene(world, people, plans)

    @override
    def candidates(self, scene: LabScene) -> dict[str, list[LabCandidate]]:
        """Return the patients for whom every condition matters.

        For these patients, ignoring a result's status, test or patient, or confusing the patient with a namesake,
        changes the answer. If no result counts, ignoring when a result was taken changes the answer too.
        """
        since = instant(parse_instant(scene.now) - self.window) if self.window else ""
        founds = [self._found(chart.results, since) for chart in scene.charts]
        of_all = self._found([result for chart in scene.charts for result in chart.results], since)
        cases: dict[str, list[LabCandidate]] = {NOTHING: [], SOMETHING: []}
        for chart, finding in zip(scene.charts, founds, strict=True):
            mistaken = [of_all, *self._mistaken(chart, since, finding)]
            mistaken += [
                other
                for lab_chart, other in zip(scene.charts, founds, strict=True)
                if lab_chart is not chart and lab_chart.person.name == chart.person.name
            ]
            if all(map(finding.differs, mistaken)):
                kind = SOMETHING if finding.deciding else NOTHING
                cases[kind].append(LabCandidate(chart, finding, self.asked_about(chart, finding)))
        nothing = self.branches.count(NOTHING)
        complete = len(cases[NOTHING]) == nothing and len(cases[SOMETHING]) == len(self.branches) - nothing
        return {**cases} if complete else {}

    def _mistaken(self, chart: LabChart, since: str, finding: LabFinding) -> Iterator[LabFinding]:
        yield self._found(chart.results, since, withdrawn=True)
        yield self._found(chart.results, since, any_test=True)
        if since and not finding.deciding:
            yield self._found(chart.results, "")

    def _found(
        self, results: Iterable[Result], since: str, *, withdrawn: bool = False, any_test: bool = False
    ) -> LabFinding:
        counted = [
            result
            for result in results
            if result.taken >= since
            and (any_test or result.code == self.test.code)
            and (withdrawn or result.status not in VOID_STATUSES)
        ]
        return self.found(counted) if counted else LabFinding()

    def found(self, counted: Sequence[Result]) -> LabFinding:
        """Return the finding of one or more results that count: the value of the latest result."""
        last = max(counted, key=lambda result: (result.taken, result.issued))
        level, tolerance = self.level_of(last)
        return LabFinding(level, tolerance, last.taken, (last.id,))

    def level_of(self, result: Result) -> tuple[float, float]:
        """Return a result's value in the requested unit, and the tolerance for an answer."""
        if result.unit == self.test.unit:
            return result.value, 0.0
        return result.value * self.test.factor, self.test.tolerance

    def asked_about(self, chart: LabChart, finding: LabFinding) -> str:
        """Return the reference to the result that determines the value; empty if no result counts."""
        return f"Observation/{finding.deciding[0]}" if finding.deciding else ""

    @override
    def params_for(self, rng: random.Random, world: World, scene: LabScene, chosen: LabCandidate) -> LabParams:
        person = chosen.chart.person
        return LabParams(
            scene=scene,
            now=scene.now,
            mrn=person.id,
            name=person.name,
            counterfactual=chosen.chart.counterfactual,
            **chosen.found._asdict(),
        )

    @override
    def scene_resources(self, scene: LabScene, world: World) -> list[Resource]:
        patients = [patient_with_mrn(chart.person) for chart in scene.charts]
        return patients + [result.resource for chart in scene.charts for result in chart.results]

    @override
    def prompt_values(self, p: LabParams, world: World) -> dict[str, str]:
        return {"mrn": p.mrn, "name": p.name}

    def read_results(self, p: LabParams) -> Generator[Action, Json, list[ParsedResult]]:
        """Search for the patient's results and return those that count, the latest first."""
        since = day_before(p.now) if self.window else ""
        return counted_results((yield results_search(p.mrn, self.test, since=since)), self.test)

    @override
    def checks(self, p: LabParams, end: FinishedEpisode) -> Iterator[Check]:
        yield level_check(p, end)

    @override
    def required_records(self, p: LabParams) -> tuple[str, ...]:
        return tuple(f"Observation/{id}" for id in p.deciding)

    @override
    def requires_evidence(self, p: LabParams) -> bool:
        return True

    @override
    def near_misses(self, p: LabParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        *before, finish = gold
        value, *rest = finish.answer or []
        others = {
            f"the value of {result.status} {result.id}": result.value
            for result in p.results
            if result.id not in p.deciding
        }
        others |= {"a little more": value + 0.3, "a little less": value - 0.3, "in another unit": value * 18}
        if p.level is not None:
            others["none"] = NO_RESULT
            yield from ids_only(gold)
            if len(gold) > 2:
                yield "orders first and looks afterwards", [*gold[1:-1], gold[0], finish]
        yield from invalid_timings(gold)
        for name, other in others.items():
            if p.level is None or abs(other - p.level) > p.tolerance + 1e-6:
                yield f"answers {name}", [*before, Finish([other, *rest])]

    @override
    def equivalents(self, p: LabParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        yield from explicit_single_doses(gold)

    @override
    def counterfactual(self, p: LabParams, world: World) -> list[Resource]:
        return [p.counterfactual.resource] if p.counterfactual else []


class LatestResultTask(LabTask):
    """A task that asks for the latest result."""

    kind = "query"
    required_tools = (("search",),)
    required_resources = ("Observation",)
    prohibited_tools = READ_ONLY
    gold_steps = 2
    branches = (NOTHING,) + ("some",) * 5

    @override
    def gold(self, p: LabParams) -> Gold:
        results = yield from self.read_results(p)
        yield Finish([results[0].value if results else NO_RESULT])


def draw_level(filler: ChartFiller, ranges: Sequence[tuple[float, float]]) -> float:
    """Draw a level from one of several ranges; the first range is twice as likely as any other range."""
    return filler.level(*filler.rng.choice((ranges[0], *ranges)))


def _alike(people: Sequence[Person], branches: Sequence[str]) -> bool:
    """Return whether two patients of the same name both have no result that counts."""
    names = [person.name for person, branch in zip(people, branches, strict=True) if branch == NOTHING]
    return len({*names}) < len(names)


def _just_in(filler: ChartFiller) -> ChartPlan:
    ago = filler.rng.randrange(*NEWEST_AGO)
    return ChartPlan([(ago, filler.level())], lone=True)


def level_check(p: LabParams, end: FinishedEpisode) -> Check:
    """Check that the answer starts with the level, or with -1 if no result counts."""
    if p.silent and end.answer == []:
        return Check(name="answer", passed=True, expected=p.level, actual=[])
    return number_check("answer", end.answer[0] if end.answer else None, p.level, p.tolerance)


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
