"""Check and normalise the references of a resource to be stored, with HAPI's messages.

Every Reference element must name a type that its definition allows. A reference in an element with a search parameter
must also point to an existing resource, and is stored as ``Type/id``. Extensions and contained resources are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from fhir_gym.fhir import index, search
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, Element, children, search_parameters
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization import MAX_DEPTH
from fhir_gym.fhir.store import ResourceRow, Store, stored
from fhir_gym.fhir.store.references import first_referrer
from fhir_gym.types import Resource

_MIN_BASE = 5  # HAPI reads "x/Patient/1" as Patient/1: only longer text before the type is a base URL
_STEPS_OF_A_REFERENCE = 50
_PATH = re.compile(r"[A-Z]\w*(?:\.[a-z]\w*)+")
_CAST = re.compile(r"\s+as\s+\w+|\.as\(\w+\)|\.ofType\(\w+\)|\.where\(resolve\(\) is \w+\)")


class FoundReference(NamedTuple):
    """One Reference value in a resource.

    Attributes:
        path: The path of the element (``Observation.subject``), without ``[x]``.
        value: The Reference object, to be changed in place.
        targets: The allowed types; empty if all types are allowed.
        choice: Whether the element belongs to a choice; if so, HAPI does not check the target's type.
        indexed: Whether a search parameter covers the element.
    """

    path: str
    value: dict[str, Any]
    targets: tuple[str, ...]
    choice: bool
    indexed: bool


class ElementSlot(NamedTuple):
    """An element that may contain references: its definition if it is itself a Reference, and its children."""

    element: Element | None
    indexed: bool
    path: str
    below: str


# finding references


@cache
def indexed_paths(resource_type: str) -> frozenset[str]:
    """Return the paths of elements that the type's reference parameters index (``Appointment.participant.actor``)."""
    paths: set[str] = set()
    for parameter in search_parameters(resource_type).values():
        if parameter.type == "reference":
            paths.update(_PATH.findall(_CAST.sub("", parameter.expression)))
    return frozenset(paths)


@cache
def _leads_to_reference(content: str) -> bool:
    """Return whether a type or backbone path can contain a Reference outside of extensions."""
    seen, todo = set[str](), [content]
    while todo:
        here = todo.pop()
        if here in seen:
            continue
        seen.add(here)
        for element in children(here).values():
            if element.type == "Reference":
                return True
            if element.content and element.type not in ("Extension", "Resource"):
                todo.append(element.content)
    return False


@cache
def _slots(path: str, content: str) -> Mapping[str, ElementSlot]:
    """Return the elements directly below `path` that can contain references, by JSON name."""
    root = path.partition(".")[0]
    slots: dict[str, ElementSlot] = {}
    for element in children(content).values():
        if element.type in ("Extension", "Resource") or not element.content:
            continue
        below = f"{path}.{element.choice or element.name}"
        if element.type == "Reference":
            slots[element.name] = ElementSlot(element, below in indexed_paths(root), below, "Reference")
        elif _leads_to_reference(element.content):
            slots[element.name] = ElementSlot(None, False, below, element.content)
    return slots


def find_references(resource: Resource) -> list[FoundReference]:
    """Return all Reference values of a resource in the order of its elements."""
    resource_type = resource["resourceType"]
    if not _leads_to_reference(resource_type):
        return []
    return list(_walk(resource, resource_type, resource_type, 0))


def _walk(node: dict[str, Any], path: str, content: str, depth: int) -> Iterator[FoundReference]:
    if depth > MAX_DEPTH:
        raise FhirError(400, f"Resource is nested more than {MAX_DEPTH} levels deep at {path}")
    slots = _slots(path, content)
    for name, value in node.items():
        slot = slots.get(name)
        if slot is None:
            continue
        for item in value if isinstance(value, list) else (value,):
            if not isinstance(item, dict):
                continue
            if slot.element and isinstance(item.get("reference"), str):
                element = slot.element
                yield FoundReference(slot.path, item, element.targets, element.choice is not None, slot.indexed)
            # Reference.identifier.assigner is a Reference too
            if slot.element is None or "identifier" in item:
                yield from _walk(item, slot.path, slot.below, depth + 1)


# checking references


class ReferenceParts(NamedTuple):
    """The parts of a reference, read from its end. As in HAPI, any text before the type is a base URL."""

    base: str
    type: str
    id: str


