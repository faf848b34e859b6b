"""Derive the effects of a request from a remote server's response and the resources before and after."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fhir_gym.fhir.adapters.outgoing import RequestPart, is_bundle
from fhir_gym.fhir.interactions.operations import CHANGE_META
from fhir_gym.fhir.messages import WRITES, Effect, Interaction, Request, Response
from fhir_gym.fhir.routes import attempted
from fhir_gym.types import Json, Resource, as_list, as_object, json_object

_PLACE = re.compile(r"(?:^|/)([A-Z][A-Za-z]+)/([A-Za-z0-9\-.]{1,64})(?:/_history/([^/?]+))?$")


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


class WriteAnswer(NamedTuple):
    """A server's answer to a request or to an entry of a bundle: its status, and the version that it names."""

    status: int
    type: str = ""
    id: str = ""
    version: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Type and id; empty if the server names no resource."""
        return self.type, self.id


def answers(request: Request, response: Response) -> list[WriteAnswer]:
    """Return the answer to a request, or to each entry of a bundle; empty for a refused bundle."""
    if not is_bundle(request):
        place = response.headers.get("Content-Location") or response.headers.get("Location") or ""
        return [_answer(response.status, place)]
    if response.status != 200:
        return []
    entries = as_list((json_object(response.body) or {}).get("entry"))
    told = (as_object(as_object(entry).get("response")) for entry in entries)
    return [_answer(_status(resource.get("status")), str(resource.get("location", ""))) for resource in told]


def _answer(status: int, place: str) -> WriteAnswer:
    match = _PLACE.search(place)
    return WriteAnswer(status, match[1], match[2], match[3] or "") if match else WriteAnswer(status)


def created(told: Sequence[WriteAnswer], parts: Sequence[RequestPart]) -> list[tuple[str, str]]:
    """Return type and id of each resource that a write created or restored, according to the server."""
    return [
        answer.key
        for answer, part in zip(told, parts, strict=False)
        if answer.status == 201 and answer.id and part.method in WRITES
    ]


def accepted_targets(told: Sequence[WriteAnswer], states: Sequence[Sequence[ResourceStates]]) -> set[tuple[str, str]]:
    """Return type and id of each resource that the accepted parts of a request may have changed."""
    return {
        state.key for answer, changed in zip(told, states, strict=False) if answer.status < 300 for state in changed
    }


def difference(
    response: Response,
    told: Sequence[WriteAnswer],
    parts: Sequence[RequestPart],
    states: Sequence[Sequence[ResourceStates]],
) -> str | None:
    """Describe how a server's answer to a write differs from the request; None if it does not.

    `states` are the resources that each part of the request may change.
    """
    if response.status == 200 and len(told) != len(parts):
        return f"answered {len(told)} entries instead of {len(parts)}"
    for answer, part, changed in zip(told, parts, states, strict=False):
        if not answer.id or answer.status >= 300 or part.method not in WRITES or _fits(answer, part, changed):
            continue
        return f"wrote {answer.type}/{answer.id} for {part.method} {part.url}"
    return None


def _fits(answer: WriteAnswer, part: RequestPart, changed: Sequence[ResourceStates]) -> bool:
    """Return whether an answer names a resource that the request may change, a match, or a first version."""
    if answer.key in {state.key for state in changed}:
        return True
    if answer.type != part.created_type:
        return False
    return answer.status == 200 or not answer.version.isdigit() or answer.version == "1"


def interactions(
    request: Request, response: Response, asked: Sequence[RequestPart], states: Sequence[Sequence[ResourceStates]]
) -> tuple[Interaction, ...]:
    """Return the interactions that the server carried out.

    `asked` are the parts of the request. `states` are the resources that each part may have changed.
    """
    told = answers(request, response)
    if not is_bundle(request):
        (part,), (changed,) = asked, states
        return (_alone(response, told[0], part, changed),)
    told += [WriteAnswer(response.status)] * (len(asked) - len(told))
    return tuple(
        _in_bundle(part, answer, changed)._replace(entry=number)
        for number, (part, answer, changed) in enumerate(zip(asked, told, states, strict=True))
    )


def _alone(
    response: Response, answer: WriteAnswer, part: RequestPart, changed: Sequence[ResourceStates]
) -> Interaction:
    named = attempted(part.method, part.segments)._replace(status=response.status)
    if part.method not in WRITES or named.kind in ("history", "search"):
        return named
    if named.operation in CHANGE_META:
        effect = _effect(changed) if changed else "updated"  # without states to compare, assume a change
        return named._replace(kind="update", effect=effect if response.status < 300 else "")
    if named.operation:
        return named
    if part.method != "POST":
        return _effected(named, answer, changed)
    if response.status >= 300:
        return named
    if not answer.id:
        return named._replace(effect="created")  # a request may create a resource even if the response has no location
    effect = "created" if response.status == 201 else ""
    return named._replace(kind="create", resource_type=answer.type, id=answer.id, effect=effect)


def _in_bundle(part: RequestPart, answer: WriteAnswer, changed: Sequence[ResourceStates]) -> Interaction:
    named = attempted(part.method, part.segments)._replace(status=answer.status)
    if part.method not in WRITES:
        return named
    named = named._replace(kind=WRITES[part.method], operation="")
    if answer.id:
        named = named._replace(resource_type=answer.type, id=answer.id)
    if part.method == "POST" and answer.status < 300 and (answer.status == 201 or not answer.id):
        return named._replace(effect="created")  # even if the response has no location
    return _effected(named, answer, changed)


def _effected(named: Interaction, answer: WriteAnswer, changed: Sequence[ResourceStates]) -> Interaction:
    if answer.status == 201 and answer.id:
        return named._replace(effect="created", resource_type=answer.type, id=answer.id)
    if not changed:
        return named
    return named._replace(effect=_effect(changed), resource_type=changed[0].type, id=changed[0].id)


def _effect(changed: Sequence[ResourceStates]) -> Effect:
    return next((state.effect for state in changed if state.effect), "")


def _status(text: Json) -> int:
    number = str(text)[:3]
    return int(number) if number.isascii() and number.isdecimal() else 0
