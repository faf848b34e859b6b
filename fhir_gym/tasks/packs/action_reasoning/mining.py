"""Mine a world for difficult records: find candidates for each scenario of the paper (section 3.1).

A candidate asks about the world's current time or about a past time. Candidates at past times cover situations that are
rare at the current time: a few for each patient and test, spread over the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from weakref import WeakKeyDictionary

from fhir_gym.arguments import require_name
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import instant
from fhir_gym.tasks.packs.action_reasoning.cases import Category, Family, Scenario
from fhir_gym.tasks.packs.action_reasoning.pitfalls import (
    PITFALLS,
    Misread,
    Question,
    find_pitfalls,
    is_halfway,
    mean_of,
    range_pitfalls,
)
from fhir_gym.tasks.packs.action_reasoning.ranges import CATEGORIES, DEMOGRAPHIC, LABS, find_range
from fhir_gym.tasks.packs.action_reasoning.series import LabHistory, LabResult, Series, lab_chart
from fhir_gym.types import Json

DAY_HOURS = 24.0
"""Length in hours of the time window in edge and aggregation questions."""

FAMILY: Mapping[Scenario, Family] = MappingProxyType(
    {
        "sparse": "retrieval",
        "cluster": "retrieval",
        "edge": "retrieval",
        "window": "aggregation",
        "general": "conditional",
        "demographic": "conditional",
    }
)
"""Kind of task of each scenario."""

OFFERED: Mapping[Scenario, tuple[str, ...]] = MappingProxyType(
    {
        "sparse": tuple(LABS),
        "cluster": tuple(LABS),
        "edge": tuple(LABS),
        "window": ("GLU", "K", "NA"),
        "general": tuple(lab for lab in LABS if lab not in DEMOGRAPHIC),
        "demographic": DEMOGRAPHIC,
    }
)
"""Laboratory tests to mine for each scenario."""

_FEW = 3
"""A sparse record has at most this many results; a window for a mean has at least this many."""
_EMPTY = 6
"""For every six patients with results, the sparse candidates include one patient without results."""
_CLUSTER = timedelta(hours=2)
_EDGE = (timedelta(hours=23), timedelta(hours=25))
_INSIDE = (23 * 60, 23 * 60 + 25, 23 * 60 + 52, 24 * 60)
_OUTSIDE = (24 * 60 + 1, 24 * 60 + 8, 24 * 60 + 35, 25 * 60)
"""Minutes from a result to the reference time of an edge question; the result is just outside the window."""
_OF_THE_PAST: Mapping[Scenario, int] = MappingProxyType(
    {"sparse": 1, "cluster": 2, "edge": 2, "window": 4, "general": 1, "demographic": 1}
)
"""Maximum number of past candidates for each list of `_Miner._kinds`."""
_CATEGORIES = 3
"""Maximum number of categories for which to mine a patient's past."""


@dataclass(frozen=True, slots=True)
class MinedCandidate:
    """A patient, a laboratory test and a reference time, about which a task can ask.

    Attributes:
        family: Kind of task.
        scenario: What makes the record difficult.
        lab: Name of the test.
        patient: Id of the patient.
        as_of: Reference time of the question: the world's current time or a past time.
        window_hours: Length of the time window; None if the question has no window.
        ids: Ids of the Observations that determine the answer, oldest first; empty if no result counts.
        value: The latest value, or the mean rounded to `pitfalls.mean_digits`; None if no result counts.
        category: Position of the value relative to the range; None if the task is not conditional.
        pitfalls: The shortcuts in `pitfalls.PITFALLS` that give a wrong answer. In conditional tasks, a wrong range
            is a pitfall if the value lies on another side of it.
    """

    family: Family
    scenario: Scenario
    lab: str
    patient: str
    as_of: datetime
    window_hours: float | None
    ids: tuple[str, ...]
    value: float | None
    category: Category | None
    pitfalls: frozenset[str]


@dataclass(frozen=True, slots=True)
class MiningResult:
    """The candidates of one scenario and test, and the number of rejected candidates by reason.

    Candidates at the current time come first.
    """

    candidates: tuple[MinedCandidate, ...]
    dropped: Mapping[str, int]


def candidates(world: World, scenario: Scenario, lab: str) -> tuple[MinedCandidate, ...]:
    """Return the candidates of one scenario and test.

    Raises:
        UnknownNameError: The scenario or test does not exist.
    """
    return mine(world, scenario, lab).candidates