def split_reference(text: str) -> ReferenceParts:
    """Split a literal reference; missing parts are empty."""
    text = text.partition("/_history/")[0]
    rest, slash, id = text.rpartition("/")
    if not slash or not rest:
        return ReferenceParts("", "", id)
    base, slash, type_ = rest.rpartition("/")
    if base.endswith("/"):  # "http://host/Type": a type without an id
        return ReferenceParts(rest, id, "")
    return ReferenceParts(base if len(base) >= _MIN_BASE else "", type_, id)


def check_references(
    resource: Resource, store: Store, resolve: Callable[[str], str], exempt: frozenset[str] = frozenset()
) -> None:
    """Check the references of a resource and normalise them.

    Args:
        resource: The normalised resource; references are changed in place.
        store: The store with the targets.
        resolve: Resolves a conditional reference (``Organization?name=X``) to ``Type/id``, or raises.
        exempt: Targets (``Type/id``) that the same transaction will write.
    """
    references = find_references(resource)
    store.spend(_STEPS_OF_A_REFERENCE * len(references))
    literal: list[tuple[FoundReference, ReferenceParts]] = []
    for item in references:
        text = item.value["reference"]
        if text.startswith("#"):
            continue
        if "?" in text and not text.startswith(("urn:", "http:", "https:")):
            item.value["reference"] = resolve(text)
            continue
        parts = split_reference(text) if not text.startswith("urn:") else ReferenceParts("", "", text)
        if parts.type and item.targets and not item.choice and parts.type not in item.targets:
            raise FhirError(
                422,
                f"HAPI-0931: Invalid reference found at path '{item.path}'. "
                f"Resource type '{parts.type}' is not valid for this path",
            )
        literal.append((item, parts))
    for item, parts in literal:
        if item.indexed:
            _check_target(item, parts, store, exempt)
        if parts.type and parts.id and not parts.base:
            item.value["reference"] = f"{parts.type}/{parts.id}"


def _check_target(item: FoundReference, parts: ReferenceParts, store: Store, exempt: frozenset[str]) -> None:
    text = item.value["reference"]
    where = f"Invalid resource reference found at path[{item.path}]"
    if not parts.type:
        raise FhirError(400, f"HAPI-0505: {where} - Does not contain resource type - {text}")
    if parts.type not in RESOURCE_TYPE_SET:
        raise FhirError(400, f"HAPI-0506: {where} - Resource type is unknown or not supported on this server - {text}")
    if parts.base:
        raise FhirError(
            400,
            f'HAPI-0507: Resource contains external reference to URL "{text}" '
            "but this server is not configured to allow external references",
        )
    if not parts.id:
        raise FhirError(400, f"HAPI-0508: {where} - Does not contain resource ID - {text}")
    if item.choice and item.targets and parts.type not in item.targets:
        return  # HAPI neither checks nor indexes a wrong target type in a choice
    target = f"{parts.type}/{parts.id}"
    if target in exempt:
        return
    row = store.find(parts.type, parts.id)
    if row is None:
        raise FhirError(400, f"HAPI-1094: Resource {target} not found, specified in path: {item.path}")
    if row.deleted:
        raise FhirError(400, f"HAPI-1096: Resource {target} is deleted, specified in path: {item.path}")


def resolve_reference(ctx: RequestContext, reference: str, *, several: str = "1092") -> str:
    """Return the ``Type/id`` that a conditional reference (``Organization?name=X``) selects.

    `several` is HAPI's message number for several matches.
    """
    before, _, query = reference.partition("?")
    resource_type = before.strip("/").rpartition("/")[2]
    if resource_type not in RESOURCE_TYPE_SET:
        raise FhirError(400, f'Invalid match URL "{reference}" - Unknown resource type: {resource_type}')
    rids = search.match(ctx, resource_type, query)
    if not rids:
        raise FhirError(404, f'HAPI-1091: Invalid match URL "{reference}" - No resources match this search')
    if len(rids) > 1:
        raise FhirError(412, f'HAPI-{several}: Invalid match URL "{reference}" - Multiple resources match this search')
    return f"{resource_type}/{ctx.store.row(rids[0]).id}"


def check_unreferenced(store: Store, row: ResourceRow) -> None:
    """Refuse the deletion of a resource that another resource refers to."""
    referrer = first_referrer(store, row)
    if referrer is None:
        return
    target = f"{row.type}/{row.id}"
    referring = index.references(stored(referrer.body))
    paths = [path for path, text in referring if split_reference(text)[1:] == (row.type, row.id)]
    raise FhirError(
        409,
        f"Unable to delete {target} because at least one resource has a reference to this resource. "
        f"First reference found was resource {referrer.type}/{referrer.id} in path {paths[0]}",
    )
