from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import pytest

from fhir_gym import Episode, Step
from fhir_gym.actions import Action, Finish, Get, Patch, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO, letters
from fhir_gym.tasks.packs.shift.registry import CARD
from fhir_gym.tasks.packs.shift.s2_duplicates.rules import Merge, MergeRequest
from fhir_gym.types import Resource
from tests.tasks.packs.shift.duplicate_solver import MergeHabits, merge_duplicates
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


def requests_of(episode: Episode) -> tuple[MergeRequest, ...]:
    return params_of(episode).requests


def due(episode: Episode, number: int) -> dict[str, Resource]:
    """Return the records that a request changes, as they become."""
    scene, request = params_of(episode).scene, requests_of(episode)[number]
    records = [one for one in scene.records if "birthDate" not in one or request.covers(one["birthDate"])]
    return Merge(records, request.organization, request.ask, scene.today).changes


def checks_where(episode: Episode, condition: Callable[[dict[str, Resource]], bool]) -> list[str]:
    """Return the names of the checks of the requests whose changes satisfy a condition."""
    count = len(requests_of(episode))
    return [f"request {one}" for number, one in enumerate(letters(count)) if condition(due(episode, number))]


@pytest.mark.parametrize(("key", "variation"), [("S2-1", 0), pytest.param("S2-2", 1_000, marks=SLOW)])
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


def played(world: World, key: str, variation: int, habits: MergeHabits) -> Step:
    with Episode(
        "FHIRAgent/Shift-v0", task=key, variation=variation, phrasing=variation % 3, world=world, reward="dense"
    ) as episode:
        return solve(episode, lambda prompt: merge_duplicates(prompt, habits))


@pytest.mark.parametrize(("key", "variation"), [("S2-1", 2), *(pytest.param("S2-2", n, marks=SLOW) for n in (2, 8))])
def test_a_solver_that_knows_only_the_prompt_succeeds(hospital: World, key: str, variation: int) -> None:
    step = played(hospital, key, variation, MergeHabits())
    assert (failed(step), step.reward) == ([], 1)


@pytest.mark.slow
@pytest.mark.parametrize("habit", [one.name for one in fields(MergeHabits)])
def test_a_solver_with_a_bad_habit_fails(hospital: World, habit: str) -> None:
    step = played(hospital, "S2-1", 3, MergeHabits(**{habit: True}))
    assert failed(step) and not step.info["success"]
    assert step.reward < 1


def test_lookups_without_writes_earn_the_requests_with_nothing_to_do(hospital: World) -> None:
    with opened_where(hospital, "S2-1", has_outcomes(DONE, NOTHING_TO_DO)) as episode:
        step = play(episode, only_reads)
        assert failed(step) == checks_where(episode, bool)
        assert step.reward == pytest.approx(1 / 2)


def first_cards(one: Resource) -> list[Resource]:
    return [card for card in one.get("identifier", []) if card["use"] != "secondary" or card["system"] != CARD]


MISTAKES: dict[str, tuple[str, Callable[[Resource], Any]]] = {
    "still in use": ("Patient", lambda one: one.update(active=True)),
    "no links": ("Patient", lambda one: one.update(link=[])),
    "see also": ("Patient", lambda one: [link.update(type="seealso") for link in one["link"]]),
    "a second link": ("Patient", lambda one: one["link"].append({**one["link"][-1], "type": "refer"})),
    "no address": ("Patient", lambda one: one.pop("address", None)),
    "deceased": ("Patient", lambda one: one.update(deceasedBoolean=True)),
    "another card": ("Patient", lambda one: one.setdefault("identifier", []).append({"system": CARD, "value": "A1"})),
    "no appointments": ("Appointment", lambda one: one.update(status="cancelled")),
    "nobody takes part": ("Appointment", lambda one: one.update(participant=one["participant"][-1:])),
    "diagnosis resolved": ("Condition", lambda one: one.pop("clinicalStatus")),
    "order of nobody": ("ServiceRequest", lambda one: one.update(subject={"display": "kept"})),
    "coverage cancelled": ("Coverage", lambda one: one.update(status="cancelled")),
    "subscriber by name": ("Coverage", lambda one: one.update(subscriber={"display": "kept"})),
}


