"""Strict validation: refuse resources that are not valid R4, even if HAPI would store them.

The tables of `fhir_gym.fhir.definitions` check structure, cardinality and required codes; the models of
`fhir.resources` (R4B, which has the same data types) check the formats of values. These models are imported on first
use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, Element, children, codes
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization.errors import ParseError
from fhir_gym.fhir.serialization.narrative import check_div
from fhir_gym.types import Resource

if TYPE_CHECKING:
    from pydantic import BaseModel

# R4B redefined these two types. Types that R4B dropped need no entry here, because they have no model.
_REDEFINED = frozenset(["Evidence", "EvidenceVariable"])
_SHOWN_PROBLEMS = 20
_SHOWN_CODES = 12
_MAX_DEPTH = 100
_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "positiveInt": (int,),
    "unsignedInt": (int,),
    "decimal": (int, float),
}
# Errors in the structure, which the tables of `fhir_gym.fhir.definitions` check.
_STRUCTURAL = frozenset(["extra_forbidden", "missing", "list_type", "dict_type", "model_type", "is_instance_of"])


def validate_strict(resource: Resource) -> None:
    """Raise if a resource is not valid R4.

    Raises:
        FhirError: 422, with all problems in one issue.
    """
    found = problems(resource)
    if not found:
        return
    shown = "; ".join(found[:_SHOWN_PROBLEMS])
    more = f"; and {len(found) - _SHOWN_PROBLEMS} more" if len(found) > _SHOWN_PROBLEMS else ""
    noun = "problem" if len(found) == 1 else "problems"
    raise FhirError(422, f"The resource is not valid R4, {len(found)} {noun}: {shown}{more}", code="invalid")


def problems(resource: Any) -> list[str]:
    """Return the problems of a resource, each with its path; empty if the resource is valid."""
    kind = resource.get("resourceType") if isinstance(resource, dict) else None
    if kind not in RESOURCE_TYPE_SET:
        return [f"resourceType: {kind!r} is not an R4 resource type"]
    found = list(_resource(resource, kind, 0))
    if not found:
        found = list(_formats(resource, kind))
    return found


# structure


def _resource(value: Any, where: str, depth: int) -> Iterator[str]:
    kind = value.get("resourceType")
    if not isinstance(kind, str) or kind not in RESOURCE_TYPE_SET:
        yield f"{where}.resourceType: {kind!r} is not an R4 resource type"
        return
    yield from _object(value, kind, where, depth)


def _object(value: Mapping[str, Any], path: str, where: str, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        yield f"{where}: nested deeper than {_MAX_DEPTH} levels"
        return
    known = children(path)
    if not value:
        yield f"{where}: an object may not be empty"
    for name, inner in value.items():
        element = known.get(name.removeprefix("_"))
        if name == "resourceType" and "." not in path and path in RESOURCE_TYPE_SET:
            continue
        if element is None or (name.startswith("_") and element.content):
            yield f"{where}.{name}: unknown element"
        elif name.startswith("_"):
            yield from _beside(inner, element, f"{where}.{name}", depth)
        else:
            yield from _element(inner, element, f"{where}.{name}", depth)
    yield from _missing(value, path, where)


def _missing(value: Mapping[str, Any], path: str, where: str) -> Iterator[str]:
    for label, names in _required(path):
        given = [name for name in names if name in value or f"_{name}" in value]
        if not given:
            yield f"{where}.{label}: required element is missing"
    for stem, names in _choices(path):
        given = [name for name in names if name in value]
        if len(given) > 1:
            yield f"{where}.{stem}[x]: only one of {', '.join(given)} may be there"
    if (
        path == "Extension"
        and "extension" not in value
        and not any(name.startswith(("value", "_value")) for name in value)
    ):
        yield f"{where}: an extension needs a value or extensions"


@cache
def _required(path: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the label of each mandatory element, and the JSON names under which the element may be present."""
    found: dict[str, list[str]] = {}
    for element in children(path).values():
        if element.required:
            found.setdefault(f"{element.choice}[x]" if element.choice else element.name, []).append(element.name)
    return tuple((label, tuple(names)) for label, names in found.items())


@cache
def _choices(path: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    for element in children(path).values():
        if element.choice:
            found.setdefault(element.choice, []).append(element.name)
    return tuple((stem, tuple(names)) for stem, names in found.items())


def _element(value: Any, element: Element, where: str, depth: int) -> Iterator[str]:
    if element.many:
        if not isinstance(value, list):
            yield f"{where}: must be an array"
        elif not value:
            yield f"{where}: an array may not be empty"
        else:
            for index, item in enumerate(value):
                yield from _single(item, element, f"{where}[{index}]", depth)
    elif isinstance(value, list):
        yield f"{where}: must be a single value, not an array"
    else:
        yield from _single(value, element, where, depth)


def _single(value: Any, element: Element, where: str, depth: int) -> Iterator[str]:
    if not element.content:
        yield from _primitive(value, element, where)
    elif not isinstance(value, dict):
        yield f"{where}: must be an object ({element.type})"
    elif element.type == "Resource":
        yield from _resource(value, where, depth + 1)
    else:
        yield from _object(value, element.content, where, depth + 1)
        if element.binding is not None and element.type in ("CodeableConcept", "Coding"):
            yield from _bound_concept(value, element.binding, where)


def _primitive(value: Any, element: Element, where: str) -> Iterator[str]:
    if value is None and element.many:
        return
    wanted = _JSON_TYPES.get(element.type, (str,))
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        yield f"{where}: {_shown(value)} is not a {element.type}"
    elif element.type == "code" and element.binding is not None and value not in codes(element.binding):
        yield f"{where}: {_shown(value)} is not one of {_listed(element.binding)}"
    elif element.type == "xhtml":
        try:
            check_div(str(value))
        except ParseError as error:
            yield f"{where}: {error}"


def _bound_concept(value: Mapping[str, Any], binding: str, where: str) -> Iterator[str]:
    codings = value.get("coding", [value] if "code" in value else [])
    given = [c["code"] for c in codings if isinstance(c, dict) and "code" in c] if isinstance(codings, list) else []
    if not any(code in codes(binding) for code in given if isinstance(code, str)):
        yield f"{where}: no code of {_listed(binding)}"


def _beside(value: Any, element: Element, where: str, depth: int) -> Iterator[str]:
    """Check the id and extensions of a primitive."""
    items = value if element.many and isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, dict):
            yield from _object(item, "Element", where, depth + 1)
        elif item is not None or not element.many:
            yield f"{where}: must be an object"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _listed(binding: str) -> str:
    known = sorted(codes(binding))
    more = f", … ({len(known)} codes of {binding})" if len(known) > _SHOWN_CODES else ""
    return ", ".join(known[:_SHOWN_CODES]) + more


# formats


def _formats(resource: Resource, kind: str) -> Iterator[str]:
    """Check the formats of dates, ids, times and URIs that have the right JSON type."""
    from pydantic import ValidationError

    model = _model(kind)
    if model is None:
        return
    try:
        model.model_validate(resource)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_context=False):
            if fault["type"] not in _STRUCTURAL:
                where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault["loc"])
                yield f"{kind}{where}: {fault['msg'].removeprefix('Value error, ')} ({_shown(fault['input'])})"


@cache
def _model(kind: str) -> type[BaseModel] | None:
    """Return the model of a type; None for types that R4B dropped or redefined."""
    from fhir.resources.R4B import get_fhir_model_class

    if kind in _REDEFINED:
        return None
    try:
        found: type[BaseModel] = get_fhir_model_class(kind)
    except ValueError:
        return None
    return found
