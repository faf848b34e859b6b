"""Test doubles: a world without a file, a server view, and a small task."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

from fhir_gym.actions import Finish, Get, Post
from fhir_gym.fhir import Change, Manifest, World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, Params, Task
from fhir_gym.tasks.core.ids import IdAllocator
from fhir_gym.tasks.grading.answers import IdAnswer
from fhir_gym.tasks.grading.checks import equal
from fhir_gym.types import Resource

NOW = datetime(2023, 11, 13, 10, 15, tzinfo=UTC)


class FakeWorld:
    """A fake world with the members that drawing a variation needs."""

    def __init__(self, content_hash: str = "0" * 64, now: datetime = NOW) -> None:
        self.now = now
        self.manifest = Manifest(
            name="fake", seed=None, now=now, counts={}, content_hash=content_hash, next_id=5_000, format=1
        )

    def read(self, resource_type: str, id: str) -> Resource | None:
        return None

    def search(self, resource_type: str, **params: object) -> list[Resource]:
        return []

    def holds(self, resource_type: str, id: str) -> bool:
        return False

    def sample(self, resource_type: str, most: int) -> list[tuple[str, int]]:
        return []

    def resources(self, resource_type: str | None = None) -> Iterator[bytes]:
        return iter(())


def fake_world(**settings: Any) -> World:
    return cast(World, FakeWorld(**settings))


class FakeView:
    """A fake server view with a few resources and no search results."""

    def __init__(self, *resources: Resource) -> None:
        self.resources = {(resource["resourceType"], resource["id"]): resource for resource in resources}

    def read(self, resource_type: str, id: str) -> Resource | None:
        return self.resources.get((resource_type, id))

    def search(self, resource_type: str, **params: Any) -> list[Resource]:
        return []


class GreetingParams(Params):
    id: str
    text: str


class Greeting(Task[GreetingParams]):
    """A task that creates a Basic with a text."""

    key = "greet"
    title = "Greet"
    category = "Tests"
    difficulty = 1
    kind = "action"
    required_tools = (("create",),)
    required_resources = ("Basic",)
    prohibited_tools = ("delete",)
    prompts = ("Say {text}.", "Please say {text}.")
    answer_instructions = 'Finish with FINISH(["<id>"]).'
    answer = IdAnswer(("Basic",))
    gold_steps = 3
    pack = "Test/Greeting-v0"

    def sample(self, rng: random.Random, world: World) -> GreetingParams:
        ids = IdAllocator(rng, world)
        return GreetingParams(id=ids.new(), text=rng.choice(("hello", "bonjour", "hola")))

    def setup(self, p: GreetingParams, world: World) -> list[Resource]:
        return [{"resourceType": "Patient", "id": p.id, "name": [{"text": p.text}]}]

    def prompt_values(self, p: GreetingParams, world: World) -> dict[str, str]:
        return {"text": p.text}

    def gold(self, p: GreetingParams) -> Gold:
        yield Get(f"/Patient/{p.id}")
        made = yield Post("/Basic", {"resourceType": "Basic", "code": {"text": p.text}})
        yield Finish([made["id"]])

    def expected_changes(self, p: GreetingParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", "Basic"),)

    def required_records(self, p: GreetingParams) -> tuple[str, ...]:
        return (f"Patient/{p.id}",)

    def checks(self, p: GreetingParams, end: FinishedEpisode) -> Iterator[Check]:
        new = end.created("Basic")
        found = new[0] if new else {}
        yield Check(name="created", passed=bool(new), expected=1, actual=len(new), level="exists")
        yield equal("text", found.get("code", {}).get("text"), p.text)
        (answer,) = end.answer_ids("Basic")
        yield equal("answer", answer, found.get("id", "the new id"))


def created(resource: Resource) -> Change:
    return Change("created", resource["resourceType"], resource["id"], None, resource)


def end_state(
    answer: list[Any] | None = None,
    *,
    requests: tuple[Any, ...] = (),
    changes: tuple[Change, ...] = (),
    world: Any = None,
) -> FinishedEpisode:
    after = FakeView(*(change.after for change in changes if change.after))
    return FinishedEpisode(answer, requests, FakeView(), after, changes, world or fake_world())
