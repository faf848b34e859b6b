"""Replay a recorded episode, and list what the agent and other people did in the order of time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fhir_gym.actions import GRAMMAR, Invalid
from fhir_gym.episode import Episode
from fhir_gym.errors import RecordError
from fhir_gym.fhir import DEFAULT_BASE_URL, Change, World
from fhir_gym.rollouts.record import Rollout, Turn
from fhir_gym.rollouts.recorder import with_reference
from fhir_gym.tasks import GRADINGS, LoggedRequest, TimedRequest, Verdict
from fhir_gym.types import Resource

_BASE_URL = re.compile(r"https?://[^\s\"'<>]+")


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
class ReplayedTurn:
    """One turn of a replayed episode.

    Attributes:
        request: The request that the action sent; None for ``FINISH`` and invalid actions.
        changes: The resources that the action wrote, before and after it.
        events: What other people did since the previous action.
        other_changes: The resources that other people wrote since the previous action.
    """

    observation: str
    request: LoggedRequest | None
    changes: tuple[Change, ...] = ()
    events: tuple[TimelineEntry, ...] = ()
    other_changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """A replayed episode.

    Attributes:
        entries: The actions and events in order.
        turns: The turns in order.
        required_records: References to the records that the agent must read to know the answer.
        setup: The records that the task added to the world before the episode.
    """

    entries: tuple[TimelineEntry, ...]
    verdict: Verdict
    turns: tuple[ReplayedTurn, ...] = ()
    required_records: tuple[str, ...] = ()
    setup: Sequence[Resource] = ()


def replay(rollout: Rollout, world: World) -> Timeline:
    """Replay an episode on the embedded server.

    Args:
        rollout: The record of the episode.
        world: The world of the episode.

    Raises:
        RecordError: The world or this version of the package differs from that of the record, so the replay would show
            another episode; or the record has turns after the end of the episode.
    """
    name = f"{rollout.env_id}, task {rollout.task.key}, variation {rollout.task.variation}"
    if world.manifest.content_hash != rollout.world.hash:
        raise RecordError(f"{name}: the episode was recorded in another world than {world.manifest.name}")
    grading = next((grading for grading in GRADINGS if grading == rollout.grading), None)
    if grading is None:
        raise RecordError(f"{name}: this version of fhir_gym has no grading {rollout.grading!r}")
    with Episode(
        rollout.env_id,
        task=rollout.task.key,
        variation=rollout.task.variation,
        phrasing=rollout.task.phrasing,
        grading=grading,
        world=world,
        max_steps=rollout.max_steps,
        observations=rollout.observations,
        base_url=base_url_of(rollout),
    ) as episode:
        episode.start()
        if episode.prompt != rollout.prompt:
            raise RecordError(f"{name}: another version of fhir_gym recorded the episode")
        turns: list[ReplayedTurn] = []
        over = False
        for turn in rollout.turns:
            if over:
                raise RecordError(f"{name}: the record has turns after the end of the episode")
            over, replayed = _replay_turn(episode, turn)
            turns.append(replayed)
        if not over:
            episode.truncate("unfinished")
        variation = episode.variation
        required = tuple(episode.task.required_records(variation.params))
        verdict = with_reference(episode.verdict(), episode)
        return Timeline(tuple(_entries(episode)), verdict, tuple(turns), required, variation.setup)


def base_url_of(rollout: Rollout) -> str:
    """Return the server's base URL that the agent was told."""
    match = _BASE_URL.search(rollout.action_format)
    return match[0].rstrip(".,;/") if match else DEFAULT_BASE_URL


def _replay_turn(episode: Episode, turn: Turn) -> tuple[bool, ReplayedTurn]:
    """Perform the action of a turn; return whether the episode is over, and the replayed turn."""
    before, number, seen = episode.session.checkpoint(), len(episode.requests), len(_timeline(episode))
    step = episode.step(_action(episode, turn))
    request = next(iter(episode.requests[number:]), None)
    events = [timed for timed in _timeline(episode)[seen:] if timed.event]
    own = set(_written([request] if request else []))
    others = set(_written(timed.logged for timed in events)) - own
    changes = episode.session.changes(before)
    return step.done, ReplayedTurn(
        observation=step.observation,
        request=request,
        changes=tuple(change for change in changes if (change.resource_type, change.id) not in others),
        events=tuple(map(_timed_entry, events)),
        other_changes=tuple(change for change in changes if (change.resource_type, change.id) in others),
    )


def _action(episode: Episode, turn: Turn) -> str | Invalid:
    """Return the action of a turn. The text of an invalid action may be a valid action, such as a quoted example."""
    if turn.error is None or episode.task.turn_protocol(episode.config.grading) is not None:
        return turn.action
    return Invalid(turn.error, GRAMMAR.example())


def _timeline(episode: Episode) -> tuple[TimedRequest, ...]:
    return episode.simulation.timeline if episode.simulation else ()


def _written(logged: Iterable[LoggedRequest]) -> Iterator[tuple[str, str]]:
    return ((done.resource_type, done.id) for request in logged for done in request.response.done if done.effect)


def _entries(episode: Episode) -> Iterator[TimelineEntry]:
    if episode.simulation is None:
        for request in episode.requests:
            yield TimelineEntry("", "agent", _line(request), _result(request))
        return
    yield from map(_timed_entry, episode.simulation.timeline)


def _timed_entry(timed: TimedRequest) -> TimelineEntry:
    time = f"{timed.at:%H:%M:%S}"
    if timed.event:
        return TimelineEntry(time, timed.event, _line(timed.logged), _said(timed.logged))
    return TimelineEntry(time, "agent", _line(timed.logged), _result(timed.logged))


def _line(request: LoggedRequest) -> str:
    query = f"?{request.request.query}" if request.request.query else ""
    return f"{request.request.method} /{request.request.path.lstrip('/')}{query}"


def _result(request: LoggedRequest) -> str:
    """Return the status of a response, and what the server did."""
    effects = [f"{done.effect} {done.resource_type}/{done.id}" for done in request.response.done if done.effect]
    return ", ".join([str(request.response.status), *effects])


def _said(request: LoggedRequest) -> str:
    """Return the text of a Task or an answer; for other resources, the result of the request."""
    try:
        resource: Resource = request.response.json() if request.response.body else {}
    except ValueError:
        resource = {}
    if resource.get("resourceType") == "Task":
        until = resource.get("restriction", {}).get("period", {}).get("end", "")
        return (
            f"{resource.get('status')}, {resource.get('priority')}, until {until[11:16]}: {resource.get('description')}"
        )
    if resource.get("resourceType") == "Communication":
        return str(resource["payload"][0]["contentString"])
    return _result(request)
