from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fhir_gym import Episode, Step
from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.calendar import Calendar
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.s1_absences.rules import AbsenceCalendar, AbsenceRequest
from fhir_gym.tasks.packs.shift.s1_absences.scene import WAITING, AbsenceScene
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.absence_solver import FLAWS, plan_and_patch, plan_and_write_at_once
from tests.tasks.packs.shift.playing import (
    answer_of,
    checks_of_done_requests,
    edited,
    failed,
    has_outcomes,
    in_transactions,
    only_reads,
    opened,
    opened_where,
    params_of,
    play,
)
from tests.tasks.packs.shift.solvers import Solver, solve

SOLVERS = (plan_and_write_at_once, plan_and_patch)


@pytest.mark.parametrize(("key", "variation"), [("S1-1", 0), ("S1-2", 0)])
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


def requests_of(episode: Episode) -> tuple[AbsenceRequest, ...]:
    return params_of(episode).requests


def with_nothing_to_do(world: World) -> Episode:
    """Open an episode with an absence without anything to do, and with another one."""
    return opened_where(world, "S1-1", has_outcomes(DONE, NOTHING_TO_DO))


def one_absence(world: World) -> Episode:
    return opened_where(world, "S1-1", lambda params: len(params.requests) == 1)


def test_lookups_without_writes_earn_only_absences_without_anything_to_do(hospital: World) -> None:
    with with_nothing_to_do(hospital) as episode:
        wrong = checks_of_done_requests(episode)
        step = play(episode, only_reads)
        assert len(wrong) == 1 and failed(step) == wrong
        assert step.reward == 0.5


@pytest.mark.slow
def test_nothing_to_do_needs_lookups_of_appointments_and_of_slots(hospital: World) -> None:
    for left_out in ("/Appointment", "/Slot"):
        with with_nothing_to_do(hospital) as episode:
            letter, request = next(
                (letter, one) for letter, one in zip("AB", requests_of(episode), strict=True) if one.outcome != DONE
            )
            person = params_of(episode).scene.by_schedule()[request.schedule].person.id
            for query in (f"/Appointment?actor=Practitioner/{person}", f"/Slot?schedule=Schedule/{request.schedule}"):
                if not query.startswith(left_out):
                    episode.step(Get(query))
            step = episode.step(Finish([f"{one}: {NOTHING_TO_DO if one == letter else DONE}" for one in "AB"]))
            assert f"request {letter}" in failed(step)


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


MISTAKES: dict[str, Callable[[Action], list[Action]]] = {
    "another status": partial(edited, "Appointment", lambda one: one.update(status="proposed")),
    "another end": partial(edited, "Appointment", lambda one: one.update(end="2030-01-01T00:00:00Z")),
    "a comment": partial(edited, "Appointment", lambda one: one.update(comment="as asked")),
    "no priority": partial(edited, "Appointment", lambda one: one.update(priority=8)),
    "patient only": partial(edited, "Appointment", lambda one: one.update(participant=one["participant"][:1])),
    "tentative": partial(edited, "Slot", lambda one: one.update(status="busy-tentative")),
    "slot remarked": partial(edited, "Slot", lambda one: one.update(comment="away")),
    "slots left": lambda one: [Get("/metadata")] if one.url.startswith("/Slot/") else [one],
    "appointments left": lambda one: [Get("/metadata")] if one.url.startswith("/Appointment/") else [one],
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_the_requests_that_it_touches(hospital: World, mistake: str) -> None:
    with with_nothing_to_do(hospital) as episode:
        step = play(episode, MISTAKES[mistake])
        assert [one for one in failed(step) if one.startswith("request")] == checks_of_done_requests(episode)
        assert step.reward < 1


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
        ended = next(one for one in scene.visits if one.slot.schedule == request.schedule and one.status == "cancelled")
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


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solver_that_knows_only_the_prompt_succeeds(hospital: World, solver: Solver) -> None:
    assert solved(hospital, "S1-1", 2, solver) == []


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solver_that_knows_only_the_prompt_succeeds_in_other_variations(hospital: World, solver: Solver) -> None:
    assert solved(hospital, "S1-2", 4, solver) == solved(hospital, "S1-2", 1_001, solver) == []


def solved(world: World, key: str, variation: int, solver: Solver) -> list[str]:
    with Episode("FHIRAgent/Shift-v0", task=key, variation=variation, phrasing=variation % 3, world=world) as episode:
        return failed(solve(episode, solver))


@pytest.mark.slow
@pytest.mark.parametrize("flaw", FLAWS)
def test_a_solver_with_a_flaw_fails(hospital: World, flaw: str) -> None:
    """At least one of three variations shows the flaw."""
    for variation in (13, 2, 5):
        with opened(hospital, "S1-1", variation) as episode:
            step: Step = solve(episode, lambda prompt: plan_and_write_at_once(prompt, flaw))
            if failed(step):
                assert step.reward < 1 and not step.info["success"]
                return
    raise AssertionError("no variation shows the flaw")


@pytest.mark.slow
def test_transactions_are_right_too(hospital: World) -> None:
    with opened(hospital, "S1-2", 1) as episode:
        assert play(episode, in_transactions).reward == 1


ODD: tuple[Json, ...] = (
    {"resourceType": "Appointment", "status": "waitlist"},
    {"resourceType": "Appointment", "slot": [{"display": "any"}], "participant": [{"actor": {"reference": "x"}}]},
    {"resourceType": "Appointment", "status": "booked", "slot": [], "participant": []},
)


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD)
def test_odd_appointments_are_judged(hospital: World, odd: dict[str, Json]) -> None:
    with one_absence(hospital) as episode:
        (request,), scene = requests_of(episode), params_of(episode).scene
        for id in AbsenceCalendar(Calendar.at_start(scene), scene, request).appointments():
            episode.step(Put(f"/Appointment/{id}", {**odd, "id": id}))
        episode.step(Post("/Appointment", odd))
        step = episode.step(Finish(["A: done", "A: done", 7, None]))
        assert step.reward == 0 and "request A" in failed(step)