@pytest.mark.parametrize("mistake", [one if one == "no links" else pytest.param(one, marks=SLOW) for one in MISTAKES])
def test_a_mistake_fails_the_requests_that_it_touches(hospital: World, mistake: str) -> None:
    resource_type, edit = MISTAKES[mistake]
    with opened(hospital, "S2-1", 0 if resource_type == "Patient" else 5) as episode:
        step = play(episode, partial(edited, resource_type, edit))
        touched = checks_where(episode, lambda due: any(one["resourceType"] == resource_type for one in due.values()))
        assert touched and failed(step) == touched
        assert step.reward < 1


@SLOW
def test_a_forgotten_card_number_fails_the_request(hospital: World) -> None:
    forget = partial(edited, "Patient", lambda one: "identifier" in one and one.update(identifier=first_cards(one)))
    touched = 0
    for variation in range(2):
        with opened(hospital, "S2-1", variation) as episode:
            step = play(episode, forget)
            wrong = checks_where(
                episode, lambda due: any(first_cards(one) != one.get("identifier", []) for one in due.values())
            )
            touched += len(wrong)
            assert failed(step) == wrong
    assert touched


@SLOW
def test_the_score_is_the_share_of_records(hospital: World) -> None:
    with opened(hospital, "S2-1", 0) as episode:
        count = len(due(episode, 0))
        skipped: list[str] = []

        def skip_one(action: Action) -> list[Action]:
            if action.kind == "PUT" and not skipped:
                skipped.append(action.url)
                return [Get(action.url)]
            return [action]

        assert len(requests_of(episode)) == 1
        assert play(episode, skip_one).reward == pytest.approx((count - 1) / count)


@SLOW
def test_a_record_that_must_stay_costs_a_share(hospital: World) -> None:
    with opened(hospital, "S2-1", 0) as episode:
        scene, request, changes = params_of(episode).scene, requests_of(episode)[0], due(episode, 0)
        other = next(
            f"Patient/{one['id']}"
            for one in scene.records
            if one.get("managingOrganization", {}).get("reference") == request.organization
            and request.covers(one["birthDate"])
            and f"Patient/{one['id']}" not in changes
        )
        patch = Patch(f"/{other}", [{"op": "add", "path": "/active", "value": "false"}])
        again = Patch(f"/{other}", [{"op": "replace", "path": "/gender", "value": "unknown"}])
        step = play(episode, lambda one: [patch, again, one] if one.kind == "FINISH" else [one])
        assert failed(step) == ["request A"]
        assert step.reward == pytest.approx(1 - 1 / len(changes))


@SLOW
def test_the_order_of_the_writes_does_not_matter(hospital: World) -> None:
    with opened(hospital, "S2-1", 0) as episode:
        assert play(episode, in_transactions).reward == 1
        writes: list[Action] = []

        def later(action: Action) -> list[Action]:
            if action.kind == "PUT":
                writes.append(action)
                return [Get("/metadata")]
            return [*reversed(writes), action] if action.kind == "FINISH" else [action]

        episode.start()
        assert len(requests_of(episode)) == 1
        assert play(episode, later).reward == 1


ODD: dict[str, tuple[Resource, ...]] = {
    "Patient": (
        {"identifier": ["x", {"use": 5}], "link": "?", "telecom": [3], "name": "x", "managingOrganization": 7},
        {"name": [{"family": 3, "given": "x"}], "birthDate": 1990, "active": "no"},
        {"identifier": {"system": CARD}, "link": [None, {"other": "x"}], "telecom": {"system": "phone"}},
    ),
    "Appointment": ({"participant": [None, {"actor": ["x"]}], "start": 3}, {"participant": "x", "status": ["booked"]}),
    "Coverage": ({"period": "x", "beneficiary": [3], "status": "active"}, {"period": {"end": 3}, "subscriber": None}),
    "Condition": ({"clinicalStatus": "active", "subject": "x"}, {"clinicalStatus": {"coding": ["active"]}}),
}


@pytest.mark.parametrize("resource_type", [one if one == "Patient" else pytest.param(one, marks=SLOW) for one in ODD])
def test_odd_records_are_judged(hospital: World, resource_type: str) -> None:
    with opened(hospital, "S2-1", 0) as episode:
        records = [one for one in params_of(episode).scene.records if one["resourceType"] == resource_type]
        for place, odd in enumerate(ODD[resource_type]):
            id = records[place]["id"]
            episode.step(Put(f"/{resource_type}/{id}", {"resourceType": resource_type, "id": id, **odd}))
        step = episode.step(Finish(["A. done", 3]))
        assert step.done and step.reward == 0
