"""Wrong values for the elements of a resource; an element's FHIR type determines them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions import Element, children, codes
from fhir_gym.types import Json, Resource

Path = tuple[str | int, ...]
"""Path of a value inside a resource: names and list indices."""

_SERVER_MADE = frozenset({"resourceType", "id", "meta", "text"})
_MIN_DIGITS = 4


def leaves(resource: Resource) -> Iterator[tuple[Path, Json]]:
    """Yield the path and value of every primitive that the server does not set."""
    for name, value in resource.items():
        if name not in _SERVER_MADE:
            yield from _leaves(value, (name,))


def _leaves(value: Json, path: Path) -> Iterator[tuple[Path, Json]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def path_name(resource_type: str, path: Path) -> str:
    """Format a path without list indices, such as ``Patient.name.family``."""
    return ".".join((resource_type, *(str(part) for part in path if isinstance(part, str))))


def replaced(resource: Resource, path: Path, value: Json) -> Resource:
    """Copy a resource with another value at a path."""
    changed = copy.deepcopy(resource)
    holder: Any = changed
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    return changed


def removed(resource: Resource, path: Path) -> Resource:
    """Copy a resource without the value at a path; drop parent elements that become empty."""
    changed = copy.deepcopy(resource)
    holders: list[Any] = [changed]
    for part in path[:-1]:
        holders.append(holders[-1][part])
    for holder, part in zip(reversed(holders), reversed(path), strict=True):
        if holder is holders[-1] or not holder[part]:
            del holder[part]
    return changed


def values_at(resource: Resource, path: Path) -> list[Json]:
    """The primitive values at a path; list indices are ignored."""
    name = path_name("", path)
    return [value for other, value in leaves(resource) if path_name("", other) == name]


def made_up_values(resource_type: str, path: Path, value: Json) -> list[Json]:
    """Invented wrong values of the right type; empty for a reference.

    Args:
        resource_type: Type of the resource.
        path: Path of the value.
        value: The right value.
    """
    if _is_reference(path, value):
        return []
    return [one for one in mutated(_element(resource_type, path), value) if one != value]


def neighbour_values(
    path: Path, value: Json, ids: Mapping[str, Sequence[str]], neighbours: Iterable[Resource]
) -> list[Json]:
    """Wrong values from other records: their values at the same path. For a reference, references to other records.

    Args:
        path: Path of the value.
        value: The right value.
        ids: Known ids by resource type.
        neighbours: The other resources of the same type.
    """
    if _is_reference(path, value):
        target, _, id = str(value).rpartition("/")
        return [f"{target}/{other}" for other in ids.get(target, ()) if other != id]
    wrong = [found for one in neighbours for found in values_at(one, path) if found != value]
    return [one for n, one in enumerate(wrong) if one not in wrong[:n]]


def _is_reference(path: Path, value: Json) -> bool:
    return path[-1] == "reference" and isinstance(value, str) and "/" in value


def mutated(element: Element | None, value: Json) -> list[Json]:
    """Invented values of the same type with another meaning."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    if not isinstance(value, str):
        return []
    if element is not None and element.binding is not None:
        return [code for code in sorted(codes(element.binding)) if code != value]
    moment = _other_time(value)
    if moment is not None:
        return [moment]
    if sum(character.isdigit() for character in value) >= _MIN_DIGITS:
        last = max(index for index, character in enumerate(value) if character.isdigit())
        return [f"{value[:last]}{(int(value[last]) + 1) % 10}{value[last + 1 :]}"]
    return [f"{value}a", value[1:] or "b"]


def _other_time(value: str) -> str | None:
    try:
        if len(value) == len("2000-01-01"):
            return (date.fromisoformat(value) + timedelta(days=1)).isoformat()
        moved = datetime.fromisoformat(value) + timedelta(hours=1)
    except (ValueError, OverflowError):
        return None
    return moved.isoformat().replace("+00:00", "Z") if "T" in value and moved.tzinfo else None


def _element(resource_type: str, path: Path) -> Element | None:
    """The definition of the element at a path; None for an unknown element."""
    content, element = resource_type, None
    for name in (part for part in path if isinstance(part, str)):
        try:
            element = children(content).get(name)
        except UnknownNameError:
            return None
        if element is None:
            return None
        content = element.content
    return element
