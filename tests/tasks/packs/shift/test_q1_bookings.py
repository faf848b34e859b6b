from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fhir_gym import Episode, tasks
from fhir_gym.actions import Action, Delete, Finish, Get, Post
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import DONE
from fhir_gym.tasks.packs.shift.q1_bookings.rules import BookingRequest
from fhir_gym.tasks.packs.shift.static_task import ShiftParams, StaticShift
from fhir_gym.types import Resource
from tests.tasks.packs.shift.playing import (
    ENV,
    checks_of_done_requests,
    edited,
    failed,
    in_transactions,
    only_reads,
    opened,
    params_of,
    play,
)


def requests_of(episode: Episode) -> tuple[BookingRequest, ...]:
    return params_of(episode).requests


@pytest.mark.parametrize("key", ["Q1-1", "Q1-2"])
@pytest.mark.parametrize("variation", [0, 1, 1_000])
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit == {"Q1-1": 30, "Q1-2": 80}[key]


def test_levels_select_tasks(hospital: World) -> None:
    assert {one.level for one in tasks.task_set(ENV).values()} == {1, 2, 3, 4}
    with Episode(ENV, task="Q1-2", world=hospital, level=2) as episode:
        assert {one.level for one in episode.config.task_set().values()} == {2}
    with pytest.raises(Exception, match="levels 1, 2, 3, 4, not level 5"):
        Episode(ENV, task="Q1-1", world=hospital, level=5)
    with pytest.raises(Exception, match="Appointment-v0 has no levels"):
        Episode("FHIRAgent/Appointment-v0", task="01", world=hospital, level=1)


def test_lookups_without_writes_earn_the_declined_requests(hospital: World) -> None:
    with opened(hospital) as episode:
        outcomes = [one.outcome for one in requests_of(episode)]
        step = play(episode, only_reads)
        wrong = [f"request {letter}" for letter, one in zip("ABCDE", outcomes, strict=False) if one == DONE]
        assert failed(step) == wrong
        assert step.reward == pytest.approx(1 - len(wrong) / len(outcomes))


MISTAKES: dict[str, Callable[[Action], list[Action]]] = {
    "another status": partial(edited, "Appointment", lambda one: one.update(status="proposed")),
    "another start": partial(edited, "Appointment", lambda one: one.update(start="2023-12-24T08:00:00Z")),
    "no slot": partial(edited, "Appointment", lambda one: one.pop("slot")),
    "no participants": partial(edited, "Appointment", lambda one: one.pop("participant")),
    "patient only": partial(edited, "Appointment", lambda one: one.update(participant=one["participant"][:1])),
    "tentative": partial(edited, "Slot", lambda one: one.update(status="busy-tentative")),
    "slot remarked": partial(edited, "Slot", lambda one: one.update(comment="taken")),
    "slot left free": lambda one: [one] if one.kind != "PUT" else [Get("/metadata")],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_the_requests_that_it_touches(hospital: World, mistake: str) -> None:
    with opened(hospital) as episode:
        step = play(episode, MISTAKES[mistake])
        touched = checks_of_done_requests(episode)
        assert touched and [one for one in failed(step) if one.startswith("request")] == touched
        assert not step.info["success"] and step.reward < 1


def test_writes_of_other_records_fail_the_rest(hospital: World) -> None:
    with opened(hospital) as episode:
        other = hospital.ids("Patient")[0]
        step = play(episode, lambda one: [Delete(f"/Patient/{other}"), one] if one.kind == "FINISH" else [one])
        assert "no prohibited tool" in failed(step) and 0 < step.reward < 1
        strange = {"resourceType": "Basic", "code": {"text": "note"}}
        episode.start()
        step = play(episode, lambda one: [Post("/Basic", strange), one] if one.kind == "FINISH" else [one])
        assert failed(step) == ["nothing else changed"]
        assert 0 < step.reward < 1


def test_an_agent_may_plan_first_and_write_in_one_transaction_later(hospital: World) -> None:
    for key, variation in (("Q1-1", 2), ("Q1-2", 2)):
        with opened(hospital, key, variation) as episode:
            assert play(episode, in_transactions).reward == 1
            writes: list[Action] = []

            def later(action: Action, writes: list[Action] = writes) -> list[Action]:
                if action.kind == "FINISH":
                    return [*reversed(writes), action]
                if action.kind == "GET":
                    return [action]
                writes.append(action)
                return [Get("/metadata")]

            episode.start()
            step = play(episode, later)
            assert step.reward == 1 or _compete(requests_of(episode))


def _compete(requests: tuple[BookingRequest, ...]) -> bool:
    """Whether two of the bookings are for the same service, so that one may take the slot of the other."""
    services = [one.ask.service for one in requests if one.outcome == DONE]
    return len(services) != len(set(services))


ODD: tuple[Resource, ...] = (
    {"resourceType": "Appointment", "status": "booked"},
    {"resourceType": "Appointment", "status": "booked", "participant": [{"status": "accepted"}]},
    {"resourceType": "Appointment", "slot": [{"display": "any"}], "participant": [{"actor": {"reference": "x"}}]},
)


@pytest.mark.parametrize("odd", ODD)
def test_odd_appointments_are_judged(hospital: World, odd: Resource) -> None:
    with opened(hospital) as episode:
        patient = next(one.patients[0] for one in requests_of(episode) if one.patients)
        episode.step(Post("/Appointment", odd))
        who = {"actor": {"reference": f"Patient/{patient}"}, "status": "accepted"}
        episode.step(Post("/Appointment", {**odd, "participant": [*odd.get("participant", []), who]}))
        step = episode.step(Finish(["A: done", "A: done", 7, None]))
        assert step.reward == 0 and "answer form" in failed(step)


def test_counterfactual_slots_suit_the_patient(hospital: World) -> None:
    found = 0
    for variation in range(4):
        task = tasks.get_task(ENV, "Q1-1")
        assert isinstance(task, StaticShift)
        params = task.variation(variation, hospital).params
        assert isinstance(params, ShiftParams)
        for one in params.requests:
            slots = task.requests.counterfactuals(one, params.scene)
            if len(one.patients) == 1:
                wanted = [doctor for doctor in params.scene.practitioners if one.ask.wants(doctor)]
                assert len(slots) == len(wanted), one.ask
                found += len(slots)
    assert found
