"""Value sets behind token parameters: for `:in`, `:not-in`, `:above` and `:below`.

A server without terminology knows the value sets of the R4 package itself, as far as their codes are in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fhir_gym.fhir.index import Field

__all__ = ["codes_of", "systems_behind"]

_FILE = Path(__file__).with_name("value_sets.json")


@cache
def _table() -> Mapping[str, Any]:
    return MappingProxyType(json.loads(_FILE.read_bytes()))


def systems_behind(resource_type: str, field: Field) -> tuple[str, ...] | None:
    """Code systems that a bare code of an element may belong to; None if its value set is not known here."""
    found: dict[str, None] = {}
    known = False
    for path in field.paths:
        name = ".".join([resource_type, *(step.key for step in path.steps)])
        url = _table()["elements"].get(name)
        if url:
            known = True
            found.update(dict.fromkeys(s for s, held in _table()["valueSets"][url].items() if held in (True, "part")))
    return tuple(found) if known else None


def codes_of(url: str) -> Mapping[str, Any] | None:
    """What a value set holds: True for all codes of a system, or the codes; None if it cannot be said."""
    held: Mapping[str, Any] | None = _table()["valueSets"].get(url)
    return None if held is None or {"part", "many"} & {h for h in held.values() if isinstance(h, str)} else held
