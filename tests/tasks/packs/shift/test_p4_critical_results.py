from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.p4_critical_results.rules import CriticalRequest, results_due
from fhir_gym.tasks.packs.shift.p4_critical_results.scene import CriticalScene, target_id
from fhir_gym.types import Json
from tests.tasks.packs.shift.critical_solver import FLAWS, plan_and_write_at_once, write_one_by_one
from tests.tasks.packs.shift.playing import (
    checks_of_done_requests,
    edited,
    failed,
    has_outcomes,
    in_transactions,
    names_of_checks,
    only_reads,
    opened,
    opened_where,
    params_of,
    play,
)
from tests.tasks.packs.shift.solvers import Solver, solve

SOLVERS = (plan_and_write_at_once, write_one_by_one)


@pytest.mark.parametrize(("key", "variation"), [("P4-1", 0), ("P4-2", 0)])
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


def requests_of(episode: Episode) -> tuple[CriticalRequest, ...]:
    return params_of(episode).requests


def scene_of(episode: Episode) -> CriticalScene:
    scene = params_of(episode).scene
    assert isinstance(scene, CriticalScene)
    return scene


def due_of(episode: Episode) -> list[str]:
    """Return the ids of the results that need a Task, of the first request."""
    scene = scene_of(episode)
    return [*results_due(scene, requests_of(episode)[0].ask, parse_instant(scene.now))]


def with_nothing_to_do(world: World) -> Episode:
    return opened_where(world, "P4-1", has_outcomes(DONE, NOTHING_TO_DO))


def one_department(world: World) -> Episode:
    return opened_where(world, "P4-1", has_outcomes(DONE))


def test_lookups_without_writes_earn_only_departments_without_anything_to_do(hospital: World) -> None:
    with with_nothing_to_do(hospital) as episode:
        wrong = checks_of_done_requests(episode)
        step = play(episode, only_reads)
        assert len(wrong) == 1 and failed(step) == wrong
        assert step.reward == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ["", "/Observation", "/DocumentReference"])
def test_nothing_to_do_needs_lookups_of_results_and_of_policies(hospital: World, left_out: str) -> None:
    with with_nothing_to_do(hospital) as episode:
        requests = requests_of(episode)
        place = [one.outcome for one in requests].index(NOTHING_TO_DO)
        request, (check,) = requests[place], names_of_checks(number == place for number in range(len(requests)))
        department = scene_of(episode).department(request.ask.department).id
        results = Get(f"/Observation?encounter.service-provider=Organization/{department}&_count=500")
        for action in (results, Get("/DocumentReference?type=policy&_count=500")):
            if not left_out or not action.url.startswith(left_out):
                episode.step(action)
        step = episode.step(Finish([f"A: {NOTHING_TO_DO}", f"B: {NOTHING_TO_DO}"]))
        assert (check in failed(step)) is bool(left_out)


