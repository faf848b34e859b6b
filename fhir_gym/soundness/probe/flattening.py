"""Convert the values of records to numbers and categories."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

import orjson

from fhir_gym.fhir import World
from fhir_gym.soundness.value_variants import leaves
from fhir_gym.types import Json, Resource

Flat = Mapping[str, tuple[Json, ...]]
"""Maps each path of a record to its values; the path contains no list positions."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d))?\Z")
_REFERENCE = re.compile(r"[A-Z][A-Za-z]+/[A-Za-z0-9\-.]{1,64}\Z")
_MOST_CODES = 30
_DAY = 86_400.0


def flatten(resource: Resource) -> Flat:
    """Flatten a record. Values that the server sets are dropped; tags and profiles are kept."""
    found: dict[str, tuple[Json, ...]] = {}
    for path, value in leaves(resource):
        name = ".".join(part for part in path if isinstance(part, str))
        found[name] = (*found.get(name, ()), value)
    for name, value in resource.get("meta", {}).items():
        if name not in ("versionId", "lastUpdated"):
            found[f"meta.{name}"] = (orjson.dumps(value).decode(),)
    return found


def is_reference(value: Json) -> bool:
    """Whether a value is a relative reference."""
    return isinstance(value, str) and _REFERENCE.match(value) is not None


@lru_cache(maxsize=100_000)
def days(value: str) -> float | None:
    """Convert a date or dateTime to days since 1970; None for other texts."""
    if not _DATE.match(value):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / _DAY


class Background:
    """Data for comparison that all scenes of a task share: the world's records and the codes seen so far.

    Args:
        world: The world.
    """

    def __init__(self, world: World) -> None:
        self.today = world.now.timestamp() / _DAY
        self._world = world
        self._usual: dict[str, Counter[tuple[str, Json]]] = {}
        self._codes: dict[str, dict[Json, int]] = {}

    def usual(self, kind: str, path: str, value: Json) -> int:
        """Return the number of the world's records of a type that have this value at this path."""
        if kind not in self._usual:
            counted = (
                (path, values[0])
                for text in self._world.resources(kind)
                for path, values in flatten(orjson.loads(text)).items()
            )
            self._usual[kind] = Counter(counted)
        return self._usual[kind][path, value]

    def code(self, path: str, value: Json) -> float:
        """The category number of a value, equal in all scenes; NaN once the path has too many distinct values."""
        known = self._codes.setdefault(path, {})
        if value not in known and len(known) < _MOST_CODES:
            known[value] = len(known)
        return known.get(value, float("nan"))

    def is_closed(self, path: str) -> bool:
        """Whether a path has few distinct values and is therefore categorical; names, for example, are not."""
        return len(self._codes.get(path, ())) < _MOST_CODES
