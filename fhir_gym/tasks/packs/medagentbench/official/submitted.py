"""An end state in which resources include content that the agent sent but the server dropped.

The benchmark asks for forms that are not valid R4, such as a bare text as ``route``. A lenient server drops such
elements, so the checks must read them from the agent's requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fhir_gym.fhir.messages import Interaction
from fhir_gym.tasks import FinishedEpisode, LoggedRequest
from fhir_gym.types import Json, Resource, as_list, as_object


@dataclass(frozen=True, slots=True)
class SubmittedEndState(FinishedEpisode):
    """An `FinishedEpisode` in which new resources also contain the content that the server dropped."""

    @classmethod
    def of(cls, end: FinishedEpisode) -> SubmittedEndState:
        """Convert an end state."""
        return cls(**{name: getattr(end, name) for name in end.__dataclass_fields__})

    def created(self, resource_type: str) -> list[Resource]:
        """Return the new resources of a type, including the elements that the agent sent but the server dropped."""
        sent = dict(_sent(self.requests))
        new = FinishedEpisode.created(self, resource_type)
        return [_joined(resource, sent.get((resource_type, resource["id"]))) for resource in new]


def _joined(stored: Json, sent: Json) -> Any:
    """Add to a stored value the parts that it lacks and the agent sent."""
    if isinstance(stored, dict) and isinstance(sent, dict):
        kept = {name: _joined(value, sent.get(name)) for name, value in stored.items()}
        return kept | {name: value for name, value in sent.items() if name not in stored}
    if isinstance(stored, list) and isinstance(sent, list) and len(stored) == len(sent):
        return [_joined(element, other) for element, other in zip(stored, sent, strict=True)]
    return stored


def _sent(requests: Iterable[LoggedRequest]) -> Iterator[tuple[tuple[str, str], Json]]:
    """Yield the target (type and id) and the body of each write, in order."""
    for request in requests:
        written = [done for done in request.response.done if _sends_a_resource(done)]
        body = _parsed(request.request.body) if written else None
        for done in written:
            yield (done.resource_type, done.id), body if done.entry is None else _resource(body, done.entry)


def _sends_a_resource(done: Interaction) -> bool:
    if done.kind == "update":
        return done.status < 300 and not done.operation  # an update that changes nothing counts too
    return done.kind == "create" and done.effect == "created"


def _resource(bundle: Json, entry: int) -> Json:
    listed = as_list(as_object(bundle).get("entry"))[entry : entry + 1]
    return as_object(listed[0]).get("resource") if listed else None


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