MISTAKES: dict[str, Callable[[Action], list[Action]]] = {
    "another status": partial(edited, "Task", lambda one: one.update(status="draft")),
    "another intent": partial(edited, "Task", lambda one: one.update(intent="plan")),
    "another priority": partial(edited, "Task", lambda one: one.update(priority="routine")),
    "another code": partial(edited, "Task", lambda one: one.update(code={"text": "critical-result"})),
    "no patient": partial(edited, "Task", lambda one: one.pop("for")),
    "no owner": partial(edited, "Task", lambda one: one.pop("owner")),
    "no focus": partial(edited, "Task", lambda one: one.pop("focus")),
    "another day": partial(
        edited, "Task", lambda one: one.update(restriction={"period": {"end": "2030-01-01T00:00:00Z"}})
    ),
    "a start": partial(edited, "Task", lambda one: one["restriction"]["period"].update(start="2023-01-01")),
    "another encounter": partial(edited, "Task", lambda one: one.update(encounter={"reference": "Encounter/other"})),
    "done already": partial(edited, "Task", lambda one: one.update(executionPeriod={"end": "2023-11-13"})),
    "no Task": lambda one: [Get("/metadata")] if one.kind == "POST" else [one],
    "two Tasks": lambda one: [one, one] if one.kind == "POST" else [one],
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_the_requests_that_it_touches(hospital: World, mistake: str) -> None:
    with with_nothing_to_do(hospital) as episode:
        step = play(episode, MISTAKES[mistake])
        assert [one for one in failed(step) if one.startswith("request")] == checks_of_done_requests(episode)
        assert step.reward <= 0.5


def test_the_score_is_the_share_of_results_right_minus_the_share_of_wrong_tasks(hospital: World) -> None:
    with one_department(hospital) as episode:
        due, scene = due_of(episode), scene_of(episode)
        posted: list[Action] = []

        def change(action: Action) -> list[Action]:
            """Leave out the first Task, and create one for a result that needs none."""
            if action.kind != "POST":
                return [action]
            posted.append(action)
            if len(posted) > 1:
                return [action]
            department = scene.department(requests_of(episode)[0].ask.department)
            other = next(one.id for one in scene.results_of[department.id] if one.id not in due)
            return [Post("/Task", {"resourceType": "Task", "focus": {"reference": f"Observation/{other}"}})]

        step = play(episode, change)
        assert len(posted) == len(due)
        assert step.reward == pytest.approx((len(due) - 2) / len(due))
        assert failed(step) == ["request A"]


@pytest.mark.slow
def test_existing_tasks_stay_as_they_are(hospital: World) -> None:
    with one_department(hospital) as episode:
        scene = scene_of(episode)
        department = scene.department(requests_of(episode)[0].ask.department)
        results = {one.id for one in scene.results_of[department.id]}
        focused = (one for one in scene.tasks if target_id(one["focus"]) in results)
        old = next(one["id"] for one in focused if one["status"] == "cancelled")

        def reopened(action: Action) -> list[Action]:
            patch = [Put(f"/Task/{old}", {"resourceType": "Task", "id": old, "status": "requested"})]
            return [*patch, action] if action.kind == "FINISH" else [action]

        assert failed(play(episode, reopened)) == ["request A"]


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solver_that_knows_only_the_prompt_succeeds(hospital: World, solver: Solver) -> None:
    assert solved(hospital, "P4-1", 2, solver) == []


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solver_that_knows_only_the_prompt_succeeds_in_other_variations(hospital: World, solver: Solver) -> None:
    assert solved(hospital, "P4-2", 4, solver) == solved(hospital, "P4-2", 1_001, solver) == []


def solved(world: World, key: str, variation: int, solver: Solver) -> list[str]:
    with Episode("FHIRAgent/Shift-v0", task=key, variation=variation, phrasing=variation % 3, world=world) as episode:
        return failed(solve(episode, solver))


@pytest.mark.slow
@pytest.mark.parametrize("flaw", FLAWS)
def test_a_solver_with_a_flaw_fails(hospital: World, flaw: str) -> None:
    with opened(hospital, "P4-1", 2) as episode:
        step = solve(episode, lambda prompt: plan_and_write_at_once(prompt, flaw))
        assert failed(step) and step.reward < 1 and not step.info["success"]


@pytest.mark.slow
def test_transactions_are_right_too(hospital: World) -> None:
    with opened(hospital, "P4-2", 1) as episode:
        assert play(episode, in_transactions).reward == 1


@pytest.mark.slow
@pytest.mark.parametrize("odd", [{"focus": []}, {"restriction": [], "code": "x"}, {"restriction": {"period": "soon"}}])
def test_odd_tasks_are_judged(hospital: World, odd: dict[str, Json]) -> None:
    with one_department(hospital) as episode:
        for id in due_of(episode):
            focus = {"reference": f"Observation/{id}"}
            episode.step(Post("/Task", {"resourceType": "Task", "focus": focus, **odd}))
        step = episode.step(Finish(["A: done", "A: done", 7, None]))
        assert step.reward == 0 and "request A" in failed(step)
