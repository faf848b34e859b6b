"""The entries of a Bundle: their URLs and the ids of their resources."""

from __future__ import annotations

import re

from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.fhir.validation.issues import Issues
from fhir_gym.fhir.validation.primitives import is_absolute
from fhir_gym.fhir.validation.tree import Node

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
