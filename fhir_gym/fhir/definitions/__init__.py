"""FHIR R4 (4.0.1) as tables: resource types, elements, required codes, search parameters, the patient compartment.

`scripts/derive_definitions.py` derives the tables from HL7's official package. Tables other than the list of types are
read on first use.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fhir_gym.errors import UnknownNameError

__all__ = [
    "DATA_TYPES",
    "PRIMITIVES",
    "RESOURCE_TYPES",
    "RESOURCE_TYPE_SET",
    "Binding",
    "CodeSystem",
    "Constraint",
    "Element",
    "ExtensionDefinition",
    "NestedExtension",
    "SearchParameter",
    "binding",
    "bound_value_set",
    "children",
    "code_system",
    "codes",
    "constraints",
    "enum_name",
    "extension",
    "is_complete",
    "modifiers",
    "patient_parameters",
    "profiled_type",
    "search_parameters",
    "unit_codes",
    "value_set",
]

_DATA = Path(__file__).with_name("data")


@cache
def _table(name: str) -> dict[str, Any]:
    """Read a data file; large files that few processes need are compressed."""
    path = _DATA / f"{name}.json"
    text = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(f"{name}.json.gz").read_bytes())
    table: dict[str, Any] = json.loads(text)
    return table


_TYPES = _table("types")

RESOURCE_TYPES: tuple[str, ...] = tuple(_TYPES["resource"])
"""The concrete resource types, sorted."""

RESOURCE_TYPE_SET = frozenset(RESOURCE_TYPES)

DATA_TYPES: tuple[str, ...] = tuple(_TYPES["complex-type"])
"""The complex data types with elements (`HumanName` …), sorted."""

PRIMITIVES: frozenset[str] = frozenset([*_TYPES["primitive-type"], "xhtml"])
"""The primitive types (`string`, `dateTime` …)."""


def patient_parameters(resource_type: str) -> tuple[str, ...]:
    """Return the search parameters that put a resource of this type into a patient's compartment."""
    return tuple(_TYPES["patient"].get(resource_type, ()))


def _entry(binding: str) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = _table("codes")[binding]
    except KeyError:
        raise UnknownNameError("binding", binding, _table("codes")) from None
    return entry


@cache
def codes(binding: str) -> frozenset[str]:
    """Return the codes of a required binding."""
    return frozenset(_entry(binding)["codes"])


def enum_name(binding: str) -> str | None:
    """Return the enumeration's name in HAPI's messages; None if HAPI accepts any code."""
    return binding if _entry(binding)["enum"] else None


def _system_of(binding: str) -> str | None:
    """Return the enumeration's code system; None if the enumeration has several or HAPI accepts any code."""
    entry = _entry(binding)
    url: str | None = entry["system"] if entry["enum"] else None
    return url


_COMPLETE = "(complete)"


def bound_value_set(path: str) -> str | None:
    """Return the URL of an element's value set (``Appointment.appointmentType``), for any binding strength."""
    return _table("bindings").get(path)


def value_set(url: str) -> Mapping[str, tuple[str, ...]] | None:
    """Return a value set's codes, grouped by code system and in the value set's order.

    Returns None if the value set is unknown or its codes are not listed.
    """
    name = url.partition("|")[0]
    return _listed(name) if isinstance(_table("valuesets").get(name), dict) else None  # `url` may be any text


@cache
def _listed(url: str) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({system: tuple(codes) for system, codes in _table("valuesets")[url].items()})


@cache
def is_complete(system: str) -> bool:
    """Return whether all codes of a code system are known (HL7's own systems, but not SNOMED CT, LOINC …)."""
    return system in _table("valuesets")[_COMPLETE]


_ALWAYS_MODIFIERS = ("implicitRules", "modifierExtension")


@dataclass(frozen=True, slots=True)
class Element:
    """One JSON property of a resource or data type.

    Attributes:
        name: JSON name. A choice has one element for each type (``valueQuantity``).
        type: FHIR type: ``Quantity``, ``string``, ``BackboneElement``, ``Resource`` …
        path: The path of the element's definition (``Observation.value[x]``).
        content: The type or backbone path with which `children` returns the elements of the value; empty for a
            primitive value.
        choice: The stem of the choice to which the element belongs (``value``), or None.
        many: Whether the element repeats (as a JSON array).
        required: Whether the element must be present; for a choice, whether one of its types must be.
        summary: Whether `_summary=true` includes the element.
        binding: The required binding, if its codes are known; else None.
        system: The code system of a bound ``code``, if it is unique.
        targets: Allowed target types of a Reference; empty if all types are allowed.
    """

    name: str
    type: str
    path: str
    content: str = ""
    choice: str | None = None
    many: bool = False
    required: bool = False
    summary: bool = False
    binding: str | None = None
    system: str | None = None
    targets: tuple[str, ...] = ()


@cache
def children(path: str) -> Mapping[str, Element]:
    """Return the elements below a path in the order of their definition.

    Args:
        path: A resource type or data type, or such a type followed by element names (``Patient.contact``). A
            `contentReference` to another element is followed.
    """
    table = _table("elements")
    if path not in table:
        return _below(path)
    return MappingProxyType({e.name: e for row in table[path] for e in _expand(path, *row)})


@cache
def modifiers(path: str) -> frozenset[str]:
    """Return the JSON names of the modifier elements (``isModifier``) directly below a path.

    Args:
        path: A resource type or data type, or such a type followed by element names.
    """
    return frozenset((*_ALWAYS_MODIFIERS, *_table("modifiers").get(path, ())))


def _below(path: str) -> Mapping[str, Element]:
    parent, _, name = path.rpartition(".")
    content = children(parent)[name].content if parent and name in children(parent) else ""
    if not content:
        raise UnknownNameError("path", path, _table("elements"))
    return children(content)


