"""Numbered variations of tasks, and the cache of those that were used recently."""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, Self, TypeAlias, overload

from typing_extensions import TypeIs, override

from fhir_gym.fhir import FhirSession, Session, World
from fhir_gym.fhir.store import Snapshot
from fhir_gym.garbage_collection import garbage_collection_paused
from fhir_gym.tasks.core.params import Params
from fhir_gym.tasks.core.placing import placed_among
from fhir_gym.tasks.core.splits import TrainOrTest
from fhir_gym.types import Phrasing, Resource

_Key: TypeAlias = tuple[Any, ...]


class LoadedResources(Sequence[Resource]):
    """The resources of a start state in a compact form: pickled, and as a snapshot of a session that loaded them.

    Args:
        packed: The pickled resources. They are unpickled at their first use.
        snapshot: The snapshot.
    """

    def __init__(self, packed: bytes, snapshot: Snapshot) -> None:
        self.packed, self.snapshot = packed, snapshot

    @cached_property
    def _resources(self) -> tuple[Resource, ...]:
        resources: tuple[Resource, ...] = pickle.loads(self.packed)
        return resources

    @overload
    def __getitem__(self, place: int) -> Resource: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Resource]: ...

    @override
    def __getitem__(self, place: int | slice) -> Resource | Sequence[Resource]:
        return self._resources[place]

    @override
    def __len__(self) -> int:
        return len(self._resources)


@dataclass(slots=True)
class DrawnVariation:
    """What the cache keeps of a variation.

    Attributes:
        params: Parameters of the variation.
        phrasing: Index of the prompt that the variation uses by default.
        resources: The resources of the start state; a `LoadedResources` if the cache keeps start states.
        next_id: The first id (a number) that the server assigns.
        prompts: The prompts that were built so far, by phrasing.
        idle_checks: The names of the checks that an idle agent passes, as far as they are known, by grading.
    """

    params: Any
    phrasing: int
    resources: Sequence[Resource]
    next_id: int
    prompts: dict[Phrasing, str] = field(default_factory=dict)
    idle_checks: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def setup(self) -> Sequence[Resource]:
        """The resources of the start state. Resources that their user unpickles are not kept here."""
        resources = self.resources
        return LoadedResources(resources.packed, resources.snapshot) if _is_loaded(resources) else resources

    @property
    def size(self) -> int:
        """The memory that a `LoadedResources` takes, in bytes, without small Python objects; else 0."""
        resources = self.resources
        return len(resources.packed) + resources.snapshot.size if _is_loaded(resources) else 0

    def keep_start_state(self, session: Session) -> None:
        """Keep the start state in compact form, from a session that loaded it and did nothing else."""
        packed = pickle.dumps(tuple(self.resources), pickle.HIGHEST_PROTOCOL)
        self.resources = LoadedResources(packed, session.snapshot())


def _is_loaded(resources: Sequence[Resource]) -> TypeIs[LoadedResources]:
    return isinstance(resources, LoadedResources)


class VariationCache:
    """The variations that this process used recently. If it is full, the least recently used one is dropped.

    An episode, its repeats, its reference solution and its verdict all need the same variation. Training on a bounded
    number of variations reserves room for all of them; the cache then keeps their start states too. Safe for threads.
    """

    def __init__(self) -> None:
        self._variations: OrderedDict[_Key, DrawnVariation] = OrderedDict()
        self._reserved: Counter[int] = Counter()
        self._lock = Lock()

    def get(self, key: _Key, draw: Callable[[], DrawnVariation]) -> DrawnVariation:
        """Return a variation, which is drawn if it is not in the cache."""
        with self._lock:
            drawn = self._variations.pop(key, None)
        drawn = drawn or draw()
        with self._lock:
            self._variations[key] = drawn
            self._shrink()
        return drawn

    def reserve(self, number: int) -> None:
        """Keep at least `number` variations and their start states until `release`. The largest reservation applies."""
        with self._lock:
            self._reserved[number] += 1

    def release(self, number: int) -> None:
        """End a reservation, and drop the variations beyond the other reservations."""
        with self._lock:
            self._reserved -= Counter({number: 1})
            self._shrink()

    @property
    def keeps_start_states(self) -> bool:
        """Whether a reservation asks for start states in memory."""
        return max(self._reserved, default=0) > 0

    @property
    def size(self) -> int:
        """The memory that the start states take, in bytes, without small Python objects."""
        with self._lock:
            return sum(drawn.size for drawn in self._variations.values())

    def clear(self) -> None:
        """Drop all variations, for tests and benchmarks that draw them anew."""
        with self._lock:
            self._variations.clear()

    def __len__(self) -> int:
        return len(self._variations)

    def __contains__(self, key: _Key) -> bool:
        return key in self._variations

    def _shrink(self) -> None:
        kept = max(1, *self._reserved) if self._reserved else 1
        while len(self._variations) > kept and self._is_too_large(kept):
            self._variations.popitem(last=False)

    def _is_too_large(self, reserved: int) -> bool:
        if len(self._variations) > max(reserved, _VARIATIONS):
            return True
        return sum(len(drawn.resources) for drawn in self._variations.values()) > _RESOURCES


