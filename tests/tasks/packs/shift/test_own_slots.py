"""What the agent itself made free is free when it reports: nobody declines a request after a look at other slots."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from typing_extensions import override

from fhir_gym import Episode
from fhir_gym.actions import Action, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Gold
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.packs.shift.kind import RequestKind, Solution
from fhir_gym.tasks.packs.shift.live.gold import GoldDesk
from fhir_gym.tasks.packs.shift.live.kinds import live_kinds
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_FREE_TIME, letters
from fhir_gym.tasks.packs.shift.place_records import MOST_BOOKINGS
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.playing import answer_of, failed, follow, opened, params_of, play

REFUSED: Resource = {"resourceType": "OperationOutcome"}
Policy = Callable[[Solution], Solution]


class Hiding:
    """Takes every slot that suits the patient, looks again, frees the slots, and reports that there is none.

    Attributes:
        hidden: The number of slots.
        saw_none: Whether the last look showed no slot that suits.
    """

    def __init__(self) -> None:
        self.hidden, self.saw_none = 0, False

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
                self.hidden, self.saw_none = len(slots), end.value == NO_FREE_TIME and len(slots) < MOST_BOOKINGS
                break
        for one in slots:
            yield Put(one.url, json.loads(one.body or "") | {"status": "free"})
        return NO_FREE_TIME


def reporting_none(solution: Solution) -> Solution:
    """Report that there is no free time, without another look."""
    solution.close()
    return NO_FREE_TIME
    yield


def with_policy(monkeypatch: pytest.MonkeyPatch, key: str, chosen: Any, policy: Policy) -> None:
    """Let the reference solutions handle one request of a kind by another policy."""
    kind = type(live_kinds()[key])
    solve = kind.solve

    def solved(
        self: RequestKind[Any, Any], ask: Any, given: Mapping[str, str], now: datetime, known: dict[str, Any]
    ) -> Solution:
        solution = solve(self, ask, given, now, known)
        return (yield from policy(solution) if ask == chosen else solution)

    monkeypatch.setattr(kind, "solve", solved)


def sees_none(episode: Episode, key: str, ask: Any) -> bool:
    """Look up what a request needs, and return whether there is no free time for it."""
    kind, params = live_kinds()[key], episode.variation.params
    scene = params.scene[key] if isinstance(params.scene, dict) else params.scene
    solution = kind.solve(ask, kind.rule_values(scene), parse_instant(params.now), {})
    action: Action = next(solution)
    while action.kind == "GET":
        try:
            action = solution.send(answer_of(episode.step(action)))
        except StopIteration as end:
            return bool(end.value == NO_FREE_TIME)
    return False


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
                if request.outcome == DONE and hiding.hidden and hiding.saw_none:
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
                if request.outcome == DONE and sees_none(episode, "Q2", request.ask):
                    tried += 1
                    with pytest.MonkeyPatch.context() as patch:
                        with_policy(patch, "Q2", request.ask, reporting_none)
                        assert f"request {letter}" in failed(play(episode))
    assert tried > 2


class _ClosesLate(GoldDesk):
    """Closes the Tasks of other requests only after that of one request, although it has handled them before."""

    last = ""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: list[tuple[Resource, str, bool]] = []

    @override
    def _worklist(self) -> Generator[Action, Json, list[Resource]]:
        waiting = [task["id"] for task, _, _ in self._waiting]
        self._open = [one for one in (yield from super()._worklist()) if one["id"] not in waiting]
        return self._open

    @override
    def _close(self, task: Resource, outcome: str, *, is_value: bool) -> Gold:
        self._waiting.append((task, outcome, is_value))
        if task["id"] == self.last or len(self._open) == 1:
            for one, told, value in self._waiting[::-1]:
                yield from super()._close(one, told, is_value=value)
            self._waiting = []
