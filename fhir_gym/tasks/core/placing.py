"""Give counterfactuals the ids and update times of stored records, so that no search can pick them out by these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fhir_gym.fhir import World
from fhir_gym.tasks.core.ids import IdAllocator, UpdateTimes, random_resident, seeded_random
from fhir_gym.types import Json, Resource

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
        dressed: Whether each also gets the elements in which the world's records of its type go beyond the scene's, and
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
    found = {}
    for reference, record in originals.items():
        names = new_names
        if reference in new_names:
            names = {**new_names, record["id"]: new_names[reference].partition("/")[2]}
        renamed: Resource = _renamed(record, names)
        times, same = UpdateTimes(generators[reference], world), stored.get(reference)
        if dressed:
            resident = random_resident(generators[reference], world, record["resourceType"])
            found[reference] = updated_at(
                _dressed(renamed, resident), times.of({"resourceType": record["resourceType"]})
            )
        else:
            found[reference] = updated_at(renamed, same["meta"]["lastUpdated"] if same else times.of(renamed))
    return found


def _reference(record: Resource) -> str:
    return f"{record['resourceType']}/{record['id']}"


def _renamed(value: Json, names: Mapping[str, str]) -> Any:
    """Return a JSON value in which texts are replaced by their new names."""
    if isinstance(value, dict):
        return {name: _renamed(item, names) for name, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def _dressed(record: Resource, model: Resource) -> Resource:
    """Return a record with contact details of another one, and with its elements that change no meaning."""
    more = {name: value for name, value in model.items() if not name.startswith(_MEANING)}
    contact = {name: more[name] for name in _CONTACT if name in more and name in record}
    return {**more, **record, **contact}


def updated_at(record: Resource, moment: str) -> Resource:
    """Return a copy of a record with a time of last update."""
    placed: Resource = {"resourceType": "", "id": "", "meta": {}} | record  # a server stores `meta` after `id`
    placed["meta"] = {**placed["meta"], "lastUpdated": moment}
    return placed
