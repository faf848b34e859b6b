"""Choose the order in which mined candidates become tasks: balanced, hardest first, spread over patients.

A pick is a candidate that is ready to become a task. A cell is a group of similar picks: the same scenario, laboratory
test and category.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple
from weakref import WeakKeyDictionary

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import TEST_START, TrainOrTest, split_of
from fhir_gym.tasks.packs.action_reasoning.cases import Category, Direction, Scenario
from fhir_gym.tasks.packs.action_reasoning.derivation import is_order_due
from fhir_gym.tasks.packs.action_reasoning.mining import MinedCandidate, candidates
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS, find_range, others, range_of
from fhir_gym.tasks.packs.action_reasoning.series import LabHistory, lab_chart

_LOOK_AHEAD = 48
"""Number of picks of a cell to compare when choosing the next one."""
_CONTRARY = 6
"""In each cell, every candidate whose number is a multiple of this asks about the opposite side: no order is due."""
_EVERY: tuple[Direction, ...] = ("low", "high", "outside")
_NEAR: Mapping[Category, tuple[Direction, ...]] = {
    "borderline_low": ("low", "outside"),
    "borderline_high": ("high", "outside"),
}
"""For each borderline category, the sides whose limit is close to the value."""
_CARELESS: Mapping[Scenario, tuple[frozenset[str], ...]] = {
    "edge": (frozenset({"latest regardless of window", "later results"}),),
    "window": (frozenset({"latest regardless of window"}), frozenset({"whole record"})),
    "demographic": (frozenset({"other sex", "other age"}),),
}
"""In these scenarios, a hard candidate also has at least one pitfall of each set."""
_COMMON = (frozenset({"first page"}), frozenset({"void result"}))
"""A hard candidate has at least one pitfall of each set."""

PATTERNS: Mapping[Scenario, str] = {
    "sparse": "AAAAAB",
    "cluster": "A",
    "edge": "AAB",
    "window": "A",
    "general": "AB",
    "demographic": "AB",
}
"""Alternation of positive (A) and negative (B) cases of a scenario.

A positive case has a value or, if it is conditional, requires an order.
"""

Cells = Mapping[str, Sequence["Pick"]]


@dataclass(frozen=True, slots=True)
class Pick:
    """A candidate that is ready to become a task.

    Attributes:
        is_past: Whether the reference time is in the past.
        direction: Side of the range that requires an order; None if the task is not conditional.
    """

    candidate: MinedCandidate
    is_past: bool
    direction: Direction | None = None

    @property
    def record(self) -> str:
        """The latest result that determines the answer (``Observation/OBS0000017``); empty if no result counts."""
        return f"Observation/{self.candidate.ids[-1]}" if self.candidate.ids else ""


def rng_of(*parts: object) -> random.Random:
    """Return a random generator seeded by the given values."""
    return random.Random(int.from_bytes(blake2b("\n".join(map(str, parts)).encode(), digest_size=16).digest(), "big"))


def pick_for(world: World, scenario: Scenario, k: int) -> Pick:
    """Return the pick of a variation; a split uses all its candidates before it repeats one.

    Half of the patients are for training and the other half for testing, so training never uses a test record. If one
    half has no candidate of the scenario, both splits use all patients.

    Raises:
        TaskError: The world has no candidate of the scenario.
    """
    pool, place = _pool(world, scenario, k)
    return pool.picks[place % len(pool.picks)]


def equally_likely(world: World, scenario: Scenario, k: int) -> tuple[str, ...]:
    """Return the records (``Observation/OBS0000017``) from which the variation's target record was chosen.

    A target record is the latest result that determines the answer. The returned records are the targets of all
    positive variations in the split if this variation is positive, and of all negative variations otherwise. Every
    record is used once before any is repeated. The tuple is empty if no result counts in the variation.
    """
    return _pool(world, scenario, k)[0].records


def _pool(world: World, scenario: Scenario, k: int) -> tuple[_Pool, int]:
    """Return the pool that a variation's pick comes from, and the position of the pick in the pool."""
    half = split_of(k)
    a, b = _numbered(world, scenario, half)
    pattern = PATTERNS[scenario] if a.picks and b.picks else "A" if a.picks else "B"
    rounds, step = divmod(k - (TEST_START if half == "test" else 0), len(pattern))
    name = pattern[step]
    turns = rounds * pattern.count(name) + pattern[:step].count(name)
    return (a if name == "A" else b), turns


def pools(world: World, scenarios: Iterable[Scenario], rng: random.Random) -> tuple[Cells, Cells]:
    """Return the positive (A) and the negative (B) picks of some scenarios, each by cell (see `PATTERNS`).

    Raises:
        TaskError: The world has no candidate for one of the scenarios.
    """
    with_one: dict[str, list[Pick]] = {}
    without: dict[str, list[Pick]] = {}
    for scenario in scenarios:
        mined = [candidate for lab in LABS for candidate in candidates(world, scenario, lab)]
        if not mined:
            raise TaskError(
                f"the world {world.name} has no {scenario} candidates; "
                f"`fhir-gym research art mine --world {world.name}` lists what it has"
            )
        for cell, pick, positive in _placed(scenario, mined, lab_chart(world), rng):
            (with_one if positive else without).setdefault(cell, []).append(pick)
    return with_one, without


