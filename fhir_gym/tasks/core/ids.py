"""Ids and update times for added resources; they are distributed like those of the world's own resources."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from weakref import WeakKeyDictionary

from fhir_gym.fhir import World
from fhir_gym.fhir.clock import instant_at, milliseconds
from fhir_gym.fhir.store.update_times import last_event, random_past, update_after
from fhir_gym.types import Resource


def seeded_random(*parts: object) -> random.Random:
    """Return a generator whose draws depend only on the texts of `parts`."""
    digest = blake2b("\n".join(map(str, parts)).encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))


_SAMPLE = 64
"""Number of resources of a type that are read to learn the form of the type's ids."""
_NUMBERED = re.compile(r"([A-Za-z]*)([0-9]{1,15})(?:-[0-9]+)?")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,15})([^0-9]*)")
_RANDOM = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3,}[0-9a-f]*", re.IGNORECASE)
_UUID = 36
_UUID_KINDS = (14, 19)
"""Positions of the two digits of a UUID that state its version and variant."""
_DIGITS = 7
_LONGEST = 64
_ATTEMPTS = 4
_UNTYPED = ""
_FEW = 20_000
"""If a type has at most this many resources, all its ids are kept in memory."""


@dataclass(frozen=True, slots=True)
class _Form:
    """A pattern of ids: a number with text around it, or random hexadecimal digits.

    Attributes:
        before: Text before the number.
        digits: Minimum number of digits.
        low: Lowest number.
        high: Highest number.
        after: Text after the number.
        model: An example of an id with random hexadecimal digits. If it is set, all other attributes are ignored.
    """

    before: str = ""
    digits: int = 0
    low: int = 1
    high: int = 10**_DIGITS - 1
    after: str = ""
    model: str = ""

    def draw(self, rng: random.Random) -> str:
        """Draw an id of this form; the id may already be taken."""
        if self.model:
            return self._random(rng)
        number = self.low + int(rng.random() * (self.high + 1 - self.low))
        return f"{self.before}{number:0{self.digits}d}{self.after}"

    def _random(self, rng: random.Random) -> str:
        digits = iter(f"{rng.getrandbits(4 * len(self.model)):0{len(self.model)}x}")
        kept = _UUID_KINDS if len(self.model) == _UUID else ()
        mixed = (
            old if old == "-" or place in kept else new
            for place, (old, new) in enumerate(zip(self.model, digits, strict=True))
        )
        mixed_id = "".join(mixed)
        return mixed_id if self.model == self.model.lower() else mixed_id.upper()


class _Type:
    """The forms of ids and the update times of one resource type in a world, learned from a sample."""

    def __init__(self, world: World, resource_type: str) -> None:
        self._type = resource_type
        self.now = milliseconds(world.now)
        self.sample = world.sample(resource_type, _SAMPLE)
        self._other = None if self.sample else _most_common(world)
        count = world.manifest.counts.get(resource_type, 0)
        self.known = None if count > _FEW else frozenset(world.ids(resource_type) if count else ())

    def holds(self, world: World, id: str) -> bool:
        return world.holds(self._type, id) if self.known is None else id in self.known

    @cached_property
    def forms(self) -> Sequence[_Form]:
        """The forms of the ids, each as often as it occurs in the sample."""
        if self.sample:
            return _forms([id for id, _ in self.sample])
        other = self._other.forms[0] if self._other else _Form(before="?", digits=_DIGITS)
        if other.model or not other.before:
            return [other]
        return [_Form(before=self._type[:3].upper() or "E", digits=max(_DIGITS, other.digits))]

    @cached_property
    def updates(self) -> Sequence[int]:
        """The sorted times of last update in milliseconds."""
        if self._other:
            return self._other.updates
        return sorted(updated for _, updated in self.sample)


_learnt: WeakKeyDictionary[World, dict[str, _Type]] = WeakKeyDictionary()


def _type(world: World, resource_type: str) -> _Type:
    types_of_world = _learnt.get(world)
    if types_of_world is None:
        types_of_world = _learnt.setdefault(world, {})
    id_type = types_of_world.get(resource_type)
    if id_type is None:
        id_type = types_of_world[resource_type] = _Type(world, resource_type)
    return id_type


def _most_common(world: World) -> _Type | None:
    counts = world.manifest.counts
    return _type(world, max(counts, key=lambda name: counts[name])) if counts else None


