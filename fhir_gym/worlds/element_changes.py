"""Elements that the server drops or changes when it stores an imported resource."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fhir_gym.printable import one_line
from fhir_gym.types import Json, Resource

_EXAMPLES = 5
_PATHS = 1000  # maximum number of distinct paths to count; only malformed data has more paths


class ElementChanges:
    """Counts of changed resources, with examples, and of dropped and changed elements by path."""

    def __init__(self) -> None:
        self.resources = 0
        self.examples: list[str] = []
        self.dropped: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()

    def add(self, given: Resource, stored: Resource) -> None:
        """Compare an imported resource with its stored form, except for `meta`, which the server fills in."""
        before, after = _content(given), _content(stored)
        if before == after:
            return
        kind = str(stored["resourceType"])
        self.resources += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{kind}/{stored['id']}")
        gone = Counter(_paths(kind, before)) - Counter(_paths(kind, after))
        for path, times in gone.items():
            if times > gone[path.rpartition(".")[0]]:  # otherwise the element was dropped with its parent
                _count(self.dropped, path)
        if not gone:
            for name in before.keys() & after.keys():
                if before[name] != after[name]:
                    _count(self.changed, f"{kind}.{name}")


def _content(resource: Resource) -> dict[str, Json]:
    return {key: value for key, value in resource.items() if key != "meta"}


def _paths(path: str, value: Json) -> Iterator[str]:
    """Yield the path of every element in a value; all items of a list have the same path."""
    if isinstance(value, list):
        for item in value:
            yield from _paths(path, item)
    elif isinstance(value, dict):
        for name, inner in value.items():
            for item in inner if isinstance(inner, list) else (inner,):
                yield f"{path}.{name}"
                yield from _paths(f"{path}.{name}", item)


def _count(paths: Counter[str], path: str) -> None:
    path = one_line(path, 200)
    if path in paths or len(paths) < _PATHS:
        paths[path] += 1