def interleaved(cells: Cells, rng: random.Random) -> Iterator[Pick]:
    """Yield all picks, from one cell after the other.

    Within a cell, harder picks come first, then picks with rarely used times, patients and pitfalls.
    """
    left = {cell: list(picks) for cell, picks in cells.items()}
    for picks in left.values():
        rng.shuffle(picks)
        picks.sort(key=lambda pick: _ease(pick.candidate))
    order = sorted(left)
    rng.shuffle(order)
    patients: Counter[str] = Counter()
    moments: Counter[tuple[str, bool]] = Counter()
    pitfalls: Counter[str] = Counter()

    def weight(cell: str, pick: Pick) -> tuple[int, int, int, float]:
        """Return a sort key; the pick with the smallest key comes next."""
        rare = sum(1 / (1 + pitfalls[pitfall]) for pitfall in sorted(pick.candidate.pitfalls))
        return _ease(pick.candidate), moments[cell, pick.is_past], patients[pick.candidate.patient], -rare

    while left:
        for cell in [cell for cell in order if cell in left]:
            ahead = left[cell][:_LOOK_AHEAD]
            best = min(range(len(ahead)), key=lambda n: weight(cell, ahead[n]))
            pick = left[cell].pop(best)
            if not left[cell]:
                del left[cell]
            patients[pick.candidate.patient] += 1
            moments[cell, pick.is_past] += 1
            pitfalls.update(pick.candidate.pitfalls)
            yield pick


def _ease(candidate: MinedCandidate) -> int:
    """Return the number of important pitfalls that a candidate lacks; the hardest candidates lack none."""
    return sum(not ways & candidate.pitfalls for ways in (*_COMMON, *_CARELESS.get(candidate.scenario, ())))


class _Pool(NamedTuple):
    """Picks in order of use, and their target records."""

    picks: tuple[Pick, ...]
    records: tuple[str, ...]


_Pools = tuple[_Pool, _Pool]
_known: WeakKeyDictionary[LabHistory, dict[tuple[Scenario, TrainOrTest], _Pools]] = WeakKeyDictionary()


def _numbered(world: World, scenario: Scenario, half: TrainOrTest) -> _Pools:
    """Return the pools of a split, cached together with the world's laboratory results."""
    orders = _known.setdefault(lab_chart(world), {})
    if (scenario, half) not in orders:
        orders[scenario, half] = _in_order(world, scenario, half)
    return orders[scenario, half]


def _in_order(world: World, scenario: Scenario, half: TrainOrTest) -> _Pools:
    rng = rng_of(world.manifest.content_hash, scenario, half)
    pools_of_scenario = pools(world, (scenario,), rng_of(world.manifest.content_hash, scenario))
    mine = _patients(world, half)
    halved = [_of_patients(cells, mine.__contains__) for cells in pools_of_scenario]
    kept = halved if any(halved) else pools_of_scenario
    a, b = (_once_each(interleaved(cells, rng)) for cells in kept)
    return a, b


def _once_each(picks: Iterable[Pick]) -> _Pool:
    """Keep only the first pick of each target record, so that all records are equally frequent."""
    met: set[str] = set()
    kept = []
    for pick in picks:
        if pick.record not in met:
            kept.append(pick)
        if pick.record:
            met.add(pick.record)
    return _Pool(tuple(kept), tuple(record for pick in kept if (record := pick.record)))


def _of_patients(cells: Cells, belongs: Callable[[str], bool]) -> Cells:
    kept = {cell: [pick for pick in picks if belongs(pick.candidate.patient)] for cell, picks in cells.items()}
    return {cell: picks for cell, picks in kept.items() if picks}


def _patients(world: World, half: TrainOrTest) -> frozenset[str]:
    """Return the patients of a split."""
    everybody = list(lab_chart(world).patients)
    rng_of(world.manifest.content_hash, "halves").shuffle(everybody)
    return frozenset(everybody[::2] if half == "train" else everybody[1::2])


def _placed(
    scenario: Scenario, mined: Sequence[MinedCandidate], of_world: LabHistory, rng: random.Random
) -> Iterator[tuple[str, Pick, bool]]:
    """Yield for each candidate its cell, its pick and whether the pick is positive."""
    met: Counter[str] = Counter()
    for candidate in rng.sample(mined, len(mined)):
        place, is_past = f"{scenario} {candidate.lab}", candidate.as_of < of_world.now
        if candidate.category is None:
            yield place, Pick(candidate, is_past), candidate.value is not None
            continue
        cell = f"{place} {candidate.category}"
        met[cell] += 1
        asks, asks_not = _sides(candidate, of_world)
        if asks and met[cell] % _CONTRARY:
            yield cell, Pick(candidate, is_past, rng.choice(asks)), True
        else:
            yield f"{place} contrary" if asks else cell, Pick(candidate, is_past, rng.choice(asks_not)), False


def _sides(candidate: MinedCandidate, of_world: LabHistory) -> tuple[Sequence[Direction], Sequence[Direction]]:
    """Return the sides for which an order is due, and the sides for which no order is due.

    Both are restricted to sides for which a wrong range would lead to another decision or, if there are none, to sides
    with a limit close to the value.
    """
    sex, age = of_world.person(candidate.patient).sex, of_world.age(candidate.patient)
    row, value = range_of(candidate.lab, sex, age), candidate.value or 0.0
    asks = [side for side in _EVERY if is_order_due(row, value, side)]
    asks_not = [side for side in _EVERY if side not in asks]
    rivals = [find_range(candidate.lab, sex, age) for sex in ("female", "male")]
    rivals += [reference_range for reference_range in others(row) if reference_range.sex in (None, row.sex)]

    def telling(sides: list[Direction]) -> list[Direction]:
        told = [
            side
            for side in sides
            if any(rival and is_order_due(rival, value, side) != is_order_due(row, value, side) for rival in rivals)
        ]
        return told or [side for side in sides if side in _NEAR.get(candidate.category or "normal", _EVERY)] or sides

    return telling(asks), telling(asks_not)
