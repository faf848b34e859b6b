"""Read resources from Bundles, and resolve and rewrite the references between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fhir_gym.types import Json, Resource, as_object, objects_in
from fhir_gym.worlds.files import SourceRecord, read_document


def rewrite_references(value: Json, change: Callable[[str], str]) -> None:
    """Replace every `reference` at any depth.

    Args:
        value: A resource or a part of one.
        change: Maps the old reference to the new one.
    """
    todo = [value]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo.extend(node)
        elif isinstance(node, dict):
            target = node.get("reference")
            if isinstance(target, str):
                node["reference"] = change(target)
            todo.extend(node.values())


_UUID = "urn:uuid:"
_READABLE = ("collection", "transaction", "batch", "searchset", "history", "document", "message")


def bundle_records(files: Sequence[tuple[Path, str]]) -> Iterator[SourceRecord]:
    """Yield one record for each entry of the Bundles.

    Args:
        files: Path and display name of each file.
    """
    by_identifier: dict[str, str] = {}
    for path, shown in files:
        for record in _entries(read_document(path, shown)):
            by_identifier |= _identifiers(record.value) if record.value else {}
    for path, shown in files:
        read = read_document(path, shown)
        resolve = partial(_resolved, _addresses(read.value), by_identifier)
        for record in _entries(read):
            rewrite_references(record.value, resolve)
            yield record


def _entries(read: SourceRecord) -> Iterator[SourceRecord]:
    """Yield a record for each entry, with the entry's resource or a problem."""
    if read.problem:
        yield read
        return
    bundle = read.value
    if not isinstance(bundle, dict) or bundle.get("resourceType") != "Bundle":
        kind = as_object(bundle).get("resourceType")
        what = f"a {kind}, not a Bundle: put resources into an .ndjson file, one per line" if kind else "not a Bundle"
        yield SourceRecord(read.place, problem=what)
        return
    if bundle.get("type") not in _READABLE or not isinstance(bundle.get("entry", []), list):
        yield SourceRecord(read.place, problem=f"not a Bundle of resources: type {bundle.get('type')!r}")
        return
    for number, entry in enumerate(bundle.get("entry", [])):
        place = f"{read.place} entry[{number}]"
        method = as_object(as_object(entry).get("request")).get("method", "POST")
        if method not in ("POST", "PUT"):
            yield SourceRecord(place, problem=f"only POST and PUT can be imported, not {method}")
        elif not isinstance(entry, dict) or not isinstance(entry.get("resource"), dict):
            yield SourceRecord(place, problem="no resource")
        else:
            yield SourceRecord(place, _identified(entry))


def _identified(entry: dict[str, Any]) -> Resource:
    resource: Resource = entry["resource"]
    url = entry.get("fullUrl")
    if "id" not in resource and isinstance(url, str) and url.startswith(_UUID):
        resource["id"] = url.removeprefix(_UUID)
    return resource


def _addresses(bundle: Json) -> dict[str, str]:
    """Map the fullUrl of each entry to `Type/id`."""
    addresses = {}
    for entry in objects_in(as_object(bundle).get("entry")):
        url = entry.get("fullUrl")
        if isinstance(url, str) and isinstance(entry.get("resource"), dict):
            resource = _identified(entry)
            addresses[url] = f"{resource.get('resourceType')}/{resource.get('id')}"
    return addresses


def _identifiers(resource: Resource) -> dict[str, str]:
    """Map the conditional references to a resource (`Type?identifier=system|value`) to `Type/id`."""
    kind, by_system = resource.get("resourceType"), {}
    own = f"{kind}/{resource.get('id')}"
    for identifier in objects_in(resource.get("identifier")):
        if isinstance(identifier.get("value"), str):
            by_system[f"{kind}?identifier={identifier.get('system', '')}|{identifier['value']}"] = own
    return by_system


def _resolved(addresses: Mapping[str, str], by_identifier: Mapping[str, str], target: str) -> str:
    return addresses.get(target) or by_identifier.get(target) or target
