"""Numbered variations of tasks, and the cache of those that were used recently."""

from __future__ import annotations

import gc
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, Self, TypeAlias, overload

from typing_extensions import TypeIs, override

from fhir_gym.fhir import FhirSession, Session, World
from fhir_gym.fhir.store import Snapshot
from fhir_gym.tasks.core.ids import IdAllocator, UpdateTimes, random_resident, seeded_random
from fhir_gym.tasks.core.params import Params
from fhir_gym.tasks.core.splits import TrainOrTest
from fhir_gym.types import Json, Resource, Wording


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection while many objects are created that stay in memory.

    A collection visits all of them again and frees none. Without a pause, drawing a variation takes 1.0 to 2.2 times as
    long, and loading it 1.2 to 1.7 times. Afterwards, the objects belong to the oldest generation: the next collection
    would otherwise visit them and stop all threads for half a second.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.unfreeze()  # moves all objects to the oldest generation
            gc.enable()


_CONTACT = ("telecom", "address")
_MEANING = (
    *("abatement", "basedOn", "cancel", "comment", "component", "dataAbsent", "deceased", "description", "end", "link"),
    *("meta", "note", "partOf", "participant", "period", "reason", "replace", "status", "text", "value"),
)
"""Beginnings of the names of elements that change what a record means."""


def placed_among(
    setup: Sequence[Resource], world: World, seed: str, records: Iterable[Resource], *, dressed: bool = False
) -> dict[str, Resource]:
    """Return counterfactuals with ids and update times like those of the records of the start state.

    A counterfactual that replaces a record of the start state keeps its id and update time. The others get new ids,
    which replace the old ones in identifiers and in references between counterfactuals.

    Args:
        setup: The records of the start state.
        world: The world.
        seed: A text that differs between variations.
        records: The counterfactuals.
        dressed: Whether each also gets the elements that the world's records of its type have but the scene's lack, and
            an update time that does not depend on its dates. Without the prompt, searches for records that lack such an
            element show all records of a scene, and the latest changes show all recent events.

    Returns:
        The counterfactuals by their original references (``Slot/supposed-1``).
    """
    originals = {_reference(record): record for record in records}
    stored = {_reference(record): record for record in setup}
    taken = {*stored}
    generators = {reference: seeded_random(seed, reference) for reference in originals}
    new_names: dict[str, str] = {}
    for reference, record in originals.items():
        resource_type = record["resourceType"]
        if reference in stored or world.holds(resource_type, record["id"]):
            continue
        ids = IdAllocator(generators[reference], world)
        name = f"{resource_type}/{ids.new(resource_type)}"
        while name in taken:
            name = f"{resource_type}/{ids.new(resource_type)}"
        taken.add(name)
        new_names[reference] = name
    placed = {}
    for reference, record in originals.items():
        names = new_names
        if reference in new_names:
            names = {**new_names, record["id"]: new_names[reference].partition("/")[2]}
        renamed: Resource = renamed_texts(record, names)
        times, same = UpdateTimes(generators[reference], world), stored.get(reference)
        if dressed:
            resident = random_resident(generators[reference], world, record["resourceType"])
            placed[reference] = updated_at(
                _dressed(renamed, resident), times.of({"resourceType": record["resourceType"]})
            )
        else:
            placed[reference] = updated_at(renamed, same["meta"]["lastUpdated"] if same else times.of(renamed))
    return placed


def _reference(record: Resource) -> str:
    return f"{record['resourceType']}/{record['id']}"


def renamed_texts(value: Json, names: Mapping[str, str]) -> Any:
    """Return a JSON value in which texts are replaced by their new names."""
    if isinstance(value, dict):
        return {name: renamed_texts(item, names) for name, item in value.items()}
    if isinstance(value, list):
        return [renamed_texts(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def _dressed(record: Resource, model: Resource) -> Resource:
    """Return a record with another record's contact details and its elements that do not change the meaning."""
    more = {name: value for name, value in model.items() if not name.startswith(_MEANING)}
    contact = {name: more[name] for name in _CONTACT if name in more and name in record}
    return {**more, **record, **contact}


def updated_at(record: Resource, moment: str) -> Resource:
    """Return a copy of a record with a time of last update."""
    placed: Resource = {"resourceType": "", "id": "", "meta": {}} | record  # a server stores `meta` after `id`
    placed["meta"] = {**placed["meta"], "lastUpdated": moment}
    return placed


_Key: TypeAlias = tuple[Any, ...]


class LoadedResources(Sequence[Resource]):
    """The resources of a start state in a compact form: pickled, and as a snapshot of a session that loaded them.

    Args:
        packed: The pickled resources. They are unpickled at their first use.
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
        reference_requests: Number of requests of the reference solution; None if nobody has counted them.
    """

    params: Any
    phrasing: int
    resources: Sequence[Resource]
    next_id: int
    prompts: dict[Wording, str] = field(default_factory=dict)
    idle_checks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reference_requests: int | None = None

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
    phrasing: Wording
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

    def reference_requests(self, count: Callable[[], int]) -> int:
        """Return the number of requests of the reference solution, which `count` counts the first time."""
        if self._drawn is None:
            return count()
        if self._drawn.reference_requests is None:
            self._drawn.reference_requests = count()
        return self._drawn.reference_requests

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
