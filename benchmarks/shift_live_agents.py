"""Measure what scripted agents of different strength score on the live levels of Shift-v0.

Run `python -m benchmarks.shift_live_agents`. It prints one JSON line per agent and level. Every agent but the first
makes one systematic mistake; otherwise it works like the reference solution.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from datetime import datetime
from statistics import mean
from typing import Any, ClassVar

from typing_extensions import override

from fhir_gym import Episode
from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.observations import read_response
from fhir_gym.tasks import Gold, get_pack
from fhir_gym.tasks.packs.shift.kind import Solution
from fhir_gym.tasks.packs.shift.live.gold import GoldDesk
from fhir_gym.tasks.packs.shift.live.kinds import live_kinds
from fhir_gym.tasks.packs.shift.live.plan import NOT_GIVEN, DeskRequest, LiveParams
from fhir_gym.tasks.packs.shift.lookups import Found, search_all, update
from fhir_gym.tasks.packs.shift.outcomes import DONE
from fhir_gym.types import Json, Resource
from fhir_gym.worlds import load

__all__ = ["AGENTS", "play"]

_PACK = "FHIRAgent/Shift-v0"

Sees = Callable[[Action, Json], Json]
"""What an agent sees of the response to an action."""


class _NeverAsks(GoldDesk):
    """Takes agreement for granted, and takes the first patient with a name."""

    @override
    def _answer_about(self, task: Resource) -> Generator[Action, Json, str]:
        request = self._by_text[task["description"]]
        if not request.asks:
            return ""
        if NOT_GIVEN not in request.text:
            yield Get(f"/Task/{task['id']}")
            return "Yes."
        patient = request.request.ask.patient
        found = yield from search_all("/Patient", {"family": patient.family, "given": patient.given})
        return f"born {found[0]['birthDate']}." if found else ""


class _LooksUpEarly(GoldDesk):
    """Looks everything up for some requests early, and does not look again before it writes."""

    def __init__(self, p: LiveParams) -> None:
        super().__init__(p, live_kinds())
        self._looked_up: dict[str, tuple[Solution, Action | None, str]] = {}

    def _look_up(self, task: Resource) -> Generator[Action, Json, None]:
        """Look everything up for a Task, unless a question must be asked first."""
        request = self._by_text[task["description"]]
        must_ask = NOT_GIVEN in request.text or task["requester"]["reference"].startswith("Organization/")
        if request.id not in self._looked_up and not must_ask:
            self._looked_up[request.id] = yield from self._plan(request)

    def _plan(self, request: DeskRequest) -> Generator[Action, Json, tuple[Solution, Action | None, str]]:
        """Return the rest of a solution, its first write, and its outcome if it writes nothing."""
        solution = super()._solve(request, request.request.ask)
        try:
            action = next(solution)
            while action.kind == "GET":
                action = solution.send((yield action))
        except StopIteration as ended:
            return solution, None, ended.value
        return solution, action, ""

    @override
    def _solve(self, request: DeskRequest, ask: Any) -> Solution:
        if request.id not in self._looked_up:
            return (yield from super()._solve(request, ask))
        solution, action, outcome = self._looked_up[request.id]
        while action is not None:
            try:
                action = solution.send((yield replace(action, headers=())))
            except StopIteration as ended:
                return str(ended.value)
        return outcome


class _LooksUpAtArrival(_LooksUpEarly):
    """Looks everything up for a request as soon as it has arrived, and writes when it is due next."""

    @override
    def _worklist(self) -> Found:
        tasks = yield from super()._worklist()
        for task in tasks:
            yield from self._look_up(task)
        return tasks


class _LooksUpAtTheBeginning(_LooksUpEarly):
    """Looks everything up as soon as a Task is in-progress."""

    @override
    def _begin(self, task: Resource) -> Generator[Action, Json, Resource | None]:
        begun = yield from super()._begin(task)
        if begun is not None:
            yield from self._look_up(begun)
        return begun


class _BeginsWithoutLooking(GoldDesk):
    """Sets Tasks to in-progress even if somebody has changed them since the last look."""

    @override
    def _begin(self, task: Resource) -> Generator[Action, Json, Resource | None]:
        steps = super()._begin(task)
        answer: Json = None
        try:
            while True:
                action = next(steps) if answer is None else steps.send(answer)
                answer = yield replace(action, headers=())
        except StopIteration as ended:
            found: Resource | None = ended.value
            return found


class _ClosesAsItBegan(GoldDesk):
    """Closes Tasks with what they contained when it began, even if somebody has changed them since."""

    @override
    def _update_task(self, task: Resource, **changed: Json) -> Generator[Action, Json, None]:
        yield replace(update(task, **changed), headers=())


class _BeginsInBatches(_ClosesAsItBegan):
    """Sets Tasks to in-progress and to another status in one batch, and closes them without If-Match."""

    _next_state: ClassVar[Resource] = {"status": "accepted"}

    @override
    def _begin(self, task: Resource) -> Generator[Action, Json, Resource | None]:
        begun = task | {"status": "in-progress"}
        if task["status"] == "requested":
            self._in_progress_since[task["id"]] = self._watch.now
            entries = [
                {"request": {"method": "PUT", "url": f"Task/{task['id']}"}, "resource": state}
                for state in (begun, task | self._next_state)
            ]
            yield Post("/", {"resourceType": "Bundle", "type": "batch", "entry": entries})
        return begun


class _ClosesAtOnce(_BeginsInBatches):
    """Closes Tasks as done in the batch that sets them to in-progress, and works later."""

    _next_state: ClassVar[Resource] = {"status": "completed", "businessStatus": {"text": DONE}}

    @override
    def _update_task(self, task: Resource, **changed: Json) -> Generator[Action, Json, None]:
        if changed["status"] == "completed" and "output" not in changed:
            yield Get(f"/Task/{task['id']}")
        else:
            yield from super()._update_task(task, **changed)


class _ReadsNoMessages(GoldDesk):
    """Takes no notice of what requesters write while it works."""

    @override
    def _worklist(self) -> Found:
        tasks = yield from super()._worklist()
        self._messages = {}
        return tasks


class _FinishesWhatItBegan(GoldDesk):
    """Never interrupts long work."""

    @override
    def _interrupt(self, task: Resource, request: DeskRequest) -> Generator[Action, Json, None]:
        yield from ()


class _ReadsPoliciesOnce(GoldDesk):
    """Follows the policies that are in force at the start."""

    @property
    @override
    def _policy_time(self) -> datetime:
        return self._now


def _first_half(p: LiveParams) -> Gold:
    solution = GoldDesk(p, live_kinds()).play()
    action = next(solution)
    closed: set[str] = set()
    while action.kind != "FINISH" and len(closed) < len(p.requests) // 2:
        if "/Task/" in action.url and '"businessStatus"' in (action.body or ""):
            closed.add(action.url.rpartition("/")[2])
        action = solution.send((yield action))
    yield Finish([])


def _only_closes(p: LiveParams) -> Gold:
    query = {"owner": f"Organization/{p.desk}", "status": "requested,in-progress", "_count": "200"}
    while tasks := (yield from search_all("/Task", query)):
        for task in tasks:
            yield Put(f"/Task/{task['id']}", task | {"status": "completed", "businessStatus": {"text": DONE}})
    yield Finish([])


def _nothing(_: LiveParams) -> Gold:
    yield Finish([])


def _remembering() -> Sees:
    """Return the eyes of an agent that sends no search for slots twice."""
    seen: dict[str, Json] = {}
    return lambda action, answer: seen.setdefault(action.url, answer) if "/Slot?" in action.url else answer


def _everything(_: Action, answer: Json) -> Json:
    return answer


AGENTS: dict[str, tuple[Callable[[LiveParams], Gold], Callable[[], Sees]]] = {
    "reference solution": (lambda p: GoldDesk(p, live_kinds()).play(), lambda: _everything),
    "handles requests in the order of their arrival": (
        lambda p: GoldDesk(p, live_kinds(), lambda task: (task["authoredOn"], task["id"])).play(),
        lambda: _everything,
    ),
    "handles the latest request first": (
        lambda p: GoldDesk(
            p, live_kinds(), lambda task: tuple(-ord(authored_on) for authored_on in task["authoredOn"])
        ).play(),
        lambda: _everything,
    ),
    "never searches for slots again": (lambda p: GoldDesk(p, live_kinds()).play(), _remembering),
    "never asks": (lambda p: _NeverAsks(p, live_kinds()).play(), lambda: _everything),
    "sets Tasks to in-progress without If-Match": (
        lambda p: _BeginsWithoutLooking(p, live_kinds()).play(),
        lambda: _everything,
    ),
    "closes Tasks without If-Match": (lambda p: _ClosesAsItBegan(p, live_kinds()).play(), lambda: _everything),
    "sets Tasks to in-progress and another status in one batch, closes them blindly": (
        lambda p: _BeginsInBatches(p, live_kinds()).play(),
        lambda: _everything,
    ),
    "closes Tasks in the batch that sets them to in-progress": (
        lambda p: _ClosesAtOnce(p, live_kinds()).play(),
        lambda: _everything,
    ),
    "reads no messages": (lambda p: _ReadsNoMessages(p, live_kinds()).play(), lambda: _everything),
    "looks a request up when its work begins, and not again": (
        lambda p: _LooksUpAtTheBeginning(p).play(),
        lambda: _everything,
    ),
    "never interrupts long work": (lambda p: _FinishesWhatItBegan(p, live_kinds()).play(), lambda: _everything),
    "looks a request up when it arrives, and writes when it is due": (
        lambda p: _LooksUpAtArrival(p).play(),
        lambda: _everything,
    ),
    "follows the policies that are in force at the start": (
        lambda p: _ReadsPoliciesOnce(p, live_kinds()).play(),
        lambda: _everything,
    ),
    "handles the first half of the requests": (_first_half, lambda: _everything),
    "closes every request as done": (_only_closes, lambda: _everything),
    "does nothing": (_nothing, lambda: _everything),
}
"""The agents by name: their actions, and what they see."""


def play(agent: str, key: str, variation: int, world: World) -> dict[str, Any]:
    """Play an episode, and return its success, score and number of requests.

    Args:
        agent: Name of the agent.
        key: Key of a live task.
        variation: Number of the variation.
        world: The world.
    """
    actions, eyes = AGENTS[agent]
    sees = eyes()
    with Episode(_PACK, task=key, variation=variation, world=world, reward="dense") as episode:
        params = episode.variation.params
        assert isinstance(params, LiveParams)
        episode.start()
        solution = actions(params)
        action = next(solution)
        while not (step := episode.step(action)).done:
            response = read_response(step.observation)
            answer = response.json() if response and response.body else None
            action = solution.send(sees(action, answer))
        return {"success": step.info["success"], "score": step.reward, "requests": len(episode.requests)}


def _measure(key: str, variations: int, world: World) -> Iterator[dict[str, Any]]:
    for agent in AGENTS:
        found = [play(agent, key, number, world) for number in range(variations)]
        means = {name: round(mean(float(resource[name]) for resource in found), 3) for name in found[0]}
        yield {"task": key, "agent": agent, "n": variations, **means}


def main() -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shift_live_agents", description=__doc__)
    parser.add_argument("--variations", type=int, default=10, help="variations of each task")
    parser.add_argument("--tasks", nargs="*", default=["day-3", "day-4"], help="keys of the tasks")
    options = parser.parse_args()
    with load(get_pack(_PACK).world) as world:
        for key in options.tasks:
            for line in _measure(key, options.variations, world):
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
