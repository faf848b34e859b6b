"""HTTP client that reads all resources of a FHIR server, with retries."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

from fhir_gym.errors import WorldError
from fhir_gym.printable import one_line
from fhir_gym.types import Resource
from fhir_gym.worlds.json_client import JsonClient, objects

_LINK_CHARS = 10_000


class LinkError(WorldError):
    """The next links of a search are invalid or do not end."""


@dataclass(frozen=True)
class Page:
    """The matches on one page of search results, and the URL of the next page, if any."""

    resources: list[Resource]
    next: str | None


class FhirClient(JsonClient):
    """Client that reads all resources of one FHIR server."""

    def types(self) -> list[str]:
        """Return the searchable resource types listed in the server's CapabilityStatement.

        Raises:
            WorldError: The server is unreachable or not an R4 server.
        """
        found = self.exchange(f"{self.base}/metadata", retry_connect=False)
        if found.get("resourceType") != "CapabilityStatement":
            raise WorldError(f"{self.base} is not a FHIR server: {self.base}/metadata is not a CapabilityStatement")
        version = str(found.get("fhirVersion", "4"))
        if not version.startswith("4"):
            raise WorldError(f"{self.base} is a server of FHIR {one_line(version, 60)}; only R4 can be imported")
        rest = [part for part in objects(found.get("rest")) if part.get("mode", "server") == "server"]
        types = [_searchable(entry) for part in rest for entry in objects(part.get("resource"))]
        return list(dict.fromkeys(name for name in types if name))

    def count(self, resource_type: str) -> int | None:
        """Return the server's total of a resource type; None if the server reports no total."""
        found = self.exchange(f"{self.base}/{resource_type}?{urlencode({'_summary': 'count'})}")
        total = found.get("total")
        return total if isinstance(total, int) and total >= 0 else None

    def first(self, resource_type: str, page_size: int) -> str:
        """Return the URL of the first page of a resource type."""
        return f"{self.base}/{resource_type}?{urlencode({'_count': page_size})}"

    def page(self, url: str, resource_type: str) -> Page:
        """Fetch a page.

        Args:
            url: URL of the page.
            resource_type: Resource type of the matches.

        Raises:
            ExpiredError: The server no longer has the search.
            LinkError: The next link is invalid.
            WorldError: All retries failed, or the response is not a page of this type.
        """
        bundle = self.exchange(url)
        if bundle.get("resourceType") != "Bundle":
            raise WorldError(f"the response to {url} is not a Bundle")
        resources = []
        for entry in objects(bundle.get("entry")):
            search = entry.get("search")
            if isinstance(search, dict) and search.get("mode", "match") != "match":
                continue
            resource = entry.get("resource")
            if not isinstance(resource, dict) or resource.get("resourceType") != resource_type:
                raise WorldError(f"the response to {url} contains a resource that is not a {resource_type}")
            resources.append(resource)
        return Page(resources, self._next(url, bundle))

    def _next(self, url: str, bundle: Resource) -> str | None:
        """Return the next page's URL with the configured host: behind a proxy, the server may report another host."""
        for link in objects(bundle.get("link")):
            if link.get("relation") == "next" and isinstance(link.get("url"), str):
                if len(link["url"]) > _LINK_CHARS:
                    raise LinkError(f"the next link of {self.base} has {len(link['url']):,} characters")
                try:
                    target, here = urlsplit(urljoin(url, link["url"])), urlsplit(self.base)
                except ValueError as error:
                    shown = one_line(link["url"], 200)
                    raise LinkError(f"invalid next link {shown!r} of {self.base}: {error}") from error
                following: str = urlunsplit((here.scheme, here.netloc, target.path, target.query, ""))
                if following == url:
                    raise LinkError(f"the next link of {url} points to the same page")
                return following
        return None


def _searchable(entry: Resource) -> str | None:
    """Return the name of a type in a CapabilityStatement; None if the server cannot search for the type."""
    codes = [interaction.get("code") for interaction in objects(entry.get("interaction"))]
    name = entry.get("type")
    return name if isinstance(name, str) and (not codes or "search-type" in codes) else None
