from __future__ import annotations

from functools import partial

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Action, Get, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.calendar import Calendar
from fhir_gym.tasks.packs.shift.s1_absences.rules import AbsenceCalendar, AbsenceRequest
from fhir_gym.tasks.packs.shift.s1_absences.scene import WAITING, AbsenceScene
from fhir_gym.types import Resource
from tests.tasks.packs.shift.playing import answer_of, edited, failed, opened, opened_where, params_of, play


def requests_of(episode: Episode) -> tuple[AbsenceRequest, ...]:
    return params_of(episode).requests


def one_absence(world: World) -> Episode:
    return opened_where(world, "S1-1", lambda params: len(params.requests) == 1)


def without_slot(appointment: Resource) -> None:
    """Remove the slot from an appointment on the waiting list."""
    if appointment["status"] == WAITING:
        del appointment["slot"]


def test_an_appointment_on_the_waiting_list_may_lose_its_slot(hospital: World) -> None:
    waiting = 0
    for variation in range(3):
        with opened(hospital, "S1-1", variation) as episode:
            assert play(episode, partial(edited, "Appointment", without_slot)).reward == 1
            waiting += sum(
                (change.after or {}).get("status") == WAITING and "slot" not in (change.after or {})
                for change in episode.session.changes()
            )
    assert waiting


def due(episode: Episode) -> int:
    """Return the number of records that the only absence of an episode must change."""
    (request,), scene = requests_of(episode), params_of(episode).scene
    assert isinstance(scene, AbsenceScene)
    calendar = AbsenceCalendar(Calendar.at_start(scene), scene, request)
    return len(calendar.appointments()) + len(calendar.free_slots())


def test_the_score_is_the_share_of_records_right_minus_the_share_harmed(hospital: World) -> None:
    with one_absence(hospital) as episode:
        left: list[str] = []

        def leave_one(action: Action) -> list[Action]:
            """Leave the last slot as it is, which is one that the absent practitioner would have had free or used."""
            if not left and action.url.startswith("/Appointment/"):
                left.append(action.url)
                return [Get("/metadata")]
            return [action]

        step = play(episode, leave_one)
        number = due(episode)  # one appointment did not move although its slots changed
        assert step.reward == pytest.approx((number - 2) / number)
        assert failed(step) == ["request A"]


@pytest.mark.slow
def test_changes_of_other_records_of_the_practitioner_are_harm(hospital: World) -> None:
    with one_absence(hospital) as episode:
        (request,), scene = requests_of(episode), params_of(episode).scene
        ended = next(
            visit for visit in scene.visits if visit.slot.schedule == request.schedule and visit.status == "cancelled"
        )
        url = f"/Appointment/{ended.id}"

        def also(action: Action) -> list[Action]:
            if action.kind != "FINISH":
                return [action]
            body = answer_of(episode.step(Get(url)))
            assert isinstance(body, dict)
            return [Put(url, {**body, "status": "waitlist"}), action]

        step = play(episode, also)
        number = due(episode)
        assert failed(step) == ["request A"] and step.reward == pytest.approx((number - 1) / number)
