"""Replay a recorded episode, and list what the agent and other people did in the order of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fhir_gym.episode import Episode
from fhir_gym.errors import RecordError
from fhir_gym.fhir import World
from fhir_gym.rollouts.record import Rollout
from fhir_gym.tasks import LoggedRequest, Verdict
from fhir_gym.types import Resource


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One action of the agent, or one event.

    Attributes:
        time: Simulated time of the day (``10:15:20``); an empty text for tasks without a simulation.
        who: ``agent``, or the event of somebody else (``withdrawn``).
        action: The request, or another action, in one line.
        result: The status, and what the server did; for a Task or a question, its text.
    """

    time: str
    who: str
    action: str
    result: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """A replayed episode.

    Attributes:
        entries: The actions and events in order.
        verdict: The verdict.
    """

    entries: tuple[TimelineEntry, ...]
    verdict: Verdict


def replay(rollout: Rollout, world: World) -> Timeline:
    """Replay an episode on the embedded server.

    Args:
        rollout: The record of the episode.
        world: The world of the episode.

    Raises:
        RecordError: The world or this version of the package differs from that of the record, so the replay would show
            another episode.
    """
    name = f"{rollout.env_id}, task {rollout.task.key}, variation {rollout.task.variation}"
    if world.manifest.content_hash != rollout.world.hash:
        raise RecordError(f"{name}: the episode was recorded in another world than {world.manifest.name}")
    with Episode(
        rollout.env_id,
        task=rollout.task.key,
        variation=rollout.task.variation,
        phrasing=rollout.task.phrasing,
        world=world,
        max_steps=rollout.max_steps,
    ) as episode:
        episode.start()
        if episode.prompt != rollout.prompt:
            raise RecordError(f"{name}: another version of fhir_gym recorded the episode")
        over = False
        for turn in rollout.turns:
            over = episode.step(turn.action).done
        if not over:
            episode.truncate("unfinished")
        return Timeline(tuple(_entries(episode)), episode.verdict())


def _entries(episode: Episode) -> Iterator[TimelineEntry]:
    if episode.simulation is None:
        for one in episode.requests:
            yield TimelineEntry("", "agent", _line(one), _result(one))
        return
    for timed in episode.simulation.timeline:
        time = f"{timed.at:%H:%M:%S}"
        if timed.event:
            yield TimelineEntry(time, timed.event, _line(timed.logged), _said(timed.logged))
        else:
            yield TimelineEntry(time, "agent", _line(timed.logged), _result(timed.logged))


def _line(one: LoggedRequest) -> str:
    query = f"?{one.request.query}" if one.request.query else ""
    return f"{one.request.method} /{one.request.path.lstrip('/')}{query}"


def _result(one: LoggedRequest) -> str:
    """Return the status of a response, and what the server did."""
    effects = [f"{done.effect} {done.resource_type}/{done.id}" for done in one.response.done if done.effect]
    return ", ".join([str(one.response.status), *effects])


def _said(one: LoggedRequest) -> str:
    """Return what a Task or an answer says; for other resources, the result of the request."""
    try:
        found: Resource = one.response.json() if one.response.body else {}
    except ValueError:
        found = {}
    if found.get("resourceType") == "Task":
        until = found.get("restriction", {}).get("period", {}).get("end", "")
        return f"{found.get('status')}, {found.get('priority')}, until {until[11:16]}: {found.get('description')}"
    if found.get("resourceType") == "Communication":
        return str(found["payload"][0]["contentString"])
    return _result(one)
