"""What an agent sent, where the server kept less of it.

The benchmark asks for forms that are not valid R4 (a bare text as ``route``). A lenient server stores such an order
without them; whoever did as asked is judged by what they sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fhir_gym.tasks.endstate import EndState, LoggedRequest
from fhir_gym.types import Json, Resource

__all__ = ["AsSent"]

_PLACE = re.compile(r"(?:.*/)?([A-Z][A-Za-z]+)/([A-Za-z0-9\-.]{1,64})(?:/_history/[^/]+)?\Z")


@dataclass(frozen=True, slots=True)
class AsSent(EndState):
    """An `EndState` whose new resources also have what the server dropped."""

    @classmethod
    def of(cls, end: EndState) -> AsSent:
        """The same end, seen so."""
        return cls(**{name: getattr(end, name) for name in end.__dataclass_fields__})

    def created(self, resource_type: str) -> list[Resource]:
        """New resources of a type, with all that was sent for them."""
        sent = dict(_sent(self.requests))
        new = EndState.created(self, resource_type)
        return [_joined(one, sent.get((resource_type, one["id"]))) for one in new]


def _joined(stored: Json, sent: Json) -> Any:
    """What is stored, and beside it what was sent and is not there."""
    if isinstance(stored, dict) and isinstance(sent, dict):
        kept = {name: _joined(value, sent.get(name)) for name, value in stored.items()}
        return kept | {name: value for name, value in sent.items() if name not in stored}
    if isinstance(stored, list) and isinstance(sent, list) and len(stored) == len(sent):
        return [_joined(one, other) for one, other in zip(stored, sent, strict=True)]
    return stored


def _sent(requests: Iterable[LoggedRequest]) -> Iterator[tuple[tuple[str, str], Json]]:
    """Bodies of writes by the type and id of what they wrote; the last one of each counts."""
    for one in requests:
        if one.response.status >= 300 or one.request.method not in ("POST", "PUT"):
            continue
        body, answer = _parsed(one.request.body), _parsed(one.response.body)
        if one.request.path.strip("/"):
            yield from _placed(one.response.headers.get("Location") or one.request.path, body)
            continue
        entries = body.get("entry") if isinstance(body, dict) else None
        results = answer.get("entry") if isinstance(answer, dict) else None
        for entry, result in zip(entries or [], results or [], strict=False):
            yield from _placed(str((result.get("response") or {}).get("location", "")), entry.get("resource"))


def _placed(place: str, body: Json) -> Iterator[tuple[tuple[str, str], Json]]:
    match = _PLACE.match(place)
    if match:
        yield (match[1], match[2]), body


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
