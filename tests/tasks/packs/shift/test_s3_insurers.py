from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import pytest

from fhir_gym import Episode, Step
from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO, letters
from fhir_gym.tasks.packs.shift.s3_insurers.rules import Ending, InsurerRequest
from fhir_gym.types import Resource
from tests.tasks.packs.shift.insurer_solver import EndingHabits, end_contracts
from tests.tasks.packs.shift.playing import (
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
from tests.tasks.packs.shift.solvers import solve

SLOW = pytest.mark.slow
ALL_TYPES = 1
"""A variation of level 1 whose first request changes records of all types."""


def requests_of(episode: Episode) -> tuple[InsurerRequest, ...]:
    return params_of(episode).requests


def ending_of(episode: Episode, number: int) -> Ending:
    """Return what a request changes at the start of the episode."""
    scene, request = params_of(episode).scene, requests_of(episode)[number]
    return Ending(scene.records, request.place, request.insurer, request.ask.last_day)


def checks_where(episode: Episode, condition: Callable[[Ending], bool]) -> list[str]:
    """Return the names of the checks of the requests whose changes satisfy a condition."""
    count = len(requests_of(episode))
    return [f"request {one}" for number, one in enumerate(letters(count)) if condition(ending_of(episode, number))]


@pytest.mark.parametrize(("key", "variation"), [("S3-1", 0), pytest.param("S3-2", 1_000, marks=SLOW)])
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


def played(world: World, key: str, variation: int, habits: EndingHabits) -> Step:
    with Episode(
        "FHIRAgent/Shift-v0", task=key, variation=variation, phrasing=variation % 3, world=world, reward="dense"
    ) as episode:
        return solve(episode, lambda prompt: end_contracts(prompt, habits))


@pytest.mark.parametrize(("key", "variation"), [("S3-1", 2), *(pytest.param("S3-2", n, marks=SLOW) for n in (3, 4))])
def test_a_solver_that_knows_only_the_prompt_succeeds(hospital: World, key: str, variation: int) -> None:
    step = played(hospital, key, variation, EndingHabits())
    assert (failed(step), step.reward) == ([], 1)


@SLOW
@pytest.mark.parametrize("habit", [one.name for one in fields(EndingHabits)])
def test_a_solver_with_a_bad_habit_fails(hospital: World, habit: str) -> None:
    step = played(hospital, "S3-2", 4, EndingHabits(**{habit: True}))
    assert failed(step) and not step.info["success"]
    assert step.reward < 1


def test_lookups_without_writes_earn_the_requests_with_nothing_to_do(hospital: World) -> None:
    with opened_where(hospital, "S3-1", has_outcomes(DONE, NOTHING_TO_DO)) as episode:
        step = play(episode, only_reads)
        assert failed(step) == checks_where(episode, lambda one: bool(one.contracts))
        assert step.reward == pytest.approx(1 / 2)


MISTAKES: dict[str, tuple[str, Callable[[Resource], Any]]] = {
    "contract inactive": ("OrganizationAffiliation", lambda one: one.update(active=False)),
    "contract without end": ("OrganizationAffiliation", lambda one: one["period"].pop("end")),
    "another last day": ("Coverage", lambda one: one["period"].update(end="2040-01-01")),
    "coverage in error": ("Coverage", lambda one: one.update(status="entered-in-error")),
    "no payor": ("Coverage", lambda one: one.pop("payor")),
    "account inactive": ("Account", lambda one: one.update(status="inactive")),
    "account of nothing": ("Account", lambda one: one.pop("coverage")),
    "draft": ("Task", lambda one: one.update(status="draft")),
    "plan": ("Task", lambda one: one.update(intent="plan")),
    "another text": ("Task", lambda one: one.update(code={"text": "Call back"})),
    "no focus": ("Task", lambda one: one.pop("focus")),
    "for nobody": ("Task", lambda one: one.update({"for": {"display": "the patient"}})),
    "with an owner": ("Task", lambda one: one.update(owner={"display": "the desk"})),
    "urgent": ("Task", lambda one: one.update(priority="stat")),
    "not to be done": ("Task", lambda one: one.update(description="Do not do this; entered in error.")),
}


@pytest.mark.parametrize("mistake", [one if one == "no focus" else pytest.param(one, marks=SLOW) for one in MISTAKES])
def test_a_mistake_fails_the_requests_that_it_touches(hospital: World, mistake: str) -> None:
    resource_type, edit = MISTAKES[mistake]
    with opened(hospital, "S3-1", ALL_TYPES) as episode:
        step = play(episode, partial(edited, resource_type, edit))
        touched = checks_where(
            episode,
            lambda one: bool(one.tasks if resource_type == "Task" else resource_type in str(one.changes.keys())),
        )
        surplus = ["nothing else changed"] if mistake == "for nobody" else []
        assert touched and failed(step) == [*touched, *surplus]
        assert step.reward < 1


def test_the_score_is_the_share_of_records(hospital: World) -> None:
    with opened(hospital, "S3-1", ALL_TYPES) as episode:
        ending = ending_of(episode, 0)
        count = len(ending.changes) + len(ending.tasks)
        skipped: list[str] = []

        def skip_one(action: Action) -> list[Action]:
            if action.kind == "POST" and not skipped:
                skipped.append(action.url)
                return [Get("/metadata")]
            return [action]

        assert len(requests_of(episode)) == 1
        assert play(episode, skip_one).reward == pytest.approx((count - 1) / count)


@SLOW
def test_a_task_too_many_costs_a_share(hospital: World) -> None:
    with opened(hospital, "S3-1", ALL_TYPES) as episode:
        ending = ending_of(episode, 0)
        count = len(ending.changes) + len(ending.tasks)
        step = play(episode, lambda one: [one, one] if one.kind == "POST" else [one])
        assert failed(step) == ["request A"]
        assert step.reward == pytest.approx(1 - len(ending.tasks) / count)


@SLOW
def test_the_order_of_the_writes_does_not_matter(hospital: World) -> None:
    with opened(hospital, "S3-1", ALL_TYPES) as episode:
        assert play(episode, in_transactions).reward == 1
        writes: list[Action] = []

        def later(action: Action) -> list[Action]:
            if action.kind in ("PUT", "POST"):
                writes.append(action)
                return [Get("/metadata")]
            return [*reversed(writes), action] if action.kind == "FINISH" else [action]

        episode.start()
        assert play(episode, later).reward == 1


ODD: dict[str, tuple[Resource, ...]] = {
    "Coverage": ({"period": "x", "beneficiary": [3], "payor": "x"}, {"period": {"end": 3}, "payor": [None]}),
    "Account": ({"subject": "x", "coverage": [None]}, {"subject": [3], "coverage": {"coverage": "x"}}),
    "OrganizationAffiliation": ({"active": "yes", "period": 3}, {"organization": [1], "active": True}),
    "Patient": ({"managingOrganization": "x"}, {"managingOrganization": {"reference": 3}}),
}


@pytest.mark.parametrize("resource_type", [one if one == "Coverage" else pytest.param(one, marks=SLOW) for one in ODD])
def test_odd_records_are_judged(hospital: World, resource_type: str) -> None:
    with opened(hospital, "S3-1", ALL_TYPES) as episode:
        ending = ending_of(episode, 0)
        patient = next(iter(ending.tasks))
        for code in ("x", {"text": ["x"]}, None):
            episode.step(Post("/Task", {"resourceType": "Task", "code": code, "for": {"reference": patient}}))
        records = [one for one in params_of(episode).scene.records if one["resourceType"] == resource_type]
        mine = [one for one in records if f"{resource_type}/{one['id']}" in ending.changes] or records
        for place, odd in enumerate(ODD[resource_type]):
            id = mine[place % len(mine)]["id"]
            episode.step(Put(f"/{resource_type}/{id}", {"resourceType": resource_type, "id": id, **odd}))
        step = episode.step(Finish(["A. done", 3]))
        assert step.done and step.reward == 0
