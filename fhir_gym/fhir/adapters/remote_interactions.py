"""Derive the interactions of a remote server from its responses, and from the resources before and after a request."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from fhir_gym.fhir.adapters.write_targets import RequestPart, is_bundle, is_write
from fhir_gym.fhir.interaction_log import WRITES, Effect, Interaction
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.routes import attempted
from fhir_gym.fhir.serialization.xml import parse_xml
from fhir_gym.types import Json, Resource

_PLACE = re.compile(r"(?:^|/)([A-Z][A-Za-z]+)/([A-Za-z0-9\-.]{1,64})(?:/_history/[^/?]+)?$")
_ANSWERS = ("transaction-response", "batch-response")


class ResourceStates(NamedTuple):
    """A resource before and after a write that may change it. None means that the resource does not exist."""

    type: str
    id: str
    before: Resource | None
    after: Resource | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Type and id."""
        return self.type, self.id

    @property
    def effect(self) -> Effect:
        """The effect of the write. A new version is an update even if its content is equal."""
        if self.before == self.after:
            return ""
        return "created" if self.before is None else "deleted" if self.after is None else "updated"


def interactions(
    request: Request, response: Response, asked: Sequence[RequestPart], states: Sequence[Sequence[ResourceStates]]
) -> tuple[Interaction, ...]:
    """Return the interactions that the server carried out.

    `asked` are the parts of the request; empty if the request is an unreadable bundle. `states` are the resources that
    each part may have changed.
    """
    body = _parsed(response)
    if not is_bundle(request):
        (one,), (changed,) = asked, states
        return (_alone(request, response, body, one, changed),)
    answers = _entries(body) if response.status < 300 else []
    found = []
    for number, (one, changed) in enumerate(zip(asked, states, strict=True)):
        answer = answers[number] if number < len(answers) else None
        found.append(_in_bundle(one, answer, response.status, changed)._replace(entry=number))
    if found:
        return tuple(found)
    doubt: Effect = "updated" if response.status < 300 and body.get("entry") else ""
    return (Interaction("other", status=response.status, effect=doubt),)


def _alone(
    request: Request, response: Response, body: Resource, asked: RequestPart, changed: Sequence[ResourceStates]
) -> Interaction:
    named = attempted(asked.method, asked.segments)._replace(status=response.status)
    if request.method in ("GET", "HEAD"):
        return named
    if request.method != "POST":
        return _effected(named, changed, created(response))
    if named.kind == "history":  # a history is read with every method
        return named
    if found := created(response):
        return named._replace(kind="create", resource_type=found[0][0], id=found[0][1], effect="created")
    if response.status >= 300:
        return _effected(named, changed, [])
    if body.get("type") == "searchset" or not is_write(request):
        return _effected(named, changed, [])
    place = _place(response)
    if place and not named.operation:  # a conditional create that found a match
        return named._replace(kind="create", resource_type=place[0], id=place[1])
    if not named.operation:
        return named._replace(effect="created")  # a request may create a resource even if the response has no location
    effect = _effect(changed) if changed else "updated"  # without states to compare, assume a change
    return named._replace(kind="update" if effect else "operation", effect=effect)


def _in_bundle(asked: RequestPart, answer: Json, otherwise: int, changed: Sequence[ResourceStates]) -> Interaction:
    response = answer.get("response") if isinstance(answer, dict) else None
    response = response if isinstance(response, dict) else {}
    text = str(response.get("status", ""))
    status = int(text[:3]) if text[:3].isdecimal() else otherwise
    named = attempted(asked.method, asked.segments)._replace(status=status)
    if asked.method not in WRITES:
        return named
    named = named._replace(kind=WRITES[asked.method], operation="")
    match = _PLACE.search(str(response.get("location", "")))
    if match:
        named = named._replace(resource_type=match[1], id=match[2])
    if asked.method == "POST" and status < 300 and (status == 201 or not match):
        return named._replace(effect="created")  # even if the response has no location
    return _effected(named, changed, [(match[1], match[2])] if match and status == 201 else [])


def _effected(named: Interaction, changed: Sequence[ResourceStates], new: Sequence[tuple[str, str]]) -> Interaction:
    effect = _effect(changed)
    there = next(((one.type, one.id) for one in changed), None)
    if new:
        effect, there = "created", new[0]
    return named._replace(effect=effect, resource_type=there[0], id=there[1]) if there else named


def _effect(changed: Sequence[ResourceStates]) -> Effect:
    return next((one.effect for one in changed if one.effect), "")


def created(response: Response) -> list[tuple[str, str]]:
    """Return type and id of each resource that a write created or restored, according to the response."""
    body = _parsed(response)
    if body.get("type") not in _ANSWERS:
        place = _place(response)
        return [place] if place and response.status == 201 else []
    answers = [entry["response"] for entry in _entries(body) if isinstance(entry.get("response"), dict)]
    places = [str(a.get("location", "")) for a in answers if str(a.get("status", "")).startswith("201")]
    return [(match[1], match[2]) for place in places if (match := _PLACE.search(place))]


def _place(response: Response) -> tuple[str, str] | None:
    headers = response.headers
    match = _PLACE.search(headers.get("Content-Location") or headers.get("Location") or "")
    return (match[1], match[2]) if match else None


def _parsed(response: Response) -> Resource:
    """Parse the resource in a response, JSON or XML; empty if there is none."""
    found: Any = None
    try:
        found = json.loads(response.body)
    except (ValueError, RecursionError):
        if b"<Bundle" in response.body[:500]:
            try:
                found = parse_xml(response.body, "Bundle")
            except (FhirError, RecursionError):
                found = None
    return found if isinstance(found, dict) else {}


def _entries(bundle: Resource) -> list[Any]:
    entries = bundle.get("entry")
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
