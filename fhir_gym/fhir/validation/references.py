"""References: to contained resources, to the right types, to contained resources from somewhere; entries of Bundles."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, RESOURCE_TYPES
from fhir_gym.fhir.hash_order import names_in_hash_order
from fhir_gym.fhir.validation.primitives import is_absolute
from fhir_gym.fhir.validation.report import Issues
from fhir_gym.fhir.validation.tree import Node

_LOCAL = ("uri", "url", "canonical")
_PROFILE = "http://hl7.org/fhir/StructureDefinition/"


def check_reference(node: Node, issues: Issues) -> None:
    """Check a Reference."""
    reference = node.text_of("reference")
    if not reference:
        identifier = node.find("identifier")
        named = identifier is not None and (identifier.text_of("system") or identifier.text_of("value"))
        if not named and not node.text_of("display"):
            text = "A Reference without an actual reference or identifier should have a display"
            issues.add("warning", node.path, text, "Reference_REF_NoDisplay", node.steps)
        return
    if re.search(r"\s", reference, re.ASCII):
        text = f"The reference value '{reference}' is not valid: it contains whitespace"
        issues.add("error", node.path, text, "Reference_REF_Invalid_Ref", node.steps)
    target = _contained(node, reference[1:]) if reference.startswith("#") else None
    if reference.startswith("#") and target is None:
        text = f"Unable to resolve resource with reference '{reference}'"
        issues.add("error", node.path, text, "Reference_REF_CantResolve", node.steps)
    allowed = node.element.targets if node.element is not None else ()
    if stated := node.text_of("type"):
        _check_stated(node, stated, target.type if target else _type_in(reference), allowed, issues)
    if target is not None and allowed and target.type not in allowed:
        _report_target(node, target.type, names_in_hash_order(allowed), issues)


def _contained(node: Node, id: str) -> Node | None:
    """Return the resource to which a local reference leads: one that is contained, or the whole for ``#``."""
    root = _container(node)
    if not id:
        return root
    return root.contained.get(id)


def _container(node: Node) -> Node:
    """Return the outermost resource: the one around a contained resource, or the entry of a Bundle."""
    resource = node.resource
    while resource.name == "contained" and resource.parent is not None:
        resource = resource.parent.resource
    return resource


def _type_in(reference: str) -> str | None:
    """Return the type that a URL of a resource names."""
    parts = reference.partition("/_history/")[0].split("/")
    return parts[-2] if len(parts) > 1 and parts[-2] in RESOURCE_TYPE_SET else None


def _check_stated(node: Node, stated: str, actual: str | None, allowed: tuple[str, ...], issues: Issues) -> None:
    kind = stated.removeprefix(_PROFILE)
    if allowed and kind not in allowed:
        urls = ", ".join(f"CanonicalType[{_PROFILE}{name}]" for name in allowed)
        text = f"The type '{stated}' is not a valid Target for this element (must be one of [{urls}])"
        issues.add("error", node.path, text, "Reference_REF_WrongTarget", node.steps)
    if actual is not None and actual != stated:
        _report_target(node, stated, [actual], issues)


def _report_target(node: Node, kind: str, target_types: list[str], issues: Issues) -> None:
    expected = f"([{', '.join(target_types)}])"
    text = f"Invalid Resource target type. Found {kind}, but expected one of {expected}"
    issues.add("error", node.path, text, "Reference_REF_BadTargetType", node.steps)


# contained resources


def check_duplicates(resource: Node, issues: Issues) -> None:
    """Report contained resources with the id of an earlier one."""
    seen_ids: set[str] = set()
    for contained in resource.find_all("contained"):
        id = contained.text_of("id")
        if id in seen_ids:
            text = f"Duplicate ID for contained resource: {id}"
            issues.add("error", contained.path, text, "RESOURCE_DUPLICATE_CONTAINED_ID", contained.steps)
        elif id is not None:
            seen_ids.add(id)


