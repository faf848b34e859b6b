"""Find the resources that a server has created since a known version, by the history of their type."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from fhir_gym.fhir.adapters.remote_client import RemoteClient
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.paging import link
from fhir_gym.types import Resource

Version = tuple[str, ...]
"""Id and version id of a resource; empty before the first version of a type."""

_PAGE = 200
_MOST_PAGES = 100
_PLACE = re.compile(r"(?:^|/)[A-Z][A-Za-z]+/([A-Za-z0-9\-.]{1,64})(?:/_history/([A-Za-z0-9\-.]{1,64}))?$")


def newest_version(client: RemoteClient, resource_type: str) -> Version | None:
    """Return the newest version of a type; None if the server has no history of types."""
    try:
        entries = _entries(client.page(_history(resource_type, 1)))
    except FhirError:
        return None
    return _version(entries[0]) if entries else ()


def created_since(client: RemoteClient, resource_type: str, version: Version) -> list[str] | None:
    """Return the ids of the resources of a type that were created after a version.

    Returns:
        The ids, newest first; None if the server's history does not tell.
    """
    found: list[str] = []
    url: str | None = _history(resource_type, _PAGE)
    for _ in range(_MOST_PAGES):
        if url is None:
            return found if version == () else None
        try:
            bundle = client.page(url)
        except FhirError:
            return None
        for entry in _entries(bundle):
            seen = _version(entry)
            if seen == version:
                return found
            if seen and _creates(entry, seen):
                found.append(seen[0])
        url = link(bundle, "next")
    return None


def _history(resource_type: str, count: int) -> str:
    return f"/{quote(resource_type)}/_history?_count={count}"


def _entries(bundle: Resource) -> list[Any]:
    entries = bundle.get("entry")
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


def _creates(entry: dict[str, Any], version: Version) -> bool:
    return version[1] == "1" or (entry.get("request") or {}).get("method") == "POST"


def _version(entry: dict[str, Any]) -> Version:
    """Return the version of an entry; a deletion has no resource, only URLs."""
    resource, asked, answered = (entry.get(name) or {} for name in ("resource", "request", "response"))
    if "id" in resource:
        return str(resource["id"]), str(resource.get("meta", {}).get("versionId", ""))
    match = _PLACE.search(str(asked.get("url", ""))) or _PLACE.search(str(entry.get("fullUrl", "")))
    return (match[1], match[2] or str(answered.get("etag", "")).strip('W/"')) if match else ()
