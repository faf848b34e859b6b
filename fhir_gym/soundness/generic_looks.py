"""Looks that ignore the prompt, and how often they show a counterfactual or a similar record of the scene."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from math import sqrt
from typing import Any, ClassVar

import orjson

from fhir_gym.actions import Action, Get
from fhir_gym.fhir import World
from fhir_gym.fhir.clock import moment_of
from fhir_gym.fhir.definitions import search_parameters
from fhir_gym.fhir.messages import Request
from fhir_gym.soundness.policy_runner import WRITES, Policy, PolicyRunner, script
from fhir_gym.soundness.probe.scenes import reference_of
from fhir_gym.soundness.task_check import Progress
from fhir_gym.soundness.workers import run_jobs
from fhir_gym.tasks.authoring import instant
from fhir_gym.tasks.core.task import Task
from fhir_gym.tasks.core.variation import Variation
from fhir_gym.tasks.grading.responses import ParsedResponse
from fhir_gym.types import Json, Resource

_SORTABLE = frozenset({"date", "string", "number", "quantity", "token", "uri"})
_COUNTS = (1, 3, 20)
_DAYS = (0, 1, 30, 365)
_NEAREST = 2
_LIKE = ("status", "intent", "code", "category", "vaccineCode", "type")
"""Elements in which a similar record equals a counterfactual, as far as the scene has such records."""
_FEWEST = 3
_RARE = 3.7
"""A look leaks if it shows counterfactuals more often than similar records by this number of standard errors.

