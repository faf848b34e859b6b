"""What the parser behind HAPI's JSON Patch refuses, and the one of a request body lets pass."""

from __future__ import annotations

from fhir_gym.fhir.definitions import RESOURCE_TYPES, Element, children
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.types import Json, Resource

__all__ = ["check_strict"]

_TYPES = frozenset(RESOURCE_TYPES)
_DEPTH = 64
_COMMENTS = "fhir_comments"


def check_strict(resource: Json, resource_type: str) -> None:
    """Refuse unknown elements, scalars for objects and objects for scalars, and empty strings.

    Raises:
        FhirError: 400 with the parser's text.
    """
    found = resource.get("resourceType") if isinstance(resource, dict) else None
    if not isinstance(found, str) or not found:
        raise _refuse("HAPI-1838: Invalid JSON content detected, missing required element: 'resourceType'")
    if found != resource_type:
        raise _refuse(f'HAPI-1814: Incorrect resource type found, expected "{resource_type}" but found "{found}"')
    _check_object(resource, resource_type, 0)


def _refuse(text: str) -> FhirError:
    return FhirError(400, text)


def _check_object(value: Resource, content: str, depth: int) -> None:
    if depth > _DEPTH:
        raise _refuse(f"The patched resource is nested more than {_DEPTH} levels deep")
    elements = children(content)
    for name, inner in value.items():
        if (name == "resourceType" and content in _TYPES) or name == _COMMENTS:
            continue
        element = elements.get(name.removeprefix("_"))
        if element is None or (name.startswith("_") and element.content):
            raise _refuse(f"HAPI-1825: Unknown element '{name}' found during parse")
        if not name.startswith("_"):
            for item in inner if isinstance(inner, list) else [inner]:
                _check_value(item, element, depth)


def _check_value(value: Json, element: Element, depth: int) -> None:
    if value is None or isinstance(value, list):
        return
    if isinstance(value, dict):
        if not element.content:
            if element.type == "xhtml":
                return
            raise _wrong_type(element.name, "SCALAR", "OBJECT")
        content = element.content
        if content == "Resource":
            kind = value.get("resourceType")
            if not isinstance(kind, str) or kind not in _TYPES:
                return  # the lenient parser has the words for it
            content = kind
        _check_object(value, content, depth + 1)
    elif element.content:
        scalar = "BOOLEAN" if isinstance(value, bool) else "STRING" if isinstance(value, str) else "NUMBER"
        raise _wrong_type(element.name, "OBJECT", f"SCALAR ({scalar})")
    elif value == "":
        raise _refuse(
            f'HAPI-1821: [element="{element.name}"] Invalid attribute value "": Attribute value must not be empty ("")'
        )


def _wrong_type(name: str, expected: str, found: str) -> FhirError:
    return _refuse(f"HAPI-1820: Found incorrect type for element {name} - Expected {expected} and found {found}")
