"""A recording of the reference solution's episode; policies modify and replay its steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from fhir_gym.actions import Action
from fhir_gym.soundness.policy_runner import WRITES, PolicyRun
from fhir_gym.types import Json, Resource

_NOBODY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One request of the reference solution.

    Attributes:
        body: The parsed JSON body; None for a request without a body.
        answer: The parsed response.
        before: The resource before an update; None for other requests.
        created: The id of the created resource; None if the request creates nothing.
        refused: Whether the server refused the request. In live tasks, somebody may have changed the record.
    """

    action: Action
    body: Json
    answer: Json
    before: Resource | None = None
    created: str | None = None
    refused: bool = False

    @property
    def writes(self) -> bool:
        """Whether the request writes."""
        return self.action.kind in WRITES


@dataclass(frozen=True, slots=True)
class GoldRecording:
    """The requests and the answer of a reference episode.

    Attributes:
        steps: The requests.
        setup: The seeded resources.
        ids: Known ids for each type; seeded resources come first.
        residents: The id of one resource of the world for each type.
    """

    steps: tuple[RecordedStep, ...]
    answer: list[Json]
    setup: Sequence[Resource]
    ids: Mapping[str, list[str]] = field(default_factory=dict)
    residents: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, run: PolicyRun, setup: Sequence[Resource], residents: Mapping[str, str] = _NOBODY) -> GoldRecording:
        """Record an episode of the reference solution."""
        steps = []
        written: dict[str, Resource | None] = {}
        for logged in run.end.requests:
            action, refused = logged.action, logged.response.status >= 400
            body = json.loads(action.body) if action.body else None
            before = None
            if action.kind == "PUT":
                record = action.url.strip("/")
                before = written.get(record) or run.end.before.read(*record.split("/", 1))
                if not refused:
                    written[record] = body
            answer = logged.response.json() if logged.response.body else None
            stored = answer if action.kind == "POST" and isinstance(answer, dict) else {}
            created = str(stored["id"]) if "id" in stored else None
            steps.append(RecordedStep(action, body, answer, before, created, refused))
        ids: dict[str, list[str]] = {}
        for resource in setup:
            ids.setdefault(resource["resourceType"], []).append(resource["id"])
        for kind, id in residents.items():
            ids.setdefault(kind, []).append(id)
        return cls(tuple(steps), list(run.end.answer or []), setup, ids, residents)

    @property
    def actions(self) -> list[Action]:
        """The actions of all requests."""
        return [step.action for step in self.steps]

    @property
    def reads(self) -> list[Action]:
        """The actions of all reads."""
        return [step.action for step in self.steps if not step.writes]

    def others_of_type(self, resource_type: str, but: str = "") -> list[Resource]:
        """The seeded resources of a type, without the one with the id `but`."""
        return [
            resource for resource in self.setup if resource["resourceType"] == resource_type and resource["id"] != but
        ]


def rebody(action: Action, body: Json) -> Action:
    """Copy an action with another body."""
    return replace(action, body=json.dumps(body, ensure_ascii=False))


def with_ids(action: Action, names: Mapping[str, str]) -> Action:
    """Copy an action with other ids in its URL, body and answer; `names` maps old ids to new ones."""
    if not names:
        return action
    path, mark, query = action.url.partition("?")
    parts = [names.get(part, part) for part in path.split("/")]
    action = replace(action, url="/".join(parts) + mark + query)
    if action.body and action.body[0] in "{[":  # a JSON body, not form parameters
        action = rebody(action, _renamed(json.loads(action.body), names))
    return action if action.answer is None else replace(action, answer=_renamed(action.answer, names))


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if isinstance(value, str):
        head, slash, tail = value.rpartition("/")
        return f"{head}{slash}{names[tail]}" if tail in names else value
    return value