def mine(world: World, scenario: Scenario, lab: str) -> MiningResult:
    """Mine one scenario and test; the result is cached together with the world's laboratory results.

    Raises:
        UnknownNameError: The scenario or test does not exist.
    """
    require_name("scenario", scenario, OFFERED)
    require_name("lab", lab, LABS)
    of_world = lab_chart(world)
    results = _known.setdefault(of_world, {})
    if (scenario, lab) not in results:
        offered = lab in OFFERED[scenario]
        results[scenario, lab] = (
            _Miner(of_world, scenario, lab).mine() if offered else MiningResult((), MappingProxyType({}))
        )
    return results[scenario, lab]


_known: WeakKeyDictionary[LabHistory, dict[tuple[str, str], MiningResult]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Offer:
    """Statistics of one scenario and test.

    `present` is the number of candidates at the current time. `absent` is the number of candidates for which no result
    counts.
    """

    scenario: Scenario
    lab: str
    candidates: int
    present: int
    patients: int
    absent: int
    categories: Mapping[Category, int]
    pitfalls: Mapping[str, int]
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MiningReport:
    """Statistics of all scenarios and tests of a world."""

    world: str
    now: datetime
    offers: tuple[Offer, ...]

    columns = ("scenario", "lab", "candidates", "of now", "patients", "no result", "dropped", "why")
    """Column headers of the scenario table."""

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the scenario table."""
        return [
            (
                offer.scenario,
                offer.lab,
                *map(str, (offer.candidates, offer.present, offer.patients, offer.absent, sum(offer.dropped.values()))),
                "; ".join(f"{reason}: {count}" for reason, count in offer.dropped.items()),
            )
            for offer in self.offers
        ]

    category_columns = ("lab", *(category.replace("_", " ") for category in CATEGORIES))
    """Column headers of the category table."""

    def category_rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the category table, which covers conditional tasks."""
        return [
            (offer.lab, *(str(offer.categories[category]) for category in CATEGORIES))
            for offer in self.offers
            if FAMILY[offer.scenario] == "conditional"
        ]

    pitfall_columns = ("scenario", "candidates", *PITFALLS)
    """Column headers of the pitfall table."""

    def pitfall_rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the pitfall table."""
        rows: list[tuple[str, ...]] = []
        for scenario in OFFERED:
            offers = [offer for offer in self.offers if offer.scenario == scenario]
            caught = (sum(offer.pitfalls[name] for offer in offers) for name in PITFALLS)
            rows.append((scenario, str(sum(offer.candidates for offer in offers)), *map(str, caught)))
        return rows

    def to_json(self) -> dict[str, Json]:
        """Return the report as JSON data."""
        offers = [
            {name: dict(value) if isinstance(value, Mapping) else value for name, value in _fields(offer)}
            for offer in self.offers
        ]
        return {"world": self.world, "now": instant(self.now), "offers": offers}


def mining_report(world: World) -> MiningReport:
    """Mine all scenarios and tests of a world."""
    offers = (_offer(world, scenario, lab) for scenario, labs in OFFERED.items() for lab in labs)
    return MiningReport(world.name, world.now, tuple(offers))


def _offer(world: World, scenario: Scenario, lab: str) -> Offer:
    mined = mine(world, scenario, lab)
    categories = Counter(candidate.category for candidate in mined.candidates)
    pitfalls = Counter(pitfall for candidate in mined.candidates for pitfall in candidate.pitfalls)
    return Offer(
        scenario,
        lab,
        candidates=len(mined.candidates),
        present=sum(candidate.as_of == world.now for candidate in mined.candidates),
        patients=len({candidate.patient for candidate in mined.candidates}),
        absent=sum(not candidate.ids for candidate in mined.candidates),
        categories={name: categories[name] for name in CATEGORIES} if FAMILY[scenario] == "conditional" else {},
        pitfalls={name: pitfalls[name] for name in PITFALLS},
        dropped=mined.dropped,
    )


_JSON_NAMES = {"candidates": "finds", "pitfalls": "traps"}
"""Names in JSON output that differ from the attributes, for compatibility."""


def _fields(offer: Offer) -> Iterator[tuple[str, object]]:
    return ((_JSON_NAMES.get(field.name, field.name), getattr(offer, field.name)) for field in fields(offer))


class _Miner:
    """Finds the candidates of one scenario and test."""

    def __init__(self, of_world: LabHistory, scenario: Scenario, lab: str) -> None:
        self.chart, self.now = of_world, of_world.now
        self.scenario, self.lab = scenario, lab
        self.hours = DAY_HOURS if scenario in ("edge", "window") else None
        self.series = of_world.series(lab)
        self.misread: dict[str, Misread] = {}
        self.dropped: Counter[str] = Counter()

    def mine(self) -> MiningResult:
        """Return all candidates."""
        present = {series.patient: self._of_present(series) for series in self.series.values()}
        past = [
            candidate for series in self.series.values() for candidate in self._of_past(series, present[series.patient])
        ]
        mined = [candidate for candidate in (*present.values(), *self._of_nobody()) if candidate is not None]
        return MiningResult((*mined, *past), MappingProxyType(dict(sorted(self.dropped.items()))))

    def _of_present(self, series: Series) -> MinedCandidate | None:
        """Return the candidate at the world's current time, if any."""
        until_now = series.upto(self.now)
        match self.scenario:
            case "sparse":
                fits = len(until_now) <= _FEW
            case "cluster":
                fits = _is_clustered(until_now, len(until_now) - 1)
            case "edge":
                fits = bool(until_now) and _EDGE[0] <= self.now - until_now[-1].taken <= _EDGE[1]
            case "window":
                fits = len(series.window(self.now, DAY_HOURS)) >= _FEW
            case _:
                fits = bool(until_now)
        return self._candidate(series, self.now) if fits else None

    def _of_nobody(self) -> Iterator[MinedCandidate | None]:
        """Yield sparse candidates for a few patients who have no results."""
        if self.scenario == "sparse":
            without = [patient for patient in self.chart.patients if patient not in self.series]
            for number in islice(_spread(len(without)), -(-len(self.series) // _EMPTY)):
                yield self._candidate(Series(without[number], self.lab), self.now)

    def _of_past(self, series: Series, present: MinedCandidate | None) -> Iterator[MinedCandidate]:
        """Yield a few candidates from each list of past times, at times that are far apart."""
        seen: set[datetime] = set()
        for moments in self._kinds(series, present):
            fresh = [moment for moment in moments if moment not in seen]
            candidates = (self._candidate(series, fresh[number]) for number in _spread(len(fresh)))
            chosen = list(
                islice((candidate for candidate in candidates if candidate is not None), _OF_THE_PAST[self.scenario])
            )
            seen |= {candidate.as_of for candidate in chosen}
            yield from chosen

    def _kinds(self, series: Series, present: MinedCandidate | None) -> Iterator[list[datetime]]:
        """Yield lists of possible past reference times; each list is for another kind of situation."""
        counted = series.counted
        match self.scenario:
            case "sparse":
                if len(counted) > _FEW:
                    yield self._soon_after(series, range(_FEW))
            case "cluster":
                yield self._soon_after(series, [n for n in range(len(counted)) if _is_clustered(counted, n)])
                yield self._soon_after(series, [n for n in _disputed(series) if _is_clustered(counted, n)])
            case "edge":
                yield self._at_edge(series, _INSIDE)
                yield self._at_edge(series, _OUTSIDE)
            case "window":
                for numbers in (range(len(counted)), _disputed(series)):
                    moments = self._soon_after(series, numbers)
                    yield [moment for moment in moments if len(series.window(moment, DAY_HOURS)) >= _FEW]
            case _:
                yield from self._rare(series, present)
                yield self._soon_after(series, _disputed(series))

    def _soon_after(self, series: Series, numbers: Iterable[int]) -> list[datetime]:
        """Return a time shortly after each numbered result was issued; it precedes the next result and `now`."""
        moments = []
        for number in numbers:
            issued = series.counted[number].issued
            gap = self._until(series, number) - issued
            ahead = min(timedelta(minutes=5 + number * 13 % 50), timedelta(seconds=gap // timedelta(seconds=2)))
            if timedelta() < ahead < gap:
                moments.append(issued + ahead)
        return moments

    def _until(self, series: Series, number: int) -> datetime:
        """Return the time of the result that follows a numbered result, but at most `now`."""
        following = series.counted[number + 1].taken if number + 1 < len(series.counted) else self.now
        return min(following, self.now)

    def _at_edge(self, series: Series, minutes: tuple[int, ...]) -> list[datetime]:
        """Return times that are some of the given `minutes` after a result and precede the next result."""
        counted, moments = series.counted, []
        for number, result in enumerate(counted):
            moment = result.taken + timedelta(minutes=minutes[(number + len(counted)) % len(minutes)])
            if moment < self._until(series, number):
                moments.append(moment)
        return moments

    def _rare(self, series: Series, present: MinedCandidate | None) -> Iterator[list[datetime]]:
        """Yield lists of past times at which the value's category differed from the present one, rarest first."""
        own = self._categories(series)
        now = present.category if present else None
        categories = [category for category in self._rarity if category in own and category != now]
        for category in categories[:_CATEGORIES]:
            yield self._soon_after(series, [n for n, own_category in enumerate(own) if own_category == category])

    def _categories(self, series: Series) -> list[Category]:
        """Return the category of each result that counts; empty if no range applies to the patient."""
        row = find_range(self.lab, self.chart.person(series.patient).sex, self.chart.age(series.patient))
        return [row.category(result.value) for result in series.counted] if row else []

    @cached_property
    def _rarity(self) -> list[Category]:
        """The categories that occur in the results of the test, rarest first."""
        seen = Counter(category for series in self.series.values() for category in self._categories(series))
        return sorted(seen, key=lambda category: (seen[category], CATEGORIES.index(category)))

    def _candidate(self, series: Series, as_of: datetime) -> MinedCandidate | None:
        """Return the candidate at a reference time; if it must be rejected, count the reason and return None."""
        family = FAMILY[self.scenario]
        misread = self.misread.setdefault(series.patient, Misread(series))
        question = Question(family, series, misread, self.now, as_of, self.hours)
        used, value = question.used(), question.answer()
        pitfalls, category = find_pitfalls(question), None
        reason = self._reason(question)
        if family == "conditional" and value is not None:
            sex, age = self.chart.person(series.patient).sex, self.chart.age(series.patient)
            row = find_range(self.lab, sex, age)
            if row is None:
                reason = reason or "no range for the patient's sex and age"
            else:
                category = row.category(value)
                pitfalls |= range_pitfalls(row, age, value)
        if reason:
            self.dropped[reason] += 1
            return None
        ids = tuple(result.id for result in used)
        return MinedCandidate(
            family,
            self.scenario,
            self.lab,
            series.patient,
            as_of,
            self.hours,
            ids,
            value,
            category,
            frozenset(pitfalls),
        )

    def _reason(self, question: Question) -> str | None:
        """Return why the question is ambiguous; None if it is not."""
        series, as_of, used = question.series, question.as_of, question.used()
        start = as_of - timedelta(hours=self.hours) if self.hours is not None else None
        if question.family == "aggregation":
            if start in (used[0].taken, used[-1].taken) or as_of == used[-1].taken:
                return "a result on an end of the window"
            digits = LABS[self.lab].digits
            if any(is_halfway(mean_of(used), places) for places in (digits, digits + 1)):
                return "a mean on a rounding half"
        elif used and self.scenario != "sparse":
            start = used[-1].taken
        return series.objection(start, as_of, self.now)


def _is_clustered(readings: tuple[LabResult, ...], number: int) -> bool:
    """Return whether a result was taken within two hours of the previous one."""
    return number > 0 and readings[number].taken - readings[number - 1].taken <= _CLUSTER


def _disputed(series: Series) -> list[int]:
    """Return the indices of results for which a withdrawn or replaced result of the same instant has another value."""
    other: dict[datetime, set[float]] = {}
    for result in (*series.void, *series.superseded):
        other.setdefault(result.taken, set()).add(result.value)
    return [
        number
        for number, result in enumerate(series.counted)
        if result.id not in series.ambiguous and other.get(result.taken, set()) - {result.value}
    ]


def _spread(size: int) -> Iterator[int]:
    """Yield the numbers below `size` in bit-reversed order, in which early numbers are far apart."""
    bits = max(0, size - 1).bit_length()
    for number in range(1 << bits):
        turned = int(f"{number:0{bits}b}"[::-1], 2) if bits else number
        if turned < size:
            yield turned
