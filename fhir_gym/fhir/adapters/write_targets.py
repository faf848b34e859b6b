"""The resources that a write to a remote server may change, according to the request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from fhir_gym.fhir.interaction_log import WRITES
from fhir_gym.fhir.messages import Request
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization.xml import parse_xml
from fhir_gym.fhir.urls import decode, decode_query, encode_pairs

_WRITES = frozenset({"PUT", "PATCH", "DELETE"})
_PURE = frozenset({"_search", "$validate", "$everything", "$meta", "$expand", "$lookup", "$validate-code"})
_SHAPING = frozenset(
    {"_contained", "_containedType", "_count", "_elements", "_format", "_include", "_offset", "_pretty", "_revinclude"}
    | {"_sort", "_summary", "_total"}
)


class WriteTarget(NamedTuple):
    """The target of a write: an id, or a search if the write is conditional."""

    type: str
    id: str
    query: str = ""


class RequestPart(NamedTuple):
    """A request or one entry of a bundle: the method and the URL below the base URL."""

    method: str
    url: str

    @property
    def segments(self) -> list[str]:
        """The segments of the path."""
        return [segment for segment in self.url.partition("?")[0].split("/") if segment]


def is_bundle(request: Request) -> bool:
    """Return whether a request is a batch or transaction."""
    return request.method == "POST" and not request.path.strip("/")


def is_write(request: Request) -> bool:
    """Return whether a request may write. Searches by POST and read-only operations by POST do not write."""
    last = request.path.rstrip("/").rpartition("/")[2]
    return request.method in _WRITES or (request.method == "POST" and last not in _PURE)


def request_parts(request: Request, base_url: str) -> list[RequestPart]:
    """Return the entries of a bundle as parts; any other request is the only part.

    Raises:
        ValueError: The bundle is unreadable.
    """
    if not is_bundle(request):
        return [RequestPart(request.method, f"{request.path}?{request.query}")]
    return [RequestPart(method, url.removeprefix(base_url)) for method, url in _entries(request)]


def _entries(request: Request) -> Iterator[tuple[str, str]]:
    """Yield method and URL of the entries of a Bundle."""
    if "xml" in request.headers.get("content-type", ""):
        try:
            bundle: Any = parse_xml(request.body, "Bundle")
        except FhirError as error:
            raise ValueError(error.diagnostics) from error
    else:
        bundle = json.loads(request.body)
    listed = bundle.get("entry", []) if isinstance(bundle, dict) else []
    for entry in listed if isinstance(listed, list) else []:
        asked = entry.get("request") if isinstance(entry, dict) else None
        asked = asked if isinstance(asked, dict) else {}
        yield str(asked.get("method", "")), str(asked.get("url", ""))


def created_type(one: RequestPart) -> str | None:
    """Return the type of the resource that a write may create with an id that the server chooses; None if it cannot."""
    segments = one.segments
    if not segments or not segments[0].isalpha() or segments[-1].startswith("$"):
        return None
    return segments[0] if one.method == "POST" or (one.method == "PUT" and len(segments) == 1) else None


def targets(one: RequestPart) -> Iterator[WriteTarget]:
    """Yield the target of a write; nothing for a plain create, because its resource does not exist yet."""
    path, _, query = one.url.partition("?")
    try:
        segments = [decode(segment) for segment in path.split("/") if segment]
        pairs = [(name, value) for name, value in decode_query(query) if name not in _SHAPING]
    except FhirError:
        return  # no server can read such a URL
    if not segments or one.method not in WRITES:
        return
    if len(segments) > 1 and segments[1][0] not in "_$":
        yield WriteTarget(segments[0], segments[1])
    elif pairs and len(segments) == 1 and one.method != "POST":
        yield WriteTarget(segments[0], "", encode_pairs(pairs))
