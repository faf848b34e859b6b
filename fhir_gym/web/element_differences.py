"""List the elements in which two versions of a resource differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

from fhir_gym.types import Json, Resource
from fhir_gym.web.element_text import element_text, shortened

MAX_DIFFERENCES = 100
"""Maximum number of listed differences."""
_MAX_DEPTH = 12
_MAX_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class Difference:
    """One element that differs.

    Attributes:
        path: Path of the element (``name[1].given``), with positions from 1.
        before: The earlier text; None if the element was added.
        after: The current text; None if the element was removed.
    """

    path: str
    before: str | None
    after: str | None


def differences(before: Resource, after: Resource) -> tuple[Difference, ...]:
    """Return the elements that differ, without version and time in `meta`, which change with every write."""
    return tuple(islice(_differences("", _content(before), _content(after), _MAX_DEPTH), MAX_DIFFERENCES))


def _content(resource: Resource) -> Resource:
    meta = resource.get("meta")
    if not isinstance(meta, dict):
        return resource
    return resource | {"meta": {key: meta[key] for key in meta if key not in ("versionId", "lastUpdated")}}


def _differences(path: str, before: Json, after: Json, depth: int) -> Iterator[Difference]:
    if before == after and type(before) is type(after):
        return
    if depth and isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            inner = shortened(f"{path}.{name}" if path else name)
            yield from _differences(inner, before.get(name), after.get(name), depth - 1)
    elif depth and isinstance(before, list) and isinstance(after, list):
        for number, (old, new) in enumerate(zip_longest(before, after), start=1):
            yield from _differences(f"{path}[{number}]", old, new, depth - 1)
    else:
        yield Difference(path, _shown(before), _shown(after))


def _shown(value: Json) -> str | None:
    if value is None:
        return None
    return shortened(value, _MAX_TEXT) if isinstance(value, str) else element_text(value)
