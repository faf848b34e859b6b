"""Reduce resources to the elements requested by `_elements` and `_summary`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from fhir_gym.fhir.definitions import children
from fhir_gym.types import Resource

SUBSETTED = {
    "system": "http://terminology.hl7.org/CodeSystem/v3-ObservationValue",
    "code": "SUBSETTED",
    "display": "Resource encoded in summary mode",
}
"""The tag that marks an incomplete resource."""

_ALWAYS = ("resourceType", "id", "meta")
# The requested part of an object: None for the whole object; else, by property name, the requested part of the value.
_Asked = dict[str, Any] | None


def subset(
    resource: Resource, *, elements: Sequence[str] | None, summary: str | None, scope: str | None = None
) -> Resource:
    """Return the part of a resource that `_elements` or `_summary` requests; the resource itself is not changed.

    Args:
        resource: The whole resource.
        elements: Element names or paths. A path that starts with a type (``Patient.name.family``) applies to this type,
            others to `scope`.
        summary: ``true``, ``data`` or ``text``; any other value requests the whole resource.
        scope: The type in the request's path, to which names without a type apply; None means the resource's own type.

    Returns:
        The part, with the SUBSETTED tag; the resource itself if `elements` and `summary` do not apply to its type.
    """
    kind = resource["resourceType"]
    if elements is not None:
        asked = _asked(kind, elements, scope or kind)
        if asked is None:
            return resource
        kept = _part(resource, asked)
    elif summary in ("true", "data", "text"):
        kept = _summarised(resource, kind, summary)
    else:
        return resource
    head = {name: resource[name] for name in _ALWAYS if name in resource}
    return _tagged({**head, **kept})


def _asked(kind: str, elements: Iterable[str], scope: str) -> dict[str, Any] | None:
    """Return the requested elements of one type; None if no name applies to the type."""
    asked: dict[str, Any] = {}
    about = False
    for element in elements:
        if not element:
            continue
        # As in HAPI, a name that starts with a capital is a type, even if there is no such type.
        first, _, rest = element.partition(".")
        owner, path = (first, rest) if first[:1].isupper() or first == "*" else (scope, element)
        if owner not in (kind, "*"):
            continue
        about = True
        if path:
            _ask(asked, path.split("."))
        else:
            asked["*"] = None
    return asked if about else None


def _ask(asked: dict[str, Any], steps: list[str]) -> None:
    """Add one path, unless its parent is already requested as a whole."""
    for step in steps[:-1]:
        inner = asked.setdefault(step, {})
        if inner is None:
            return
        asked = inner
    asked[steps[-1]] = None


def _part(source: Mapping[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    if "*" in asked:
        return dict(source)
    choices = _choices(source["resourceType"]) if "resourceType" in source else {}
    kept: dict[str, Any] = {}
    for name, value in source.items():
        plain = name.removeprefix("_")
        stem = choices.get(plain)
        # a choice element is requested by its stem or by any of its types: `valueString` also keeps a `valueQuantity`
        names = (plain,) if stem is None else (plain, stem, f"{stem}[x]", *(n for n in asked if choices.get(n) == stem))
        requested = next((n for n in names if n in asked), None)
        if requested is None:
            continue
        part = _of(value, asked[requested])
        if _says(part):
            kept[name] = part
    return kept


def _says(part: Any) -> bool:
    """Return whether a part has a value; false and 0 are values."""
    return part is not None and part not in ({}, [])


def _of(value: Any, asked: _Asked) -> Any:
    if asked is None:
        return value
    if isinstance(value, dict):
        return _part(value, asked)
    if isinstance(value, list):
        return [part for item in value if _says(part := _of(item, asked))]
    return None


@cache
def _choices(kind: str) -> Mapping[str, str]:
    """Return the stem of each choice by JSON name."""
    return {e.name: e.choice for e in children(kind).values() if e.choice is not None}


# summaries


def _summarised(resource: Resource, kind: str, summary: str) -> dict[str, Any]:
    if summary == "data":
        return {name: value for name, value in resource.items() if name != "text"}
    if summary == "text":
        mandatory = _mandatory(kind)
        return {name: value for name, value in resource.items() if name.removeprefix("_") in mandatory}
    return _summary(resource, kind)


@cache
def _mandatory(kind: str) -> frozenset[str]:
    return frozenset(["text", *(e.name for e in children(kind).values() if e.required)])


@cache
def _in_summary(path: str) -> Mapping[str, str]:
    """Return the names of the summary elements below a path, each with the path of its content."""
    return {e.name: e.content for e in children(path).values() if e.summary}


def _summary(source: Mapping[str, Any], path: str) -> dict[str, Any]:
    in_summary = _in_summary(path)
    kept: dict[str, Any] = {}
    for name, value in source.items():
        content = in_summary.get(name.removeprefix("_"))
        if content is None:
            continue
        part = _summary_of(value, content)
        if _says(part):
            kept[name] = part
    return kept


def _summary_of(value: Any, content: str) -> Any:
    if isinstance(value, list):
        return [part for item in value if (part := _summary_of(item, content)) != {}]
    if not isinstance(value, dict) or not content or content == "Resource":
        return value
    return _summary(value, content)


def _tagged(resource: Resource) -> Resource:
    """Add the SUBSETTED tag."""
    meta = resource.get("meta", {})
    tags = meta.get("tag", [])
    if SUBSETTED not in tags:
        resource["meta"] = {**meta, "tag": [*tags, SUBSETTED]}
    # `meta` follows `id`, even if `meta` is new
    head = {name: resource[name] for name in _ALWAYS if name in resource}
    return {**head, **resource}
