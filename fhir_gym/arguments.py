"""Check the arguments of users. Each function raises an error with a one-line message for an invalid argument."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from fhir_gym.errors import ArgumentError, UnknownNameError
from fhir_gym.types import BRIEF, PARAPHRASE, Phrasing

__all__ = ["parse_phrasing", "require_name", "require_path", "require_phrasing_type", "require_url", "require_whole"]


def require_name(kind: str, name: object, names: Collection[str]) -> str:
    """Return `name` if it is one of the known names.

    Raises:
        UnknownNameError: The name is unknown or is not a string.
    """
    if not isinstance(name, str) or name not in names:
        raise UnknownNameError(kind, name, names)
    return name


def require_whole(name: str, value: Any, least: int | None = None) -> int:
    """Return `value` as an `int`. All integer types are accepted, including NumPy's; booleans are refused.

    Raises:
        ArgumentError: The value is not a whole number, or it is less than `least`.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        least_of = "" if least is None else f" of at least {least}"
        raise ArgumentError(f"{name} must be a whole number{least_of}, not {value!r}")
    return number


def require_phrasing_type(name: str, value: Any) -> Phrasing:
    """Return `value` as a `Phrasing`.

    Raises:
        ArgumentError: The value is neither a whole number nor `BRIEF` nor `PARAPHRASE`.
    """
    if isinstance(value, str):
        if value == BRIEF:
            return BRIEF
        if value == PARAPHRASE:
            return PARAPHRASE
        raise ArgumentError(f"{name} must be a whole number, {BRIEF!r} or {PARAPHRASE!r}, not {value!r}")
    return require_whole(name, value)


def parse_phrasing(text: str | None) -> Phrasing | None:
    """Return the phrasing that a text such as ``"0"`` or ``"brief"`` names; None for None.

    Raises:
        ArgumentError: The text is neither a number nor `BRIEF` nor `PARAPHRASE`.
    """
    if text is None:
        return None
    return require_phrasing_type(
        "phrasing", int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
    )


def require_path(name: str, value: object) -> None:
    """Check that a value is None or a path.

    Raises:
        ArgumentError: The value has another type.
    """
    if not (value is None or isinstance(value, str | os.PathLike)):
        raise ArgumentError(f"{name} must be the path of a file, not {value!r}")


def require_url(name: str, value: object, example: str = "http://localhost:8080/fhir") -> None:
    """Check that a value is None or the base URL of a server.

    Raises:
        ArgumentError: The value is neither None nor a base URL.
    """
    if value is None:
        return
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        good = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # an invalid port or IPv6 address
        good = False
    if not good:
        raise ArgumentError(f"{name} must be a base URL such as {example}, not {value!r}")
