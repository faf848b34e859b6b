"""What the agent itself made free is free when it reports: nobody declines a request after a look at other slots."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from fhir_gym import Episode
from fhir_gym.actions import Action, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift import place_records
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestKind, Solution
from fhir_gym.tasks.packs.shift.live.gold import GoldDesk
from fhir_gym.tasks.packs.shift.live.kinds import live_kinds
from fhir_gym.tasks.packs.shift.live.plan import DeskRequest, LiveParams
from fhir_gym.tasks.packs.shift.lookups import Found
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_FREE_TIME, letters
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.live.playing import failed as live_failed
from tests.tasks.packs.shift.live.playing import params_of as live_params
from tests.tasks.packs.shift.live.playing import play as live_play
from tests.tasks.packs.shift.live.playing import results, shift_of
from tests.tasks.packs.shift.playing import answer_of, failed, follow, opened, params_of, play

REFUSED: Resource = {"resourceType": "OperationOutcome"}
MANY = 60
"""More slots than suit any patient."""
Policy = Callable[[Solution], Solution]


class Hiding:
    """Takes every slot that suits the patient, looks again, frees the slots, and reports that there is none.

    Attributes:
        hidden: The URLs of the slots.
        saw_none: Whether the last look showed no slot that suits.
    """

    def __init__(self) -> None:
        self.hidden: list[str] = []
        self.saw_none = False

    def __call__(self, solution: Solution) -> Solution:
        slots: list[Action] = []
        action = next(solution)
        while True:
            answer = yield action
            if action.headers:  # the solution takes a slot, if nobody has taken it since
                slots.append(replace(action, headers=()))
                answer = REFUSED
            try:
                action = solution.send(answer)
            except StopIteration as end:
                self.hidden = [slot.url for slot in slots]
                self.saw_none = end.value == NO_FREE_TIME and len(slots) < MANY
                break
        for slot in slots:
            yield Put(slot.url, json.loads(slot.body or "") | {"status": "free"})
        return NO_FREE_TIME


def reporting_none(solution: Solution) -> Solution:
    """Report that there is no free time, without another look."""
    solution.close()
    yield from ()
    return NO_FREE_TIME


def with_policy(monkeypatch: pytest.MonkeyPatch, key: str, chosen: Any, policy: Policy) -> None:
    """Let the reference solutions handle one request of a kind by another policy."""
    kind = type(live_kinds()[key])
    solve = kind.solve

    def solved(self: RequestKind[Any, Any], ask: Any, knowledge: Knowledge) -> Solution:
        solution = solve(self, ask, knowledge)
        return (yield from policy(solution) if ask == chosen else solution)

    monkeypatch.setattr(kind, "solve", solved)
    monkeypatch.setattr(place_records, "MOST_BOOKINGS", MANY)


def sees_none(episode: Episode, ask: Any) -> bool:
    """Look up what a change of an appointment needs, and return whether there is no free time for it."""
    solution = live_kinds()["Q2"].solve(ask, Knowledge({}, episode.world.now))
    action: Action = next(solution)
    while action.kind == "GET":
        try:
            action = solution.send(answer_of(episode.step(action)))
        except StopIteration as end:
            return bool(end.value == NO_FREE_TIME)
    return False


def slots_taken(episode: Episode) -> set[str]:
    """Return the URLs of the slots in which the agent has left an appointment."""
    appointments = [change.after for change in episode.session.changes() if change.resource_type == "Appointment"]
    return {
        f"/{slot['reference']}" for appointment in appointments if appointment for slot in appointment.get("slot", [])
    }


@pytest.mark.parametrize("key", ["Q1", "Q2", "P1"])
def test_who_hides_the_slots_during_a_look_fails_the_request(hospital: World, key: str) -> None:
    tried = 0
    for variation in range(4):
        with opened(hospital, f"{key}-1", variation) as episode:
            requests = params_of(episode).requests
            for letter, request in zip(letters(len(requests)), requests, strict=True):
                episode.start()
                with pytest.MonkeyPatch.context() as patch:
                    with_policy(patch, key, request.ask, hiding := Hiding())
                    step = play(episode)
                if request.outcome == DONE and hiding.saw_none and {*hiding.hidden} - slots_taken(episode):
                    tried += 1
                    assert f"request {letter}" in failed(step)
    assert tried > 2


@pytest.mark.slow
def test_who_looks_before_an_earlier_request_frees_a_slot_fails(hospital: World) -> None:
    tried = 0
    for variation in range(20):
        with opened(hospital, "Q2-1", variation) as episode:
            requests = params_of(episode).requests
            for letter, request in zip(letters(len(requests)), requests, strict=True):
                episode.start()
                if request.outcome == DONE and sees_none(episode, request.ask):
                    tried += 1
                    with pytest.MonkeyPatch.context() as patch:
                        with_policy(patch, "Q2", request.ask, reporting_none)
                        assert f"request {letter}" in failed(play(episode))
    assert tried > 2


class _ClosesLate(GoldDesk):
    """Closes no other Task before one chosen Task, although it has handled other requests before.

    Args:
        p: The parameters.
        chosen: Id of the chosen Task.
    """

    def __init__(self, p: LiveParams, chosen: str) -> None:
        super().__init__(p, live_kinds())
        self._chosen = chosen
        self._unclosed: dict[str, tuple[Resource, str, bool]] = {}

    @override
    def _worklist(self) -> Found:
        tasks = yield from super()._worklist()
        self._open = [task for task in tasks if task["id"] not in self._unclosed]
        return self._open

    @override
    def _close(self, task: Resource, outcome: str, *, is_value: bool) -> Generator[Action, Json, None]:
        self._unclosed[task["id"]] = task, outcome, is_value
        if task["id"] == self._chosen or self._chosen not in self._in_progress_since:
            while self._unclosed:
                _, (handled, told, value) = self._unclosed.popitem()
                yield from super()._close(handled, told, is_value=value)


def is_wrong(episode: Episode, task: str) -> bool:
    """Whether the agent decided a request wrongly, whatever else it did for it."""
    check = results(episode)[task][1]
    return not check.passed and check.actual["outcome"] == NO_FREE_TIME and "judged" in check.actual


def done(episode: Episode) -> list[DeskRequest]:
    """Play the reference solution of a live shift, and return the requests that are done and do not change."""
    episode.start()
    live_play(episode)
    assert not live_failed(episode)
    checks = results(episode).values()
    return [
        request
        for request, check in checks
        if not request.first
        and not request.message_after
        and check.actual != "withdrawn"
        and check.actual["outcome"] == DONE
    ]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["Q1", "Q2", "P1"])
def test_who_hides_the_slots_in_a_live_shift_fails_the_request(
    hospital: World, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    tried = 0
    for variation in range(30):
        if tried > 2:
            break
        with shift_of([key], hospital, monkeypatch, "hiding", variation, minutes=40, events=0, asking=0) as episode:
            for request in done(episode):
                with pytest.MonkeyPatch.context() as patch:
                    with_policy(patch, key, request.request.ask, hiding := Hiding())
                    episode.start()
                    live_play(episode)
                if hiding.hidden and hiding.saw_none:
                    tried += 1
                    assert is_wrong(episode, request.id)
    assert tried > 2


def look_then_play(episode: Episode, request: DeskRequest, chosen: str, policy: Policy) -> str:
    """Look up what a request needs; if there is no free time, play a live shift, and return the reported outcome.

    Args:
        episode: The episode.
        request: The request.
        chosen: See `_ClosesLate`.
        policy: The policy for the request.
    """
    episode.start()
    if not sees_none(episode, request.request.ask):
        return ""
    with pytest.MonkeyPatch.context() as patch:
        with_policy(patch, "Q2", request.request.ask, policy)
        follow(episode, _ClosesLate(live_params(episode), chosen).play(), lambda action: [action])
    return str(results(episode)[request.id][1].actual["outcome"])


@pytest.mark.slow
@pytest.mark.parametrize("closes_late", [False, True])
def test_who_looks_before_it_frees_a_slot_in_a_live_shift_fails(
    hospital: World, monkeypatch: pytest.MonkeyPatch, closes_late: bool
) -> None:
    tried = 0
    for variation in range(10):
        if tried > 2:
            break
        with shift_of(["Q2"], hospital, monkeypatch, "chains", variation, load=1.5, events=0, asking=0) as episode:
            for request in done(episode):
                chosen = request.id if closes_late else ""
                if look_then_play(episode, request, chosen, lambda solution: solution) == DONE:
                    tried += 1
                    assert look_then_play(episode, request, chosen, reporting_none) == NO_FREE_TIME
                    assert is_wrong(episode, request.id)
    assert tried > 2
