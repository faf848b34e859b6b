"""Definitions for validation only: invariants, strengths of bindings, code systems, extensions, types of profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fhir_gym.fhir.definitions._files import read


@dataclass(frozen=True, slots=True)
class Constraint:
    """An invariant.

    Attributes:
        key: Its key, such as ``obs-7``.
        severity: ``error`` or ``warning``.
        human: The rule in English.
        expression: The rule in FHIRPath.
        source: The URL of the type from which the element inherits the invariant; empty for its own.
        advice: Whether the invariant is a best practice, not a rule.
    """

    key: str
    severity: str
    human: str
    expression: str
    source: str = ""
    advice: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """The binding of an element to a value set.

    Attributes:
        strength: ``required``, ``extensible`` or ``preferred``; examples are no bindings.
        url: The URL of the value set.
        title: The title of the value set.
        version: The version of the value set.
        missing: The first code system in the value set whose codes are not listed; empty if all are.
    """

    strength: str
    url: str
    title: str
    version: str
    missing: str

    def __str__(self) -> str:
        return f"'{self.title}' ({self.url}|{self.version})"


@dataclass(frozen=True, slots=True)
class CodeSystem:
    """A code system of HL7.

    Attributes:
        content: ``complete`` if all codes are listed; else ``not-present``, ``fragment``, ``example``, ``supplement``.
        codes: The listed codes, in lower case if case does not matter.
        case_sensitive: Whether case matters.
    """

    content: str
    codes: frozenset[str]
    case_sensitive: bool

    def __contains__(self, code: str) -> bool:
        return (code if self.case_sensitive else code.lower()) in self.codes


@dataclass(frozen=True, slots=True)
class NestedExtension:
    """A part of an extension: the least and the greatest number (``*``: any), and the types of its value."""

    least: int
    most: str
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExtensionDefinition:
    """An extension that HL7 defined.

    Attributes:
        contexts: The elements at which it may be (``Patient``, ``Element`` …).
        types: The types of its value; empty if it has parts instead.
        parts: Its parts by their URL.
    """

    contexts: tuple[str, ...]
    types: tuple[str, ...]
    modifier: bool
    parts: Mapping[str, NestedExtension]


@cache
def _table() -> dict[str, Any]:
    return read("validation")


@cache
def _constraints() -> tuple[Constraint, ...]:
    return tuple(Constraint(*row) for row in _table()["constraints"])


@cache
def constraints(path: str) -> tuple[Constraint, ...]:
    """Return the invariants of an element or type, without ele-1 and ext-1, which all elements and extensions have."""
    return tuple(_constraints()[number] for number in _table()["constrained"].get(path, ()))


@cache
def binding(path: str) -> Binding | None:
    """Return the binding of an element or type, if its value set is known."""
    strength, url = _table()["bindings"].get(path, ("", ""))
    value_set = _table()["valuesets"].get(url)
    return Binding(strength, url, *value_set) if value_set else None


def code_system(url: str) -> CodeSystem | None:
    """Return a code system, if it is HL7's."""
    return _code_system(url) if url in _table()["systems"] else None  # `url` may be any text, which is not cached


@cache
def _code_system(url: str) -> CodeSystem:
    content, case_sensitive, codes = _table()["systems"][url]
    return CodeSystem(content, frozenset(codes if case_sensitive else map(str.lower, codes)), case_sensitive)


def extension(url: str) -> ExtensionDefinition | None:
    """Return the definition of an extension, if HL7 defined it."""
    return _extension(url) if url in _table()["extensions"] else None


@cache
def _extension(url: str) -> ExtensionDefinition:
    contexts, types, modifier, nested = _table()["extensions"][url]
    parts = {name: NestedExtension(least, most, tuple(kinds)) for name, (least, most, kinds) in nested.items()}
    return ExtensionDefinition(tuple(expression for _, expression in contexts), tuple(types), modifier, parts)


def profiled_type(url: str) -> str | None:
    """Return the type that a profile of HL7 constrains."""
    resource_type: str | None = _table()["profiles"].get(url)
    return resource_type


@cache
def unit_codes() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return UCUM's prefixes, the units that may have one, and all other units."""
    table = read("units")
    return tuple(table["prefixes"]), tuple(table["metric"]), tuple(table["other"])
