"""Check the validity and depth of JSON texts without recursion, so that deep nesting cannot overflow the stack."""

from __future__ import annotations

import json
import re

import orjson

from fhir_gym.types import Json

_MAX_DEPTH = 64
"""Maximum nesting depth of a body or an answer. FHIR resources are nested far less deeply."""
_CONTAINERS = (list, dict)
_LONG = re.compile(r"[0-9]{19}")


def parse_json(text: str) -> tuple[Json, str | None]:
    """Parse a JSON text, which may have integers of any size; return the value and an error message or None."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return None, str(error)
    problem = too_deep(value)
    if problem is None and _LONG.search(text):
        value = json.loads(text)  # orjson converts integers beyond 64 bits to floats
    return value, problem


def json_problem(text: str) -> str | None:
    """Return an error message for an invalid JSON text; None for a valid one."""
    try:
        return too_deep(orjson.loads(text))
    except orjson.JSONDecodeError as error:
        return str(error)


def too_deep(value: Json) -> str | None:
    """Return an error message if a decoded value is nested too deeply, else None."""
    level: list[Json] = [value]
    for _ in range(_MAX_DEPTH + 1):
        below: list[Json] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = [item for item in below if item and isinstance(item, _CONTAINERS)]
        if not level:
            return None
    return f"it is nested more than {_MAX_DEPTH} levels deep"
