from __future__ import annotations

import json
import random
from functools import partial

import pytest

from fhir_gym import Episode, Step
from fhir_gym.actions import Action, Get
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.packs.shift.kind import ShiftSize
from fhir_gym.tasks.packs.shift.outcomes import DONE, NO_FREE_TIME
from fhir_gym.tasks.packs.shift.q2_changes import ChangeRequest, Changes
from fhir_gym.types import Resource
from tests.tasks.packs.shift.independent.solve_q2 import solve
from tests.tasks.packs.shift.playing import edited, failed, names_of_checks, opened, params_of, play


def test_any_number_of_requests_may_find_no_free_time(hospital: World) -> None:
    kind, rng = Changes(), random.Random(0)
    scenes = (kind.draw_scene(rng, hospital, IdAllocator(rng, hospital), ShiftSize(1, 4)) for _ in range(50))
    chosen = next(filter(None, (kind.choose(rng, hospital, scene, (NO_FREE_TIME,) * 4) for scene in scenes)))
    assert {request.ask.change for request in chosen} == {"move"}


def without_slot(appointment: Resource) -> None:
    """Remove the slot from a cancelled appointment."""
    if appointment["status"] == "cancelled":
        del appointment["slot"]


def test_a_cancelled_appointment_may_lose_its_slot(hospital: World) -> None:
    cancelled = 0
    for variation in range(4):
        with opened(hospital, "Q2-1", variation) as episode:
            requests: tuple[ChangeRequest, ...] = params_of(episode).requests
            cancelled += sum(request.outcome == DONE and request.ask.change == "cancel" for request in requests)
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


def test_two_appointments_in_one_slot_fail_the_later_request(hospital: World) -> None:
    for variation in range(60):
        with opened(hospital, "Q2-1", variation) as episode:
            writes: list[Action] = []
            step = play_and_write_at_the_end(episode, writes)
            written = [json.loads(write.body or "") for write in writes if write.url.startswith("/Appointment/")]
            moved = [body for body in written if body["status"] in ("booked", "pending")]
            slots = {body["id"]: body["slot"][0]["reference"] for body in moved}
            if len({*slots.values()}) < len(slots):
                (later,) = (id for number, (id, slot) in enumerate(slots.items()) if slot in [*slots.values()][:number])
                assert failed(step) == names_of_checks(
                    request.visit == later for request in params_of(episode).requests
                )
                return
    pytest.fail("no two appointments were moved to one slot")


def test_a_slot_may_pass_from_one_appointment_to_another_in_one_transaction(hospital: World) -> None:
    for variation in range(40):
        with opened(hospital, "Q2-2", variation) as episode:
            slots: list[str] = []

            def note(action: Action, slots: list[str] = slots) -> list[Action]:
                slots += [action.url] if action.kind == "PUT" and action.url.startswith("/Slot/") else []
                return [action]

            play(episode, note)
            if len({*slots}) < len(slots):
                episode.start()
                answer = solve(episode.prompt, lambda action: episode.step(action).observation, "transaction")
                assert failed(episode.step(answer)) == []
                return
    pytest.fail("no slot was freed and taken")
