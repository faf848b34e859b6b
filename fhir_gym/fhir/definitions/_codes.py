"""Codes: of required bindings, and of the value sets that the official package lists."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
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
    url: str | None = entry["system"] if entry["enum"] else None
    return url


_COMPLETE = "(complete)"


@cache
def _bindings() -> dict[str, str]:
    return read("bindings")


@cache
def _value_sets() -> dict[str, Any]:
    return read("valuesets")


def bound_value_set(path: str) -> str | None:
    """Return the URL of an element's value set (``Appointment.appointmentType``), for any binding strength."""
    return _bindings().get(path)


def value_set(url: str) -> Mapping[str, tuple[str, ...]] | None:
    """Return a value set's codes, grouped by code system and in the value set's order.

    Returns None if the value set is unknown or its codes are not listed.
    """
    name = url.partition("|")[0]
    return _listed(name) if isinstance(_value_sets().get(name), dict) else None  # `url` may be any text


@cache
def _listed(url: str) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({system: tuple(codes) for system, codes in _value_sets()[url].items()})


@cache
def is_complete(system: str) -> bool:
    """Return whether all codes of a code system are known (HL7's own systems, but not SNOMED CT, LOINC …)."""
    return system in _value_sets()[_COMPLETE]