The standard error is that of the difference of two shares. One of ten thousand looks leaks by chance."""
_LEAST = 0.05
"""A smaller difference of the two shares is no leak."""


def generic_looks(resource_type: str, world: World) -> Iterator[str]:
    """Yield URLs of reads and searches that depend only on the type of a record and on the present."""
    yield from (f"/_history?_count={count}" for count in (20, 200))
    yield f"/{resource_type}/_history?_count=20"
    moments = [instant(world.now - timedelta(days=days)) for days in _DAYS]
    yield from (f"/{resource_type}?_lastUpdated=ge{moment}&_count=20" for moment in moments)
    keys = ["_lastUpdated", "_id"]
    for name, parameter in sorted(search_parameters(resource_type).items()):
        if name.startswith("_"):
            continue
        yield f"/{resource_type}?{name}:missing=true&_count=20"
        yield f"/{resource_type}?{name}:missing=false&_count=20"
        if parameter.type in _SORTABLE:
            keys.append(name)
        if parameter.type == "date":
            yield from (f"/{resource_type}?{name}={way}{moments[0]}&_count=20" for way in ("ge", "lt"))
            yield f"/{resource_type}?{name}=ge{moments[1]}&{name}=lt{moments[0]}&_count=20"
    for key in keys:
        yield from (f"/{resource_type}?_sort={way}{key}&_count={count}" for way in ("", "-") for count in _COUNTS)


def similar_records(task: Task[Any], variation: Variation, counterfactual: Resource, world: World) -> list[str]:
    """Return references to the records that a search cannot tell from a counterfactual without the prompt.

    They are its siblings; see `Task.siblings`. Without siblings of its type, they are records of the scene, or of the
    world for a task without a scene. For each of status, intent, code, category and type, only the records with the
    counterfactual's value remain, if there are at least three. The two remaining records with the nearest dates are
    returned.
    """
    kind = counterfactual["resourceType"]
    siblings = sorted(name for name in task.siblings(variation.params) if name.startswith(f"{kind}/"))
    if siblings:
        return siblings
    similar = [record for record in variation.setup or _records_of(world, kind) if record["resourceType"] == kind]
    for name in _LIKE:
        alike = [record for record in similar if record.get(name) == counterfactual.get(name)]
        similar = alike if len(alike) >= _FEWEST else similar
    return [*map(reference_of, _nearest(similar, counterfactual))]


@lru_cache(maxsize=4)
def _records_of(world: World, kind: str) -> list[Resource]:
    return [orjson.loads(body) for body in world.resources(kind)]


def _nearest(similar: Sequence[Resource], counterfactual: Resource) -> Sequence[Resource]:
    """Return the records with the nearest dates; all of them if there are few, or if the counterfactual has no date."""
    moment = _date_of(counterfactual)
    if moment is None:
        return similar
    dated = [(abs(date - moment), reference_of(resource)) for resource in similar if (date := _date_of(resource))]
    kept = {name for _, name in sorted(dated)[:_NEAREST]}
    return [resource for resource in similar if reference_of(resource) in kept] if kept else similar


def _date_of(record: Resource) -> datetime | None:
    dates = {**record.get("period", {}), **record}
    moments = (moment_of(dates[name]) for name in sorted(dates) if name != "birthDate")
    return next((moment for moment in moments if moment), None)


@dataclass(frozen=True, slots=True)
class LookShares:
    """How often a generic look shows counterfactuals and similar records.

    Attributes:
        look: The URL, or a value that a search could ask for (``Slot.start 16:40:00``).
        variations: Number of variations with counterfactuals.
        counterfactual: Mean share of the counterfactuals that the look shows.
        similar: Mean share of similar records that it shows.
        wins: Share of the variations in which the look and the right answer succeed.
    """

    look: str
    variations: int
    counterfactual: float
    similar: float
    wins: float = 0.0

    @property
    def excess(self) -> float:
        """By how much `counterfactual` exceeds what chance can explain."""
        pooled = (self.counterfactual + self.similar) / 2
        chance = max(2 * pooled * (1 - pooled), 1 / self.variations)
        return self.counterfactual - self.similar - max(_LEAST, _RARE * sqrt(chance / self.variations))


@dataclass(frozen=True, slots=True)
class TaskLooks:
    """All generic looks of a task, with the worst first.

    Attributes:
        env: The pack.
        task: Key of the task.
        looks: The looks; empty if no variation has counterfactuals.
    """

    env: str
    task: str
    looks: tuple[LookShares, ...]

    columns: ClassVar = (
        "env",
        "task",
        "variations",
        "looks",
        "worst look",
        "counterfactual",
        "similar",
        "wins",
        "leaks",
    )

    @property
    def leaks(self) -> tuple[LookShares, ...]:
        """The looks that show counterfactuals more often than similar records."""
        return tuple(look for look in self.looks if look.excess > 0)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON output."""
        return asdict(self) | {"leaks": [leak.look for leak in self.leaks]}

    def row(self) -> tuple[str, ...]:
        """Return the values of `columns`; ``wins`` is that of the look that wins most often."""
        if not self.looks:
            return (self.env, self.task, "0", "", "", "", "", "", "0")
        worst, most = self.looks[0], max(look.wins for look in self.looks)
        shares = (f"{share:.0%}" for share in (worst.counterfactual, worst.similar, most))
        counts = (str(worst.variations), str(len(self.looks)))
        return (self.env, self.task, *counts, worst.look, *shares, str(len(self.leaks)))


def measure_tasks(
    world: World,
    chosen: Sequence[Task[Any]],
    numbers: Sequence[int],
    *,
    workers: int = 0,
    progress: Progress | None = None,
) -> Iterator[TaskLooks]:
    """Measure all generic looks for tasks without a simulation, whose requests are those of the other tasks.

    Args:
        world: The world.
        chosen: The tasks.
        numbers: Numbers of the variations.
        workers: Number of worker processes; 0 to run in this process.
        progress: Progress callback.
    """
    jobs = [(task, numbers) for task in chosen if not task.is_live]
    parts = run_jobs(measure_looks, world, jobs, dict.fromkeys(task.pack for task in chosen), workers)
    for done, part in enumerate(parts, 1):
        if progress is not None:
            progress(f"{part.env} {part.task}", done, len(jobs))
        yield part


