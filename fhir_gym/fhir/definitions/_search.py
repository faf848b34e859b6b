"""Search parameters of every resource type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions._files import RESOURCE_TYPES, read


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
def _table() -> dict[str, list[list[Any]]]:
    return read("search")


@cache
def _all() -> Mapping[str, Mapping[str, SearchParameter]]:
    parameters: dict[str, Mapping[str, SearchParameter]] = {}
    number = 0
    for resource_type in RESOURCE_TYPES:
        rows = [*_table()["Resource"], *_table()["DomainResource"], *_table()[resource_type]]
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


def definition_ids() -> frozenset[str]:
    """Return the ids of the SearchParameter definitions in the tables."""
    return frozenset(row[1] for rows in _table().values() for row in rows)