def check_orphans(resource: Node, issues: Issues) -> None:
    """Report contained resources to which nothing leads and that do not refer to the resource (dom-3)."""
    contained = resource.find_all("contained")
    if not contained:
        return
    leads = [set(_local_references(node)) for node in contained]
    by_id: dict[str | None, list[int]] = {}
    for index, node in enumerate(contained):
        by_id.setdefault(node.text_of("id"), []).append(index)
    waiting = [ref for child in resource.children if child.name != "contained" for ref in _local_references(child)]
    reached: set[str] = set()
    while waiting:
        id = waiting.pop()
        if id not in reached:
            reached.add(id)
            waiting += (ref for index in by_id.get(id, ()) for ref in leads[index])
    for index, node in enumerate(contained):
        if node.text_of("id") not in reached and "" not in leads[index]:
            name = node.text_of("id") or "null"
            text = f"The contained resource '{name}' is not referenced to from elsewhere in the containing resource "
            text += "nor does it refer to the containing resource (dom-3)"
            path = f"{resource.path}.contained[{index}]"
            issues.add("error", path, text, "CONTAINED_ORPHAN_DOM3", node.steps)


def _local_references(node: Node) -> Iterator[str]:
    for inner in node.walk():
        if inner.type == "Reference":
            reference = inner.text_of("reference") or ""
            if reference.startswith("#"):
                yield reference[1:]
        elif inner.type in _LOCAL and (inner.text or "").startswith("#"):
            yield (inner.text or "")[1:]
        elif inner.markup is not None:
            for _, element in inner.markup.walk():
                for name in ("href", "src"):
                    if element.attributes.get(name, "").startswith("#"):
                        yield element.attributes[name][1:]


_REQUESTS = frozenset({"transaction", "transaction-response", "batch", "batch-response"})
_WITH_FIRST = frozenset({"document", "message"})
_RESTFUL = re.compile(
    rf"https?://.*/(?:{'|'.join(RESOURCE_TYPES)})/[A-Za-z0-9\-.]{{1,64}}(?:/_history/[A-Za-z0-9\-.]{{1,64}})?"
)


def check_bundle(node: Node, issues: Issues) -> None:
    """Check the entries of a Bundle."""
    kind, entries = node.text_of("type"), node.find_all("entry")
    if kind in _WITH_FIRST and not entries:
        text = "Documents or Messages must contain at least one entry"
        issues.add("error", node.path, text, "Bundle_BUNDLE_Entry_NoFirst", node.steps)
    for entry in entries:
        url = entry.text_of("fullUrl")
        if url:
            _check_url(entry, url, issues)
        elif kind not in _REQUESTS:
            text = "Except for transactions and batches, each entry in a Bundle must have a fullUrl "
            text += "which is the identity of the resource in the entry"
            issues.add("error", entry.path, text, "Bundle_BUNDLE_FullUrl_Required", entry.steps)


def _check_url(entry: Node, url: str, issues: Issues) -> None:
    resource = entry.find("resource")
    if not is_absolute(url):
        text = f"The fullUrl must be an absolute URL (not '{url}')"
        issues.add("error", entry.path, text, "Bundle_Entry_URL_Absolute", entry.steps)
    elif resource is not None and _RESTFUL.fullmatch(url):
        id = resource.text_of("id")
        if id is None:
            text = f"The fullUrl '{url}' looks like a RESTful server URL, but the resource has no id"
            issues.add("error", entry.path, text, "Bundle_Entry_URL_Matches_No_Id", entry.steps)
        elif not url.endswith(f"/{resource.type}/{id}"):
            text = f"The fullUrl '{url}' looks like a RESTful server URL, so it must end with the correct type and id "
            text += f"(/{resource.type}/{id})"
            issues.add("error", entry.path, text, "Bundle_Entry_URL_Matches_Type_Id", entry.steps)


def needs_id(node: Node) -> bool:
    """Return whether a resource inside another one needs an id: contained ones do, and some entries of a Bundle."""
    entry = node.parent
    if node.name == "contained" or entry is None:
        return entry is not None
    if entry.definition != "Bundle.entry" or entry.find("response") is not None:
        return False
    request = entry.find("request")
    return (request is None or request.find("method") is None) and not (entry.text_of("fullUrl") or "").startswith(
        "urn:"
    )
