"""In which order the finds of a world become tasks: balanced, spread over patients, the tricky ones first."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from fhir_gym.errors import TaskError
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.action_reasoning.cases import Category, Direction, Scenario
from fhir_gym.tasks.action_reasoning.mining import Find, finds
from fhir_gym.tasks.action_reasoning.ranges import LABS
from fhir_gym.tasks.action_reasoning.series import chart
from fhir_gym.tasks.splits import TEST_START, Half, split_of

__all__ = ["Pick", "interleaved", "numbered", "pools", "rng_of"]

_LOOK_AHEAD = 24
"""How many finds of a cell are compared to take the best one next."""
_CONTRARY = 6
"""One in so many values out of range is asked about the other side, where it asks for nothing."""
_BELOW: tuple[Category, ...] = ("critically_low", "low")
_ABOVE: tuple[Category, ...] = ("high", "critically_high")
_EVERY: tuple[Direction, ...] = ("low", "high", "outside")

PATTERNS: Mapping[Scenario, str] = {
    "sparse": "AAAAAB",
    "cluster": "A",
    "edge": "AAB",
    "window": "A",
    "general": "AB",
    "demographic": "AB",
}
"""How often there is a value (A) and none (B); of conditional tasks, how often an order is due (A) and not (B)."""

Cells = Mapping[str, Sequence["Pick"]]


@dataclass(frozen=True, slots=True)
class Pick:
    """A find, and on which side of the range an order is due.

    Attributes:
        find: What was found.
        direction: The side; None for tasks that are not conditional.
    """

    find: Find
    direction: Direction | None = None


def rng_of(*parts: object) -> random.Random:
    """A source of chance that is a function of some values."""
    return random.Random(int.from_bytes(blake2b("\n".join(map(str, parts)).encode(), digest_size=16).digest(), "big"))


def numbered(world: World, scenario: Scenario, k: int) -> Pick:
    """The pick of a variation: no find comes twice in a half before its pool is used up.

    Half of the patients are for training, the others for testing, so that no record is trained on that is tested on;
    where one half has nothing of the scenario, both have all.

    Raises:
        TaskError: The world does not have the scenario.
    """
    half = split_of(k)
    a, b = _numbered(_Key(world), scenario, half)
    pattern = PATTERNS[scenario] if a and b else "A" if a else "B"
    place, pool = k - (TEST_START if half == "test" else 0), {"A": a, "B": b}
    rounds, step = divmod(place, len(pattern))
    name = pattern[step]
    chosen = pool[name]
    return chosen[(rounds * pattern.count(name) + pattern[:step].count(name)) % len(chosen)]


def pools(world: World, scenarios: Iterable[Scenario], rng: random.Random) -> tuple[Cells, Cells]:
    """All picks of some scenarios by cell: those with a value or an order (A), and those without (B).

    Raises:
        TaskError: The world does not have one of them.
    """
    with_one: dict[str, list[Pick]] = {}
    without: dict[str, list[Pick]] = {}
    for scenario in scenarios:
        found = [find for lab in LABS for find in finds(world, scenario, lab)]
        if not found:
            raise TaskError(
                f"the world {world.name} has no {scenario} scenario; fhir-gym art mine --world {world.name} says what "
                "it offers"
            )
        for cell, pick, positive in _placed(scenario, found, rng):
            (with_one if positive else without).setdefault(cell, []).append(pick)
    return with_one, without


def interleaved(cells: Cells, rng: random.Random) -> Iterator[Pick]:
    """All picks, one of each cell in turn, of each the one whose patient and traps have come least so far."""
    left = {cell: list(picks) for cell, picks in cells.items()}
    for picks in left.values():
        rng.shuffle(picks)
    order = sorted(left)
    rng.shuffle(order)
    patients: Counter[str] = Counter()
    traps: Counter[str] = Counter()
    while left:
        for cell in [one for one in order if one in left]:
            ahead = left[cell][:_LOOK_AHEAD]
            best = min(range(len(ahead)), key=lambda n: _weight(ahead[n], patients, traps))
            pick = left[cell].pop(best)
            if not left[cell]:
                del left[cell]
            patients[pick.find.patient] += 1
            traps.update(pick.find.traps)
            yield pick


def _weight(pick: Pick, patients: Mapping[str, int], traps: Mapping[str, int]) -> tuple[int, float]:
    """How little a pick is wanted next."""
    return patients[pick.find.patient], -sum(1 / (1 + traps[trap]) for trap in sorted(pick.find.traps))


@dataclass(frozen=True)
class _Key:
    """A world, told apart from others by its content."""

    world: World

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.world.manifest.content_hash == other.world.manifest.content_hash

    def __hash__(self) -> int:
        return hash(self.world.manifest.content_hash)


@lru_cache(maxsize=32)
def _numbered(key: _Key, scenario: Scenario, half: Half) -> tuple[tuple[Pick, ...], tuple[Pick, ...]]:
    rng = rng_of(key.world.manifest.content_hash, scenario, half)
    found = pools(key.world, (scenario,), rng_of(key.world.manifest.content_hash, scenario))
    mine = _patients(key.world, half)
    halved = [_of_patients(cells, mine.__contains__) for cells in found]
    kept = halved if any(halved) else found
    a, b = (tuple(interleaved(cells, rng)) for cells in kept)
    return a, b


def _of_patients(cells: Cells, wanted: Callable[[str], bool]) -> Cells:
    kept = {cell: [pick for pick in picks if wanted(pick.find.patient)] for cell, picks in cells.items()}
    return {cell: picks for cell, picks in kept.items() if picks}


def _patients(world: World, half: Half) -> frozenset[str]:
    """The patients of a half."""
    everybody = list(chart(world).patients)
    rng_of(world.manifest.content_hash, "halves").shuffle(everybody)
    return frozenset(everybody[::2] if half == "train" else everybody[1::2])


def _placed(scenario: Scenario, found: Sequence[Find], rng: random.Random) -> Iterator[tuple[str, Pick, bool]]:
    """Each find as a pick, with its cell and its pool."""
    met: Counter[str] = Counter()
    for find in rng.sample(found, len(found)):
        place = f"{scenario} {find.lab}"
        if find.category is None:
            yield place, Pick(find), find.value is not None
            continue
        cell = f"{place} {find.category}"
        met[cell] += 1
        below, above = find.category in _BELOW, find.category in _ABOVE
        if not below and not above:
            sides = {"borderline_low": _EVERY[::2], "borderline_high": _EVERY[1:]}.get(find.category, _EVERY)
            yield cell, Pick(find, rng.choice(sides)), False
        elif met[cell] % _CONTRARY == 0:
            yield f"{place} contrary", Pick(find, "high" if below else "low"), False
        else:
            own: Direction = "low" if below else "high"
            yield cell, Pick(find, rng.choice((own, own, "outside"))), True
