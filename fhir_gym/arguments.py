"""Checks of what a user gives: each refuses in a line what makes no sense, before anything is begun."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from fhir_gym.errors import FhirGymError, UnknownNameError

__all__ = ["require_name", "require_path", "require_url", "require_whole"]


def require_name(kind: str, name: object, known: Collection[str]) -> str:
    """A name, if it is one of those that exist.

    Raises:
        UnknownNameError: It is none of them, or no text.
    """
    if not isinstance(name, str) or name not in known:
        raise UnknownNameError(kind, name, known)
    return name


def require_whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number of any type (NumPy's too), if it is not too small.

    Raises:
        FhirGymError: It is not.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        least_of = "" if least is None else f" of at least {least}"
        raise FhirGymError(f"{name} must be a whole number{least_of}, not {value!r}")
    return number


def require_path(name: str, value: object) -> None:
    """Refuse what is neither None nor the path of a file.

    Raises:
        FhirGymError: It is neither.
    """
    if not (value is None or isinstance(value, str | os.PathLike)):
        raise FhirGymError(f"{name} must be the path of a file, not {value!r}")


def require_url(name: str, value: object) -> None:
    """Refuse what is neither None nor the url of a server.

    Raises:
        FhirGymError: It is neither.
    """
    if value is None:
        return
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        good = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # a port or an IPv6 address that is none
        good = False
    if not good:
        raise FhirGymError(f"{name} must be a base url such as http://localhost:8080/fhir, not {value!r}")
