"""The versions that a server has written since a time, from its system-level history."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from fhir_gym.fhir.adapters.remote_client import RemoteClient
from fhir_gym.fhir.clock import MILLISECOND, instant
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.paging import link
from fhir_gym.types import Json, Resource, as_object, objects_in

_PAGE = 200
_MOST_PAGES = 100
_PLACE = re.compile(r"(?:^|/)([A-Z][A-Za-z]+)/([A-Za-z0-9\-.]{1,64})(?:/_history/([A-Za-z0-9\-.]{1,64}))?$")


class Version(NamedTuple):
    """A version of a resource."""

    type: str
    id: str
    version: str

    @property
    def key(self) -> tuple[str, str]:
        """Type and id."""
        return self.type, self.id


def present(client: RemoteClient) -> str | None:
    """Return a time on the server's clock before all later versions; None without a system-level history."""
    try:
        return _present(client.page("/_history?_count=1"))
    except FhirError:
        return None


def versions_since(client: RemoteClient, time: str) -> tuple[list[Version], str] | None:
    """Return the versions since a time, newest first, and the present time; None if the server does not return them."""
    versions: list[Version] = []
    later: str | None = None
    url: str | None = f"/_history?_since={quote(time)}&_count={_PAGE}"
    for _ in range(_MOST_PAGES):
        if url is None:
            return versions, max(time, later or time)
        try:
            bundle = client.page(url)
        except FhirError:
            return None
        later = later or _present(bundle)
        versions += [version for entry in _entries(bundle) if (version := _version(entry))]
        url = link(bundle, "next")
    return None


def _present(history: Resource) -> str | None:
    """Return the time of a history Bundle, which is not before its newest version."""
    entries = _entries(history)
    newest = _time(entries[0].get("resource")) if entries else None
    now = _time(history) or newest
    if now is None or (newest is not None and newest > now):  # later versions would not be the newest
        return None
    if entries and newest in (None, now):  # the clock of a simulated server stands still between two writes
        return instant(datetime.fromisoformat(now) + MILLISECOND)
    return now


def state_before(client: RemoteClient, versions: list[Version]) -> Resource | None:
    """Return the state of a resource before some of its versions; None if it did not exist.

    Raises:
        FhirError: The server refuses, or the resource has too many versions.
    """
    resource_type, id, _ = versions[0]
    bundle = client.page(f"/{resource_type}/{id}/_history?_count={_PAGE}")
    for entry in _entries(bundle):
        if _version(entry) not in versions:
            resource: Resource | None = entry.get("resource")
            return resource
    if link(bundle, "next"):
        raise FhirError(413, f"{resource_type}/{id} has too many versions")
    return None


def _entries(bundle: Resource) -> list[Any]:
    return objects_in(bundle.get("entry"))


def _time(resource: Json) -> str | None:
    """Return the time of a resource's last update as an instant in UTC; None if there is none."""
    text = as_object(as_object(resource).get("meta")).get("lastUpdated")
    try:
        return instant(datetime.fromisoformat(str(text)))
    except ValueError:
        return None


def _version(entry: dict[str, Any]) -> Version | None:
    """Return the version of an entry; a deletion has no resource, only URLs."""
    resource, asked, answered = (as_object(entry.get(name)) for name in ("resource", "request", "response"))
    if "id" in resource:
        version = as_object(resource.get("meta")).get("versionId", "")
        return Version(str(resource.get("resourceType")), str(resource["id"]), str(version))
    match = _PLACE.search(str(asked.get("url", ""))) or _PLACE.search(str(entry.get("fullUrl", "")))
    return Version(match[1], match[2], match[3] or str(answered.get("etag", "")).strip('W/"')) if match else None