def _expand(
    parent: str, name: str, types: str, flags: str = "", binding: str = "", targets: str = "", reference: str = ""
) -> Iterator[Element]:
    path = f"{parent}.{name}"
    stem = name.removesuffix("[x]")
    for type_ in types.split() or ["BackboneElement"]:
        inner = path if path in _table("elements") else type_
        is_code = type_ == "code" and binding
        yield Element(
            name=stem + type_[0].upper() + type_[1:] if stem != name else name,
            type=type_,
            path=path,
            content=reference or ("" if type_ in PRIMITIVES else inner),
            choice=stem if stem != name else None,
            many="m" in flags,
            required="r" in flags,
            summary="s" in flags,
            binding=binding or None,
            system=_system_of(binding) if is_code else None,
            targets=tuple(targets.split()) if type_ == "Reference" else (),
        )


@dataclass(frozen=True, slots=True)
class SearchParameter:
    """One search parameter of one resource type.

    Attributes:
        id: Number that identifies the resource type and name; it changes only if the tables change.
        name: Name in a query (``birthdate``).
        type: ``token``, ``string``, ``date``, ``number``, ``quantity``, ``uri``, ``reference`` or ``composite``.
        expression: FHIRPath of the indexed elements of this resource type.
        targets: Target types of a reference.
        components: For a composite, the parameter name of each component, and the component's expression relative to
            `expression`.
        definition: The id of the SearchParameter resource in the official package.
    """

    id: int
    name: str
    type: str
    expression: str
    targets: tuple[str, ...] = ()
    components: tuple[tuple[str, str], ...] = ()
    definition: str = ""


@cache
def _all() -> Mapping[str, Mapping[str, SearchParameter]]:
    parameters: dict[str, Mapping[str, SearchParameter]] = {}
    number = 0
    for resource_type in RESOURCE_TYPES:
        rows = [*_table("search")["Resource"], *_table("search")["DomainResource"], *_table("search")[resource_type]]
        own: dict[str, SearchParameter] = {}
        for parameter in _searchable(resource_type, rows):
            number += 1
            own[parameter[0]] = SearchParameter(number, *parameter)
        parameters[resource_type] = MappingProxyType(own)
    return parameters


def _searchable(resource_type: str, rows: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the usable parameters.

    As in HAPI, some parameters are not usable: the package's examples, parameters without an expression (`_text`,
    `_query`, …), and parameters on extensions, because their expressions are not valid FHIRPath.
    """
    for name, identifier, type_, expression, targets, components in sorted(_filled(rows)):
        if identifier.startswith("example") or not expression or "xtension(" in expression:
            continue
        for base in ("Resource.", "DomainResource."):
            if expression.startswith(base):
                expression = f"{resource_type}.{expression.removeprefix(base)}"
        allowed = RESOURCE_TYPES if targets == "*" else tuple(targets.split())
        yield name, type_, expression, allowed, tuple((part, inner) for part, inner in components), identifier


def _filled(rows: list[list[Any]]) -> Iterator[list[Any]]:
    """Yield the rows with the empty last columns that the file omits."""
    missing: list[Any] = ["", "", []]
    for row in rows:
        yield row + missing[len(row) - 3 :]


@cache
def search_parameters(resource_type: str) -> Mapping[str, SearchParameter]:
    """Return a resource type's search parameters by name, including those that all types have (`_id`, `_tag` …)."""
    try:
        return _all()[resource_type]
    except KeyError:
        raise UnknownNameError("resource type", resource_type, RESOURCE_TYPES) from None


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
def _constraints() -> tuple[Constraint, ...]:
    return tuple(Constraint(*row) for row in _table("validation")["constraints"])


@cache
def constraints(path: str) -> tuple[Constraint, ...]:
    """Return the invariants of an element or type, without ele-1 and ext-1, which all elements and extensions have."""
    return tuple(_constraints()[number] for number in _table("validation")["constrained"].get(path, ()))


@cache
def binding(path: str) -> Binding | None:
    """Return the binding of an element or type, if its value set is known."""
    strength, url = _table("validation")["bindings"].get(path, ("", ""))
    value_set = _table("validation")["valuesets"].get(url)
    return Binding(strength, url, *value_set) if value_set else None


def code_system(url: str) -> CodeSystem | None:
    """Return a code system, if it is HL7's."""
    return (
        _code_system(url) if url in _table("validation")["systems"] else None
    )  # `url` may be any text, which is not cached


@cache
def _code_system(url: str) -> CodeSystem:
    content, case_sensitive, codes = _table("validation")["systems"][url]
    return CodeSystem(content, frozenset(codes if case_sensitive else map(str.lower, codes)), case_sensitive)


def extension(url: str) -> ExtensionDefinition | None:
    """Return the definition of an extension, if HL7 defined it."""
    return _extension(url) if url in _table("validation")["extensions"] else None


@cache
def _extension(url: str) -> ExtensionDefinition:
    contexts, types, modifier, nested = _table("validation")["extensions"][url]
    parts = {name: NestedExtension(least, most, tuple(kinds)) for name, (least, most, kinds) in nested.items()}
    return ExtensionDefinition(tuple(expression for _, expression in contexts), tuple(types), modifier, parts)


def profiled_type(url: str) -> str | None:
    """Return the type that a profile of HL7 constrains."""
    resource_type: str | None = _table("validation")["profiles"].get(url)
    return resource_type


@cache
def unit_codes() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return UCUM's prefixes, the units that may have one, and all other units."""
    table = _table("units")
    return tuple(table["prefixes"]), tuple(table["metric"]), tuple(table["other"])
