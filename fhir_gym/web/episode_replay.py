"""Find out what each turn of a recorded episode read and wrote: from a replay, or from the record alone."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

from fhir_gym.actions import GRAMMAR, Action
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import Change, World
from fhir_gym.fhir.messages import Response
from fhir_gym.observations import read_response
from fhir_gym.rollouts import Rollout, Turn, run
from fhir_gym.rollouts.timeline import ReplayedTurn, Timeline, base_url_of, replay
from fhir_gym.tasks import Check
from fhir_gym.tasks.core.grader import ANSWER_FORM
from fhir_gym.tasks.grading.end_state import returned_resources
from fhir_gym.types import Json, Resource, as_object, objects_in
from fhir_gym.web.element_text import element_text, shortened
from fhir_gym.web.resource_view import Node, ResourceView, Target, ViewLimits, tree, view_json

_REFERENCE = re.compile(r"\b([A-Z][A-Za-z]+/[A-Za-z0-9.-]{1,64})")
_TEXT = re.compile(r'"([A-Za-z0-9.-]{1,64})"')
_MAX_WRITING = 10
_START_STATE = ViewLimits(trees=20, characters=20_000)
_MAX_SEARCHED = 20_000
"""Number of characters of a check in which references are sought."""


@dataclass(frozen=True, slots=True)
class Write:
    """A resource that a turn wrote.

    Attributes:
        effect: ``created``, ``updated`` or ``deleted``.
        target: The resource.
        differences: For an update, the elements that changed.
        content: The created or deleted resource; None for an update.
        by_agent: Whether the agent wrote it, and not somebody else.
    """

    effect: str
    target: Target
    differences: tuple[Difference, ...]
    content: Node | None
    by_agent: bool = True


@dataclass(frozen=True, slots=True)
class TurnTrace:
    """What a turn did on the server.

    Attributes:
        returned: References to the resources that the response contains.
        written: References to the resources that the turn wrote.
        writes: The writes before and after; empty without a replay.
        replayed: The turn of the replay; None without a replay.
        differs: Whether the replay observed something else than the record.
    """

    returned: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()
    writes: tuple[Write, ...] = ()
    replayed: ReplayedTurn | None = None
    differs: bool = False

    @property
    def touched(self) -> frozenset[str]:
        """References to the resources that the turn read or wrote."""
        return self.returned | self.written


@dataclass(frozen=True, slots=True)
class EpisodeTrace:
    """What an episode did on the server.

    Attributes:
        turns: One trace for each turn of the record.
        problem: Why the episode could not be replayed; None after a replay.
        timeline: The replay; None without one.
        start_state: The records that the task added to the world, first those that the agent must read, then those that
            it read or wrote; None without a replay.
        answer_turn: Number of the turn with the answer; None if the agent did not answer.
    """

    turns: tuple[TurnTrace, ...]
    problem: str | None = None
    timeline: Timeline | None = None
    start_state: ResourceView | None = None
    answer_turn: int | None = None

    @property
    def differing(self) -> list[int]:
        """Numbers of the turns in which the replay differs from the record."""
        return [number for number, turn in enumerate(self.turns, 1) if turn.differs]

    @property
    def writing(self) -> list[int]:
        """Numbers of the turns that wrote something."""
        return [number for number, turn in enumerate(self.turns, 1) if turn.written]

    def turns_of(self, references: Iterable[str]) -> list[int]:
        """Return the numbers of the turns that read or wrote one of these resources."""
        named = set(references)
        return [number for number, turn in enumerate(self.turns, 1) if not named.isdisjoint(turn.touched)]

    def required_records(self) -> list[tuple[str, list[int]]]:
        """Return each record that the agent must read, with the numbers of the turns that returned it."""
        required = self.timeline.required_records if self.timeline else ()
        return [
            (required_record, [number for number, turn in enumerate(self.turns, 1) if required_record in turn.returned])
            for required_record in required
        ]

    def turns_behind(self, check: Check) -> list[int]:
        """Return the numbers of the turns that a check is about.

        These are the turns that wrote the resources which the check names. If there are none, these are the turns that
        read these resources, and all turns that wrote, if they are few. A check of the answer is about the last turn.
        """
        if check.name in ("answer", ANSWER_FORM):
            return [] if self.answer_turn is None else [self.answer_turn]
        named = _named_resources(check, {reference for turn in self.turns for reference in turn.touched})
        behind = self.turns_of(named)
        wrote = [number for number in behind if not named.isdisjoint(self.turns[number - 1].written)]
        if wrote:
            return wrote
        return sorted({*behind, *(self.writing if len(self.writing) <= _MAX_WRITING else [])})


def trace_episode(rollout: Rollout, world: World | str) -> EpisodeTrace:
    """Return what an episode did, from a replay if the episode can be replayed.

    Args:
        rollout: The record.
        world: The world of the episode, or the reason why there is none.
    """
    answer_turn = len(rollout.turns) if rollout.turns and rollout.stop_reason == "finished" else None
    problem, timeline = (world, None) if isinstance(world, str) else _replayed(rollout, world)
    if timeline is None:
        return EpisodeTrace(tuple(map(_recorded_trace, rollout.turns)), problem, answer_turn=answer_turn)
    base_url = base_url_of(rollout)
    turns = tuple(_replayed_trace(*pair, base_url) for pair in zip(rollout.turns, timeline.turns, strict=True))
    start_state = _start_state(timeline, turns, base_url)
    return EpisodeTrace(turns, None, replace(timeline, setup=()), start_state, answer_turn)


def _start_state(timeline: Timeline, turns: Sequence[TurnTrace], base_url: str) -> ResourceView:
    required = set(timeline.required_records)
    touched = {reference for turn in turns for reference in turn.touched}

    def order(resource: Resource) -> tuple[bool, bool]:
        reference = f"{resource['resourceType']}/{resource['id']}"
        return reference not in required, reference not in touched

    entries = [{"resource": resource} for resource in sorted(timeline.setup, key=order)]
    return view_json({"resourceType": "Bundle", "type": "collection", "entry": entries}, base_url, _START_STATE)


def play_gold(rollout: Rollout, world: World) -> Rollout:
    """Return the record of the reference solution on the variation of an episode, without the times of this machine.

    Raises:
        FhirGymError: The task cannot be played on this world.
    """
    [gold] = run(
        rollout.env_id,
        "gold",
        tasks=[rollout.task.key],
        variations=rollout.task.variation,
        phrasing=rollout.task.phrasing,
        world=world,
    )
    return gold.model_copy(update={"timings": None})


def _replayed(rollout: Rollout, world: World) -> tuple[str | None, Timeline | None]:
    """Return the replay, or the reason why there is none."""
    try:
        return None, replay(rollout, world)
    except FhirGymError as error:
        return str(error), None


def _replayed_trace(turn: Turn, replayed: ReplayedTurn, base_url: str) -> TurnTrace:
    written = {f"{change.resource_type}/{change.id}" for change in replayed.changes}
    request = replayed.request
    if request is not None:
        written |= {
            f"{interaction.resource_type}/{interaction.id}"
            for interaction in request.response.done
            if interaction.effect and interaction.id
        }
    returned = frozenset(returned_resources([request]) if request else ())
    differs = turn.status != 0 and turn.observation != replayed.observation
    if differs:
        recorded = _recorded_trace(turn)
        returned, written = recorded.returned, set(recorded.written)
    own = (_write(change, base_url, by_agent=True) for change in replayed.changes)
    others = (_write(change, base_url, by_agent=False) for change in replayed.other_changes)
    return TurnTrace(returned, frozenset(written), (*own, *others), replayed, differs)


def _write(change: Change, base_url: str, *, by_agent: bool) -> Write:
    target = Target(change.resource_type, change.id)
    if change.before is not None and change.after is not None:
        return Write(change.kind, target, differences(change.before, change.after), None, by_agent)
    content: Resource = change.after or change.before or {}
    return Write(change.kind, target, (), tree(content, base_url), by_agent)


def _recorded_trace(turn: Turn) -> TurnTrace:
    """Return the effects of a turn that the record alone contains."""
    response, action = read_response(turn.observation), GRAMMAR.parse(turn.action)
    if response is None or not isinstance(action, Action) or action.kind == "FINISH":
        return TurnTrace()
    references = frozenset(_references_in(response))
    if action.kind == "GET" or response.status >= 300:
        return TurnTrace(returned=references)
    return TurnTrace(written=references | set(_REFERENCE.findall(action.url)))


def _references_in(response: Response) -> Iterator[str]:
    """Yield references to the resources in a response, which may contain anything."""
    location = _REFERENCE.search(response.headers.get("Location", ""))
    if location is not None:
        yield location[1]
    try:
        body = response.json() if response.body else None
    except (ValueError, RecursionError):
        return
    contained = [entry.get("resource") for entry in objects_in(as_object(body).get("entry"))]
    for resource in (body, *contained):
        kind, id = (resource.get("resourceType"), resource.get("id")) if isinstance(resource, dict) else (None, None)
        if isinstance(kind, str) and isinstance(id, str) and kind not in ("Bundle", "OperationOutcome"):
            yield f"{kind}/{id}"


def _named_resources(check: Check, touched: Collection[str]) -> set[str]:
    """Return the resources of an episode that a check names by reference or by id."""
    values = json.dumps([check.expected, check.actual], ensure_ascii=False)[:_MAX_SEARCHED]
    named = set(_REFERENCE.findall(f"{check.name} {values}"))
    texts = set(_TEXT.findall(values))
    return {reference for reference in touched if reference in named or reference.partition("/")[2] in texts}


MAX_DIFFERENCES = 100
"""Maximum number of listed differences."""
_MAX_DEPTH = 12
_MAX_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class Difference:
    """One element that differs.

    Attributes:
        path: Path of the element (``name[1].given``), with positions from 1.
        before: The earlier text; None if the element was added.
        after: The current text; None if the element was removed.
    """

    path: str
    before: str | None
    after: str | None


def differences(before: Resource, after: Resource) -> tuple[Difference, ...]:
    """Return the elements that differ, without version and time in `meta`, which change with every write."""
    return tuple(islice(_differences("", _content(before), _content(after), _MAX_DEPTH), MAX_DIFFERENCES))


def _content(resource: Resource) -> Resource:
    meta = resource.get("meta")
    if not isinstance(meta, dict):
        return resource
    return resource | {"meta": {key: meta[key] for key in meta if key not in ("versionId", "lastUpdated")}}


def _differences(path: str, before: Json, after: Json, depth: int) -> Iterator[Difference]:
    if before == after and type(before) is type(after):
        return
    if depth and isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            inner = shortened(f"{path}.{name}" if path else name)
            yield from _differences(inner, before.get(name), after.get(name), depth - 1)
    elif depth and isinstance(before, list) and isinstance(after, list):
        for number, (old, new) in enumerate(zip_longest(before, after), start=1):
            yield from _differences(f"{path}[{number}]", old, new, depth - 1)
    else:
        yield Difference(path, _shown(before), _shown(after))


def _shown(value: Json) -> str | None:
    if value is None:
        return None
    return shortened(value, _MAX_TEXT) if isinstance(value, str) else element_text(value)