def _forms(ids: Sequence[str]) -> list[_Form]:
    ids_by_form: dict[tuple[str, str], list[str]] = {}
    forms: list[_Form] = []
    for id in ids:
        if _RANDOM.fullmatch(id) and not id.isdigit():
            forms.append(_Form(model=id))
        elif match := _LAST_NUMBER.fullmatch(id):
            ids_by_form.setdefault((match[1], match[3]), []).append(match[2])
        else:
            forms.append(_Form(before=f"{id[: _LONGEST - 8]}-", high=999))
    for (front, back), texts in ids_by_form.items():
        widths = {len(text) for text in texts}
        numbers = [int(text) for text in texts]
        digits = widths.pop() if len(widths) == 1 else 0
        low, high = min(numbers), max(numbers)
        if len(ids) < 3:  # too few ids to learn a range, and variations must not share ids
            digits, high = 0, high + 10**_DIGITS
        forms += [_Form(front, digits, low, high, back)] * len(texts)
    return forms


class IdAllocator:
    """Allocates ids that look like ids of the world, in random order.

    A new id has the form of the world's ids of the same type (for a Slot, ``"SLOT0004711"``). Its number is in the
    same range, so that an order by id mixes new resources with those of the world. Servers refuse ids that consist only
    of digits from clients (HAPI-0960); such an id gets a suffix (``"4711-3"``), which also avoids conflicts with
    existing ids.

    Args:
        rng: Random number generator.
        world: The world; it has no resource with an allocated id.
    """

    def __init__(self, rng: random.Random, world: World) -> None:
        self._rng = rng
        self._world = world
        self._types: dict[str, _Type] = {}
        self._given: set[str] = set()

    def new(self, resource_type: str = _UNTYPED) -> str:
        """Allocate an id."""
        kind = self._types.get(resource_type)
        if kind is None:
            kind = self._types[resource_type] = _type(self._world, resource_type)
        forms, allocated, used = kind.forms, self._given, kind.known
        form = forms[int(self._rng.random() * len(forms))]
        for _ in range(_ATTEMPTS):
            id = form.draw(self._rng)
            free = self._free(kind, id) if used is None else id not in allocated and id not in used
            if free and not id.isdigit():
                break
        else:
            id = self._with_number(kind, id)
        self._given.add(id)
        return id

    def _with_number(self, kind: _Type, id: str) -> str:
        most = 10
        while True:
            shorter = f"{id[: _LONGEST - 16]}-{self._rng.randrange(1, most)}"
            if self._free(kind, shorter):
                return shorter
            most *= 2

    def _free(self, kind: _Type, id: str) -> bool:
        return id not in self._given and not kind.holds(self._world, id)


class UpdateTimes:
    """Draws times of last update in the format that a server writes.

    Args:
        rng: Random number generator.
        world: The world. The times are distributed like those of its resources of the same type. If the world has no
            such resources, its most common type is used.
    """

    def __init__(self, rng: random.Random, world: World) -> None:
        self._rng = rng
        self._world = world
        self._types: dict[str, _Type] = {}

    def of(self, resource: Resource) -> str:
        """Draw a time of last update that is not earlier than any event in the resource."""
        rng, name = self._rng, resource["resourceType"]
        kind = self._types.get(name)
        if kind is None:
            kind = self._types[name] = _type(self._world, name)
        updates, now = kind.updates, kind.now
        if len(updates) > 1:
            place = int(rng.random() * (len(updates) - 1))
            moment = updates[place] + int(rng.random() * (updates[place + 1] - updates[place]))
        else:
            moment = random_past(now, rng.getrandbits(64))
        happened = last_event(resource, now)
        if happened is not None and moment < happened:
            moment = update_after(happened, now, rng.getrandbits(64))
        return instant_at(moment)


def random_resident(rng: random.Random, world: World, resource_type: str) -> Resource:
    """Return a random resource of a type from a sample of the world; an empty object if the world has none."""
    sample = _type(world, resource_type).sample
    return (world.read(resource_type, rng.choice(sample)[0]) if sample else None) or {}


def id_number(id: object) -> int | None:
    """Return the number in an id such as ``SLOT0004711`` or ``4711-3`` (here 4711); None for other ids."""
    match = _NUMBERED.fullmatch(str(id))
    return int(match[2]) if match else None
