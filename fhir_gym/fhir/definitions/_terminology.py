"""The value sets of coded elements, if the official package lists the codes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from fhir_gym.fhir.definitions._files import read

_COMPLETE = "(complete)"


@cache
def _bindings() -> dict[str, str]:
    return read("bindings")


@cache
def _table() -> dict[str, Any]:
    return read("valuesets")


def bound_value_set(path: str) -> str | None:
    """Return the URL of an element's value set (``Appointment.appointmentType``), for any binding strength."""
    return _bindings().get(path)


def value_set(url: str) -> Mapping[str, tuple[str, ...]] | None:
    """Return a value set's codes, grouped by code system and in the value set's order.

    Returns None if the value set is unknown or its codes are not listed.
    """
    name = url.partition("|")[0]
    return _listed(name) if isinstance(_table().get(name), dict) else None  # `url` may be any text


@cache
def _listed(url: str) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({system: tuple(codes) for system, codes in _table()[url].items()})


@cache
def is_complete(system: str) -> bool:
    """Return whether all codes of a code system are known (HL7's own systems, but not SNOMED CT, LOINC …)."""
    return system in _table()[_COMPLETE]
