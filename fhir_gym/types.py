"""Types shared by the whole package, and access to JSON values of unknown type."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

__all__ = [
    "BRIEF",
    "PARAPHRASE",
    "Json",
    "Phrasing",
    "Resource",
    "Wording",
    "as_list",
    "as_object",
    "json_object",
    "objects_in",
    "only_object",
]

Json = Any
"""Any value that `json.loads` can return."""

Resource = dict[str, Any]
"""A FHIR resource as a JSON object."""

BRIEF: Final = "brief"
"""Name of the phrasing that asks for a task in one sentence."""

PARAPHRASE: Final = "paraphrase"
"""Name of the phrasing that gives each variation one of the task's paraphrases."""

Wording = int | Literal["brief"]
"""A wording of a task's prompt: the index of a numbered wording, or `BRIEF`."""

Phrasing = Wording | Literal["paraphrase"]
"""The choice of a wording: a `Wording` for all variations, or `PARAPHRASE`."""


def as_object(value: Json) -> dict[str, Any]:
    """Return a JSON object as it is, and an empty one for another value."""
    return value if isinstance(value, dict) else {}


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None for another text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def as_list(value: Json) -> list[Any]:
    """Return a JSON array as it is, and an empty one for another value."""
    return value if isinstance(value, list) else []


def objects_in(value: Json) -> list[dict[str, Any]]:
    """Return the JSON objects in an array; none for another value."""
    return [item for item in as_list(value) if isinstance(item, dict)]


def only_object(value: Json) -> dict[str, Any]:
    """Return the only item of a JSON array if it is an object; otherwise an empty object."""
    return as_object(value[0]) if isinstance(value, list) and len(value) == 1 else {}
