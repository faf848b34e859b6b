"""Follow the pages of a search."""

from __future__ import annotations

from collections.abc import Callable

from fhir_gym.errors import FhirServerError
from fhir_gym.types import Json, Resource, as_object, objects_in

_MAX_PAGES = 2000


def link(bundle: Json, relation: str) -> str | None:
    """Return the URL of a Bundle's link; None if there is no such link, or `bundle` is not a Bundle."""
    for bundle_link in objects_in(as_object(bundle).get("link")):
        if bundle_link.get("relation") == relation:
            return str(bundle_link.get("url"))
    return None


def all_matches(fetch: Callable[[str], Resource], url: str | None) -> list[Resource]:
    """Return the matches of a search on all its pages, without included resources.

    `fetch` returns the Bundle at a URL.

    Raises:
        FhirServerError: The server repeats a page or sends too many pages.
    """
    resources: list[Resource] = []
    seen: set[str] = set()
    while url:
        if url in seen or len(seen) >= _MAX_PAGES:
            raise FhirServerError(
                f"the server returns pages without end; after {len(seen)} pages, the next is {url[:200]!r}"
            )
        seen.add(url)
        bundle = fetch(url)
        entries = bundle.get("entry", [])
        resources += [e["resource"] for e in entries if e.get("search", {}).get("mode", "match") == "match"]
        url = link(bundle, "next")
    return resources
