"""Play live shifts, and look at what happened."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from fhir_gym import Episode, Step
from fhir_gym.actions import Action, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import TimedRequest, register
from fhir_gym.tasks.core import registry
from fhir_gym.tasks.packs.shift import t20_live
from fhir_gym.tasks.packs.shift.live.gold import GoldDesk
from fhir_gym.tasks.packs.shift.live.kinds import live_kinds
from fhir_gym.tasks.packs.shift.live.plan import DeskRequest, LiveParams
from fhir_gym.tasks.packs.shift.outcomes import DONE
from fhir_gym.tasks.packs.shift.t20_live import LiveLevel3
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.playing import follow, read_all

Change = Callable[[Action], list[Action]]


@contextmanager
def shift_of(
    kinds: Iterable[str],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    variation: int = 0,
    task: type[LiveLevel3] = LiveLevel3,
    **dials: float,
) -> Iterator[Episode]:
    """Yield an episode of a shift with requests of some kinds only.

    Args:
        kinds: Keys of the kinds.
        world: The world.
        monkeypatch: Restores the usual kinds afterwards.
        key: Key of the task.
        variation: The variation.
        task: The task whose dials are set.
        dials: The dials.
    """
    env = f"Test/{key.capitalize()}-v0"
    monkeypatch.setattr(t20_live, "live_kinds", lambda: {kind: live_kinds()[kind] for kind in kinds})
    register(env, task().with_dials(key, {"policies": 5, **dials}), world="hospital-small")
    try:
        with Episode(env, task=key, variation=variation, world=world, reward="dense", max_steps=500) as episode:
            yield episode
    finally:
        registry._registered.pop(env, None)


def handle_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reference solution set no Task to in-progress before it handles it."""
    monkeypatch.setattr(GoldDesk, "_begin_next", lambda *_: iter(()))


def params_of(episode: Episode) -> LiveParams:
    params = episode.variation.params
    assert isinstance(params, LiveParams)
    return params


def play(
    episode: Episode, change: Change = lambda action: [action], rank: Callable[[Resource], Any] | None = None
) -> Step:
    """Play the reference solution.

    Args:
        episode: The episode.
        change: Replaces the actions. The solution receives the response to the first one.
        rank: See `GoldDesk`.
    """
    ranked = {} if rank is None else {"rank": rank}
    return follow(episode, GoldDesk(params_of(episode), live_kinds(), **ranked).play(), change)


def results(episode: Episode) -> dict[str, tuple[DeskRequest, Any]]:
    """Return the requests and their checks by Task id."""
    checks = [check for check in episode.verdict().checks if check.name.startswith("request ")]
    return {request.id: (request, check) for request, check in zip(params_of(episode).requests, checks, strict=True)}


def failed(episode: Episode) -> set[str]:
    """Return the ids of the Tasks of the failed requests."""
    return {id for id, (_, check) in results(episode).items() if not check.passed}


def events(episode: Episode) -> list[str]:
    assert episode.simulation is not None
    return [request.event for request in episode.simulation.timeline if request.event]


def sent_for(episode: Episode, event: str) -> list[TimedRequest]:
    """Return the requests with which other people caused an event, in order; an empty text for those of the agent."""
    assert episode.simulation is not None
    return [request for request in episode.simulation.timeline if request.event == event]


def written_for(episode: Episode, event: str) -> list[str]:
    """Return the ids of the records that other people wrote for an event, in order."""
    return [request.logged.action.url.rpartition("/")[2] for request in sent_for(episode, event)]


def now_of(episode: Episode) -> datetime:
    assert episode.simulation is not None
    return episode.simulation.now


def worklist(episode: Episode) -> list[Resource]:
    desk = params_of(episode).desk
    return read_all(episode, f"/Task?owner=Organization/{desk}&status=requested,in-progress&_count=200")


def additions(elements: Resource) -> list[Json]:
    """Return the operations of a JSON Patch that sets elements of a resource."""
    return [{"op": "add", "path": f"/{name}", "value": value} for name, value in elements.items()]


def task_of(action: Action) -> str:
    """Return the id of the Task that an action updates; an empty text for other actions."""
    return action.url.rpartition("/")[2] if action.kind == "PUT" and "/Task/" in action.url else ""


def batch(*actions: Action) -> Action:
    """Return a batch of requests."""
    entries = [
        ({"resource": json.loads(action.body)} if action.body else {})
        | {"request": {"method": action.kind, "url": action.url.lstrip("/")}}
        for action in actions
    ]
    return Post("/", {"resourceType": "Bundle", "type": "batch", "entry": entries})


def closed_as(task: Resource, outcome: str) -> Resource:
    """Return a Task that is closed with an outcome."""
    status = "completed" if outcome == DONE else "rejected"
    return task | {"status": status, "businessStatus": {"text": outcome}}


def wait(episode: Episode, until: datetime) -> None:
    """Let time pass, 20 seconds at a time."""
    while now_of(episode) < until:
        episode.step("nonsense")
