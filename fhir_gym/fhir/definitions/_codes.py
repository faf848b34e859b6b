"""Codes of required bindings."""

from __future__ import annotations

from functools import cache
from typing import Any

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions._files import read


@cache
def _table() -> dict[str, Any]:
    return read("codes")


def _entry(binding: str) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = _table()[binding]
    except KeyError:
        raise UnknownNameError("binding", binding, _table()) from None
    return entry


@cache
def codes(binding: str) -> frozenset[str]:
    """Return the codes of a required binding."""
    return frozenset(_entry(binding)["codes"])


def enum_name(binding: str) -> str | None:
    """Return the enumeration's name in HAPI's messages; None if HAPI accepts any code."""
    return binding if _entry(binding)["enum"] else None


def system(binding: str) -> str | None:
    """Return the enumeration's code system; None if the enumeration has several or HAPI accepts any code."""
    entry = _entry(binding)
    found: str | None = entry["system"] if entry["enum"] else None
    return found
