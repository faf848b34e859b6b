"""How an agent reads the server's responses: as HTTP, or in a compact form that takes a third of the tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from http import HTTPStatus
from typing import Any, Literal

from fhir_gym.fhir import Response
from fhir_gym.fhir.serialization import json_text
from fhir_gym.types import Json

__all__ = ["OBSERVATIONS", "Observations", "format_response", "read_response"]

Observations = Literal["http", "compact"]
"""A form of observations; see `EpisodeConfig.observations`."""
OBSERVATIONS: tuple[Observations, ...] = ("http", "compact")
COMPACT_FORMAT = (
    "Responses are compact: the status, for a Bundle its total and the URL of the next page, then one resource a line."
)
"""The sentence that the action format has in addition for compact observations."""

_SEARCHSET = "searchset"
_DROPPED = ("link", "fullUrl", "search")
_KEPT_OF_RESPONSE = ("status", "location", "outcome")
_KEPT_OF_META = ("security", "tag", "versionId")
_COMPACT = re.compile(r"(\d{3})(?: \(\d\d:\d\d:\d\d\))?(?: (\{.*\}))?\Z")
_MAX_DIGITS = 9


def format_response(response: Response, now: datetime | None = None, observations: Observations = "http") -> str:
    """Return a response as the agent reads it.

    The HTTP form is the status line and the body, or the Location header without a body. The compact form is the
    status, for a Bundle also its total and the URL of the next page, and then one resource a line. It lacks links and
    `meta`, except tags, security labels and, in live tasks, the version.

    Args:
        response: The response.
        now: The simulated time, for the first line.
        observations: The form.
    """
    line, time = str(response.status), f" ({now:%H:%M:%S})" if now else ""
    if observations == "compact" and (body := _json_of(response)) is not None:
        head, lines = _compact(body, with_version=now is not None)
        return "\n".join([line + time + head, *lines])
    if observations == "http":
        line = f"HTTP {line}{_phrase(response.status)}"
    location = response.headers.get("Location")
    if not response.body:
        return f"{line}{time}\nLocation: {location}" if location else line + time
    return f"{line}{time}\n{response.text}"


def read_response(observation: str) -> Response | None:
    """Parse an observation into a response; None for a prompt or a message about an invalid action.

    A compact observation lacks what its form leaves out.
    """
    line, _, rest = observation.partition("\n")
    match = _COMPACT.match(line)
    words = line.split(" ", 2)
    if match:
        status, head = int(match[1]), match[2]
    elif words[0] == "HTTP" and len(words) > 1 and words[1].isdecimal() and len(words[1]) <= _MAX_DIGITS:
        status, head = int(words[1]), None
    else:
        return None
    if rest.startswith("Location: "):
        return Response(status, {"Location": rest.removeprefix("Location: ")})
    if head is not None:
        try:
            return Response(status, body=json_text.dumps(_bundle(head, rest.split("\n") if rest else [])))
        except ValueError:
            return None
    return Response(status, body=rest.encode("utf-8", "backslashreplace"))


def _phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


def _json_of(response: Response) -> dict[str, Any] | None:
    """Return the body if it is a JSON object; None for other bodies."""
    try:
        body = json_text.loads(response.body)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _compact(body: dict[str, Any], *, with_version: bool) -> tuple[str, Iterator[str]]:
    """Return the rest of the status line, and the following lines."""
    if body.get("resourceType") != "Bundle":
        return "", iter([_text(_short(body, with_version))])
    head: dict[str, Json] = {}
    if body.get("type") != _SEARCHSET:
        head["type"] = body.get("type")
    if "total" in body:
        head["total"] = body["total"]
    links = (link.get("url") for link in body.get("link", []) if link.get("relation") == "next")
    if url := next(links, None):
        head["next"] = url
    return f" {_text(head)}", (_text(_short_entry(entry, with_version)) for entry in body.get("entry", []))


def _short_entry(entry: dict[str, Any], with_version: bool) -> dict[str, Any]:
    """Return the resource of an entry, or the entry if a request or a response belongs to it."""
    kept = {name: value for name, value in entry.items() if name not in _DROPPED}
    if "response" in kept:
        kept["response"] = {name: kept["response"][name] for name in _KEPT_OF_RESPONSE if name in kept["response"]}
    if "resource" in kept:
        kept["resource"] = _short(kept["resource"], with_version)
    return kept["resource"] if kept.keys() == {"resource"} else kept


def _short(resource: dict[str, Any], with_version: bool) -> dict[str, Any]:
    is_outcome = resource.get("resourceType") == "OperationOutcome"  # its narrative repeats the issues
    kept = {name: value for name, value in resource.items() if name != "meta" and (name != "text" or not is_outcome)}
    meta = {name: value for name, value in resource.get("meta", {}).items() if name in _KEPT_OF_META}
    if not with_version:
        meta.pop("versionId", None)
    return kept | ({"meta": meta} if meta else {})


def _bundle(head: str, lines: list[str]) -> dict[str, Any]:
    """Return the Bundle of a compact observation."""
    known = json_text.loads(head.encode())
    entries = [json_text.loads(line.encode()) for line in lines]
    bundle: dict[str, Any] = {
        "resourceType": "Bundle",
        "type": _SEARCHSET,
        **(known if isinstance(known, dict) else {}),
    }
    if url := bundle.pop("next", None):
        bundle["link"] = [{"relation": "next", "url": url}]
    if entries:
        bundle["entry"] = [
            {"resource": entry} if isinstance(entry, dict) and "resourceType" in entry else entry for entry in entries
        ]
    return bundle


def _text(value: Json) -> str:
    return json_text.dumps(value).decode()
