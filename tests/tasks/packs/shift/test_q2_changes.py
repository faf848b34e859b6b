from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial

import pytest

from fhir_gym import Episode, Step
from fhir_gym.actions import Action, Finish, Get, Patch, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.packs.shift.kind import ShiftSize
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_FREE_TIME
from fhir_gym.tasks.packs.shift.q2_changes.kind import Changes
from fhir_gym.tasks.packs.shift.q2_changes.rules import ChangeRequest
from fhir_gym.types import Resource
from tests.tasks.packs.shift.playing import (
    checks_of_done_requests,
    edited,
    failed,
    in_transactions,
    names_of_checks,
    only_reads,
    opened,
    params_of,
    play,
)
from tests.tasks.packs.shift.rule_variations import dependent_checks


@pytest.mark.parametrize("variation", [0, 1_000])
@pytest.mark.parametrize("key", ["Q2-1", "Q2-2"])
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


def test_lookups_without_writes_earn_the_declined_requests(hospital: World) -> None:
    with opened(hospital, "Q2-1", 1) as episode:
        wrong = checks_of_done_requests(episode)
        step = play(episode, only_reads)
        assert wrong and failed(step) == wrong


def test_any_number_of_requests_may_find_no_free_time(hospital: World) -> None:
    kind, rng = Changes(), random.Random(0)
    scenes = (kind.draw_scene(rng, hospital, IdAllocator(rng, hospital), ShiftSize(1, 4)) for _ in range(50))
    chosen = next(filter(None, (kind.choose(rng, hospital, one, (NO_FREE_TIME,) * 4) for one in scenes)))
    assert {one.ask.change for one in chosen} == {"move"}


MISTAKES: dict[str, Callable[[Action], list[Action]]] = {
    "another status": partial(edited, "Appointment", lambda one: one.update(status="entered-in-error")),
    "a comment": partial(edited, "Appointment", lambda one: one.update(comment="as asked")),
    "without participants": partial(edited, "Appointment", lambda one: one.update(participant=one["participant"][:1])),
    "end a day later": partial(edited, "Appointment", lambda one: one.update(end="2030-01-01T00:00:00Z")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_the_requests_that_it_touches(hospital: World, mistake: str) -> None:
    with opened(hospital, "Q2-1", 2) as episode:
        step = play(episode, MISTAKES[mistake])
        touched = checks_of_done_requests(episode)
        assert touched and [one for one in failed(step) if one.startswith("request")] == touched
        assert step.reward < 1


def test_slots_must_be_freed_and_taken(hospital: World) -> None:
    changed = 0
    for variation in range(4):
        with opened(hospital, "Q2-1", variation) as episode:
            dependent = dependent_checks(episode)
            step = play(episode, lambda one: [Get("/metadata")] if one.url.startswith("/Slot/") else [one])
            requests: tuple[ChangeRequest, ...] = params_of(episode).requests
            need = [one.outcome == DONE and one.ask.change != "missed" for one in requests]
            wrong = {*names_of_checks(need)} - dependent
            assert wrong <= {*failed(step)}
            changed += len(wrong)
    assert changed


def patched(action: Action) -> list[Action]:
    """Replace updates of slots by JSON patches."""
    if action.kind != "PUT" or not action.url.startswith("/Slot/"):
        return [action]
    status = "free" if '"status":"free"' in (action.body or "") else "busy"
    return [Patch(action.url, [{"op": "replace", "path": "/status", "value": status}])]


@pytest.mark.parametrize("other", [patched, in_transactions])
@pytest.mark.parametrize("variation", [0, 3])
def test_other_kinds_of_writes_are_right_too(
    hospital: World, other: Callable[[Action], list[Action]], variation: int
) -> None:
    with opened(hospital, "Q2-2", variation) as episode:
        assert play(episode, other).reward == 1


def without_slot(appointment: Resource) -> None:
    """Remove the slot from a cancelled appointment."""
    if appointment["status"] == "cancelled":
        del appointment["slot"]


def test_a_cancelled_appointment_may_lose_its_slot(hospital: World) -> None:
    cancelled = 0
    for variation in range(4):
        with opened(hospital, "Q2-1", variation) as episode:
            requests: tuple[ChangeRequest, ...] = params_of(episode).requests
            cancelled += sum(one.outcome == DONE and one.ask.change == "cancel" for one in requests)
            assert play(episode, partial(edited, "Appointment", without_slot)).reward == 1
    assert cancelled


def play_and_write_at_the_end(episode: Episode, writes: list[Action]) -> Step:
    """Play a solution that reads everything first, and does not think of its own writes, which go to `writes`."""

    def later(action: Action) -> list[Action]:
        if action.kind == "FINISH":
            return [*writes, action]
        if action.kind == "GET":
            return [action]
        writes.append(action)
        return [Get("/metadata")]

    return play(episode, later)


@pytest.mark.slow
def test_all_writes_may_come_at_the_end(hospital: World) -> None:
    """An agent may read everything first; then it must itself think of the slots that its own writes free or take."""
    right = 0
    for variation in range(12):
        with opened(hospital, "Q2-1", variation) as episode:
            dependent = dependent_checks(episode)
            step = play_and_write_at_the_end(episode, [])
            right += not step.truncated and {*failed(step)} <= dependent
    assert right >= 10


def test_two_appointments_in_one_slot_fail_the_later_request(hospital: World) -> None:
    for variation in range(60):
        with opened(hospital, "Q2-1", variation) as episode:
            writes: list[Action] = []
            step = play_and_write_at_the_end(episode, writes)
            written = [json.loads(one.body or "") for one in writes if one.url.startswith("/Appointment/")]
            moved = [body for body in written if body["status"] in ("booked", "pending")]
            slots = {body["id"]: body["slot"][0]["reference"] for body in moved}
            if len({*slots.values()}) < len(slots):
                (later,) = (id for number, (id, slot) in enumerate(slots.items()) if slot in [*slots.values()][:number])
                assert failed(step) == names_of_checks(one.visit == later for one in params_of(episode).requests)
                return
    pytest.fail("no two appointments were moved to one slot")


def test_odd_writes_are_judged(hospital: World) -> None:
    with opened(hospital, "Q2-1", 2) as episode:
        request = next(one for one in params_of(episode).requests if one.visit)
        odd = {"resourceType": "Appointment", "id": request.visit, "status": "cancelled", "slot": [{"display": "?"}]}
        episode.step(Put(f"/Appointment/{request.visit}", odd))
        step = episode.step(Finish(["A. done", "B) done", 3]))
        assert step.reward == 0
