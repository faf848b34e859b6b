"""What a write sent to another server may change, read off the request, and what it created, read off the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.urls import decode, decode_query, encode_pairs
from fhir_gym.fhir.xml_body import parse_xml

__all__ = ["Target", "created", "is_write", "targets"]

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_VERSIONED = re.compile(r"([A-Z][A-Za-z]+)/([A-Za-z0-9\-.]{1,64})/_history/(\d+)$")
_SHAPING = frozenset(
    {"_contained", "_containedType", "_count", "_elements", "_format", "_include", "_offset", "_pretty", "_revinclude"}
    | {"_sort", "_summary", "_total"}
)


class Target(NamedTuple):
    """A resource a write names: by its id, or, without one, by a search."""

    type: str
    id: str
    query: str = ""


def is_write(request: Request) -> bool:
    """Whether a request may change something; searches and pure operations by POST do not."""
    last = request.path.rstrip("/").rpartition("/")[2]
    return request.method in _WRITES and last not in ("_search", "$validate", "$everything", "$meta")


def targets(request: Request, base_url: str) -> list[Target]:
    """Resources a write may change that are there before it.

    Raises:
        ValueError: The Bundle it sends cannot be read.
    """
    if request.method == "POST" and not request.path.strip("/"):
        asked = list(_entries(request))
    else:
        asked = [(request.method, f"{request.path}?{request.query}")]
    return [found for method, url in asked for found in _named(method, url.removeprefix(base_url))]


def _entries(request: Request) -> Iterator[tuple[str, str]]:
    """Method and url of the entries of a Bundle that has any; what a server refuses may be left out."""
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
        if isinstance(asked, dict):
            yield str(asked.get("method", "")), str(asked.get("url", ""))


def _named(method: str, url: str) -> Iterator[Target]:
    path, _, query = url.partition("?")
    try:
        segments = [decode(segment) for segment in path.split("/") if segment]
        pairs = [(name, value) for name, value in decode_query(query) if name not in _SHAPING]
    except FhirError:
        return  # no server can read that either
    operation = len(segments) == 3 and segments[2].startswith("$")
    if not segments or (method == "POST" and not operation):
        return
    if len(segments) > 1:
        yield Target(segments[0], segments[1])
    elif pairs:
        yield Target(segments[0], "", encode_pairs(pairs))


def created(response: Response) -> list[tuple[str, str]]:
    """Type and id of each resource that a write's answer says is new, or there again."""
    return [(match[1], match[2]) for place in _places(response) if (match := _VERSIONED.search(place))]


def _places(response: Response) -> Iterable[str]:
    try:
        body = json.loads(response.body) if response.body.startswith(b"{") else {}
    except ValueError:
        body = {}
    if body.get("type") not in ("transaction-response", "batch-response"):
        headers = response.headers
        found = headers.get("Content-Location") or headers.get("Location")
        return [found] if found and response.status == 201 else []
    answers = [entry.get("response", {}) for entry in body.get("entry", [])]
    return [str(a["location"]) for a in answers if str(a.get("status", "")).startswith("201") and a.get("location")]