def measure_looks(world: World, task: Task[Any], numbers: Sequence[int]) -> TaskLooks:
    """Measure all generic looks for a task."""
    shares: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    values: list[tuple[Mapping[str, float], Mapping[str, float]]] = []
    for number in numbers:
        variation = task.variation(number, world)
        supposed = [*variation.placed(world, task.counterfactual(variation.params, world)).values()]
        similar = {reference_of(record): similar_records(task, variation, record, world) for record in supposed}
        supposed = [record for record in supposed if similar[reference_of(record)]]
        if supposed:
            with PolicyRunner(task, variation, world) as runner:
                gold = runner.gold().actions if task.requires_evidence(variation.params) else ()
                for look, shown, alike in _shown(runner, supposed, similar):
                    shares[look].append((shown, alike, bool(shown and gold) and _wins(runner, look, gold)))
                values.append(_values(runner, supposed, similar))
    summaries = [_summary(look, rows) for look, rows in shares.items()]
    common = Counter(value for own, _ in values for value in own)
    for value in sorted(value for value, count in common.items() if count > 1):
        summaries.append(_summary(value, [(own.get(value, 0.0), alike.get(value, 0.0), 0.0) for own, alike in values]))
    summaries.sort(key=lambda shares: (-shares.excess, shares.look))
    return TaskLooks(task.pack, task.key, tuple(summaries))


def _shown(
    runner: PolicyRunner, supposed: Sequence[Resource], similar: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, float, float]]:
    """Yield the share of the counterfactuals, and the mean share of records like them, that each look shows."""
    with runner.variation.open_session(runner.world) as session:
        session.load(supposed, keep_next_id=True)
        types: dict[str, list[str]] = defaultdict(list)
        for name in map(reference_of, supposed):
            types[name.partition("/")[0]].append(name)
        for resource_type, own in types.items():
            for look in generic_looks(resource_type, runner.world):
                path, _, query = look.partition("?")
                shown = ParsedResponse(session.handle(Request("GET", path, query))).returned_resources
                there = sum(name in shown for name in own) / len(own)
                yield look, there, sum(_share(shown, similar[name]) for name in own) / len(own)


def _share(shown: Container[str], names: Sequence[str]) -> float:
    return sum(name in shown for name in names) / len(names)


def _wins(runner: PolicyRunner, look: str, gold: Sequence[Action]) -> bool:
    """Whether an agent succeeds that looks, and then writes and answers what is right."""
    writes = [action for action in gold[:-1] if action.kind in WRITES]
    (run,) = runner.run(Policy("looks at what is new", look, script([Get(look), *writes, gold[-1]])))
    return run.verdict.success


def _values(
    runner: PolicyRunner, supposed: Sequence[Resource], similar: Mapping[str, Sequence[str]]
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the values that counterfactuals have, and those of similar records, each with its share."""
    now = runner.world.now
    stored = {reference_of(resident): resident for resident in (*runner.variation.setup, *_residents(runner, supposed))}
    own, alike = defaultdict[str, float](float), defaultdict[str, float](float)
    for resource in supposed:
        names = similar[reference_of(resource)]
        for value in {*_leaves(resource["resourceType"], resource, now)}:
            own[value] += 1 / len(supposed)
        for name in names:
            for value in {*_leaves(resource["resourceType"], stored[name], now)}:
                alike[value] += 1 / len(supposed) / len(names)
    return own, alike


def _residents(runner: PolicyRunner, supposed: Sequence[Resource]) -> Iterator[Resource]:
    for kind in () if runner.variation.setup else {resource["resourceType"] for resource in supposed}:
        yield from _records_of(runner.world, kind)


def _leaves(path: str, value: Json, now: datetime) -> Iterator[str]:
    """Yield the values in a record without ids; an instant gives its time of day and its distance from the present."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name not in ("id", "meta", "reference"):
                yield from _leaves(f"{path}.{name}", item, now)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(path, item, now)
    elif isinstance(value, str) and "T" in value and (moment := moment_of(value)):
        yield from (f"{path} {moment:%H:%M:%S}", f"{path} {(moment - now).total_seconds():+.0f} s")
    else:
        yield f"{path} {value}"


def _summary(look: str, rows: Sequence[tuple[float, float, float]]) -> LookShares:
    shown, alike, wins = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return LookShares(look, len(rows), shown, alike, wins)
