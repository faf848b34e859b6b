"""Is a JSON text one, and within reason? Nothing here recurses, so no nesting can overflow a stack."""

from __future__ import annotations

import orjson

from fhir_gym.types import Json

__all__ = ["json_problem", "too_deep"]

_MAX_DEPTH = 64
"""Deepest nesting of a body or an answer; FHIR resources stay far below."""


def json_problem(text: str) -> str | None:
    """What is wrong with a JSON text, None if nothing is."""
    try:
        return too_deep(orjson.loads(text))
    except orjson.JSONDecodeError as error:
        return str(error)


def too_deep(value: Json) -> str | None:
    """A complaint if a decoded value is nested too deeply, else None."""
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return None
    return f"it is nested more than {_MAX_DEPTH} levels deep"