_VARIATIONS = 32
"""Number of variations that the cache keeps without a reservation."""
_RESOURCES = 50_000
"""Maximum number of resources of the variations that nobody reserved; 1,000 take about 3 MB."""

variation_cache = VariationCache()
"""The variations that all episodes of this process share."""


@dataclass(frozen=True, slots=True)
class Variation:
    """One variation of a task in a world.

    Attributes:
        task_key: Key of the task in its pack.
        number: Number of the variation.
        split: ``train`` or ``test``.
        phrasing: Index of the prompt that the variation uses, or ``brief``.
        params: Parameters of the variation.
        prompt: The prompt, including the present time and the answer instructions.
        setup: Resources that are added to the world before the episode, in the order of their creation.
        next_id: The first id (a number) that the server assigns; it differs between variations.
        _target: The record that the prompt asks about (``Patient/S1234567``), or an empty text. Only analyses
            use it.
        _qualifying: The records that were equally likely to become the target, including the target. Only analyses
            use them.
        _drawn: What the cache keeps of the variation; None for a changed copy.
    """

    task_key: str
    number: int
    split: TrainOrTest
    phrasing: Phrasing
    params: Params
    prompt: str
    setup: Sequence[Resource]
    next_id: int
    _target: str = ""
    _qualifying: tuple[str, ...] = ()
    _drawn: DrawnVariation | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, drawn: DrawnVariation, **fields: Any) -> Self:
        """Return the variation that was drawn; `fields` are the attributes that `drawn` does not have."""
        variation = cls(params=drawn.params, setup=drawn.setup, next_id=drawn.next_id, **fields)
        object.__setattr__(variation, "_drawn", drawn)
        return variation

    @property
    def idle_checks(self) -> dict[str, tuple[str, ...]]:
        """The names of the checks that an idle agent passes, as far as they are known, by grading."""
        return {} if self._drawn is None else self._drawn.idle_checks

    def open_session(self, world: World, **settings: Any) -> Session:
        """Open a session with the start state.

        Args:
            world: The world.
            settings: Arguments of `World.session`.
        """
        session = world.session(**settings)
        self.load_into(session)
        return session

    def load_into(self, session: FhirSession) -> None:
        """Load the start state into a new session on the world."""
        if isinstance(self.setup, LoadedResources) and isinstance(session, Session):
            session.load_snapshot(self.setup.snapshot)
            return
        with garbage_collection_paused():
            session.load(self.setup, next_id=self.next_id, normal=True)
        if variation_cache.keeps_start_states and isinstance(session, Session) and self._drawn is not None:
            self._drawn.keep_start_state(session)

    def placed(self, world: World, records: Iterable[Resource], draw: int = 0) -> dict[str, Resource]:
        """Return counterfactuals as the start state would contain them; see `placed_among`.

        Args:
            world: The world.
            records: The counterfactuals.
            draw: Each number gives other ids and update times. An odd number also gives further elements.
        """
        return placed_among(self.setup, world, f"{self.next_id} {draw}", records, dressed=draw % 2 == 1)
