"""Keep start states in memory, so that a repeated variation is neither drawn nor loaded again."""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, TypeAlias, overload

from typing_extensions import override

from fhir_gym.fhir import Session, World
from fhir_gym.fhir.store import Snapshot
from fhir_gym.tasks import Task, Variation
from fhir_gym.types import Phrasing, Resource

__all__ = ["PackedResources", "StartState", "StartStates", "shared_start_states"]

_Key: TypeAlias = tuple[Any, ...]


class PackedResources(Sequence[Resource]):
    """Resources that are unpickled at their first use.

    Args:
        packed: The pickled list.
    """

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    @cached_property
    def _resources(self) -> list[Resource]:
        found: list[Resource] = pickle.loads(self._packed)
        return found

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

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return PackedResources, (self._packed,)


@dataclass(frozen=True, slots=True)
class StartState:
    """A variation and its loaded records in a compact form.

    Attributes:
        number: Number of the variation.
        phrasing: Index of the prompt that the variation uses, or ``brief``.
        prompt: The prompt.
        records: The loaded records.
        idle: The checks that an idle agent passes, by grading, as far as they are known.
    """

    number: int
    phrasing: Phrasing
    prompt: str
    records: Snapshot
    _variation: bytes
    idle: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, variation: Variation, session: Session) -> StartState | None:
        """Return the start state of a variation from a session that loaded it and did nothing else.

        The result is None if the parameters cannot be pickled (their class is local to a function).
        """
        setup = PackedResources(pickle.dumps(list(variation.setup), pickle.HIGHEST_PROTOCOL))
        try:
            packed = pickle.dumps(replace(variation, setup=setup), pickle.HIGHEST_PROTOCOL)
        except (AttributeError, TypeError, pickle.PicklingError):
            return None
        return cls(variation.number, variation.phrasing, variation.prompt, session.snapshot(), packed)

    def variation(self) -> Variation:
        """Return the variation."""
        found: Variation = pickle.loads(self._variation)
        return found

    def open_session(self, world: World, **settings: Any) -> Session:
        """Open a session with the start state; `settings` are the arguments of `Session`."""
        session = world.session(**settings)
        try:
            session.load_snapshot(self.records)
        except BaseException:
            session.close()
            raise
        return session

    @property
    def size(self) -> int:
        """The memory that the start state takes, in bytes, without small Python objects."""
        return len(self._variation) + len(self.prompt) + self.records.size


class StartStates:
    """A bounded collection of start states. If it is full, the least recently used one is dropped.

    Safe for threads.
    """

    def __init__(self) -> None:
        self._states: OrderedDict[_Key, StartState] = OrderedDict()
        self._reserved: Counter[int] = Counter()
        self._lock = Lock()

    def reserve(self, number: int) -> None:
        """Keep up to `number` start states until `release`. The largest reservation applies."""
        with self._lock:
            self._reserved[number] += 1

    def release(self, number: int) -> None:
        """End a reservation, and drop the start states beyond the other reservations."""
        with self._lock:
            self._reserved -= Counter({number: 1})
            self._shrink()

    def find(self, task: Task[Any], variation: int, phrasing: Phrasing | None, world: World) -> StartState | None:
        """Return a start state, or None if it is not here."""
        with self._lock:
            state = self._states.get(key := _key(task, variation, phrasing, world))
            if state is not None:
                self._states.move_to_end(key)
            return state

    def keep(self, task: Task[Any], phrasing: Phrasing | None, world: World, state: StartState) -> None:
        """Add a start state."""
        with self._lock:
            self._states[_key(task, state.number, phrasing, world)] = state
            self._shrink()

    def _shrink(self) -> None:
        most = max(self._reserved, default=0)
        while len(self._states) > most:
            self._states.popitem(last=False)

    @property
    def size(self) -> int:
        """The memory that the start states take, in bytes, without small Python objects."""
        with self._lock:
            return sum(state.size for state in self._states.values())

    def __len__(self) -> int:
        return len(self._states)


def _key(task: Task[Any], variation: int, phrasing: Phrasing | None, world: World) -> _Key:
    return task, variation, phrasing, world.manifest.content_hash, world.now


shared_start_states = StartStates()
"""The start states that all environments of this process share."""
