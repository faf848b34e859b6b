"""Write resources in Turtle, in FHIR R4's RDF form; HAPI's layout and order of properties differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions import Element, children
from fhir_gym.fhir.serialization.primitives import Number
from fhir_gym.types import Resource

_PREFIXES = """PREFIX fhir: <http://hl7.org/fhir/>
PREFIX rdf:  <http://www.w3.org/1999/02/22-rdf-syntax-ns#>
PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#>
PREFIX sct:  <http://snomed.info/id#>
PREFIX xsd:  <http://www.w3.org/2001/XMLSchema#>

"""
_OWNERS = MappingProxyType(
    {
        **dict.fromkeys(("id", "meta", "implicitRules", "language"), "Resource"),
        **dict.fromkeys(("text", "contained", "extension", "modifierExtension"), "DomainResource"),
    }
)
"""The type that defines an element which all resources share."""
_DATES = MappingProxyType({4: "gYear", 7: "gYearMonth", 10: "date"})


def write_turtle(resource: Resource) -> bytes:
    """Return a decoded JSON resource as Turtle; elements without a definition are left out."""
    kind, properties = _resource(resource)
    tree = [("fhir:nodeRole", "fhir:treeRoot")]
    return (_PREFIXES + _node([*kind, *properties, *tree], 0) + " .\n").encode("utf-8", "replace")


def _resource(value: dict[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    name = value.get("resourceType")
    elements = _elements(name) if isinstance(name, str) else {}
    kind = [("rdf:type", f"fhir:{name}")] if elements else []
    return kind, [
        (f"fhir:{_OWNERS.get(key, name)}.{key}", text)
        for key, item in value.items()
        if (element := elements.get(key)) is not None
        for text in _values(item, element)
    ]


def _elements(path: str) -> Mapping[str, Element]:
    try:
        return children(path)
    except UnknownNameError:
        return {}


def _values(content: Any, element: Element) -> list[str]:
    """Return the nodes of an element; a value in a list gets its index."""
    if not isinstance(content, list):
        return [_value(content, element, [])]
    return [
        _value(element_value, element, [("fhir:index", str(number))])
        for number, element_value in enumerate(content)
        if element_value is not None
    ]


def _value(content: Any, element: Element, index: list[tuple[str, str]]) -> str:
    if not isinstance(content, dict):
        return _node([("fhir:value", _literal(content, element.type)), *index], 1)
    if "resourceType" in content:
        kind, properties = _resource(content)
        return _node([*kind, *properties, *index], 1)
    properties = [
        (f"fhir:{_owner(element.content, name, inner)}.{name}", text)
        for name, item in content.items()
        if (inner := _elements(element.content).get(name)) is not None
        for text in _values(item, inner)
    ]
    return _node([*properties, *index], 1)


def _owner(content: str, name: str, element: Element) -> str:
    return "Element" if name in ("id", "extension") else element.path.rpartition(".")[0] or content


def _literal(value: Any, type_: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Number):
        return f'"{value.text}"^^xsd:decimal'
    if isinstance(value, int):
        return str(value)
    text = json.dumps(str(value), ensure_ascii=False)
    if type_ in ("date", "dateTime", "instant"):
        return f"{text}^^xsd:{_DATES.get(len(str(value)), 'dateTime')}"
    return f"{text}^^xsd:anyURI" if type_ in ("uri", "url", "canonical") else text


def _node(properties: list[tuple[str, str]], depth: int) -> str:
    """Return a blank node with its properties."""
    separator = " ;\n  " if depth == 0 else " ; "
    return "[ " + separator.join(f"{name} {value}" for name, value in properties) + " ]"
