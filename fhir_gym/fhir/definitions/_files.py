"""The data files and the lists of types."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

_DATA = Path(__file__).with_name("data")


def read(name: str) -> dict[str, Any]:
    """Read a data file; large files that few processes need are compressed."""
    path = _DATA / f"{name}.json"
    text = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(f"{name}.json.gz").read_bytes())
    table: dict[str, Any] = json.loads(text)
    return table


_TYPES = read("types")

RESOURCE_TYPES: tuple[str, ...] = tuple(_TYPES["resource"])
"""The concrete resource types, sorted."""

RESOURCE_TYPE_SET = frozenset(RESOURCE_TYPES)

DATA_TYPES: tuple[str, ...] = tuple(_TYPES["complex-type"])
"""The complex data types with elements (`HumanName` …), sorted."""

PRIMITIVES: frozenset[str] = frozenset([*_TYPES["primitive-type"], "xhtml"])
"""The primitive types (`string`, `dateTime` …)."""


def patient_parameters(resource_type: str) -> tuple[str, ...]:
    """Return the search parameters that put a resource of this type into a patient's compartment."""
    return tuple(_TYPES["patient"].get(resource_type, ()))
