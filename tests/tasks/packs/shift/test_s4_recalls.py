from __future__ import annotations

from collections.abc import Callable
from functools import partial
from zlib import crc32

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Action, Delete, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO, letters
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.playing import (
    ENV,
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
from tests.tasks.packs.shift.recall_solver import FLAWS, Solver

ORDER = "ServiceRequest"


@pytest.mark.parametrize(
    ("key", "variation"),
    [("S4-1", 4), pytest.param("S4-1", 1_000, marks=pytest.mark.slow), pytest.param("S4-2", 0, marks=pytest.mark.slow)],
)
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


@pytest.mark.slow
def test_the_reference_solution_stays_within_the_step_limit(hospital: World) -> None:
    for key, fewest in (("S4-1", 8), ("S4-2", 25)):
        steps = []
        for variation in range(2):
            with opened(hospital, key, variation) as episode:
                step = play(episode)
                assert step.reward == 1, (key, variation, failed(step))
                steps.append(step.info["step"])
        assert sum(steps) / len(steps) >= fewest


def one_sweep(world: World) -> Episode:
    return opened_where(world, "S4-1", has_outcomes(DONE))


def test_lookups_without_writes_earn_only_the_sweeps_that_find_nobody(hospital: World) -> None:
    with opened_where(hospital, "S4-1", has_outcomes(DONE, NOTHING_TO_DO)) as episode:
        wrong = checks_of_done_requests(episode)
        step = play(episode, only_reads)
        assert failed(step) == wrong
        assert step.reward == pytest.approx(0.5)


def on_each(edit: Callable[[Resource], object], action: Action) -> list[Action]:
    return edited(ORDER, edit, action)


MISTAKES: dict[str, Callable[[Resource], object]] = {
    "a draft": lambda one: one.update(status="draft"),
    "a plan": lambda one: one.update(intent="plan"),
    "another priority": lambda one: one.update(priority="stat"),
    "urgent and routine the other way round": lambda one: one.update(
        priority="routine" if one["priority"] == "urgent" else "urgent"
    ),
    "no priority": lambda one: one.pop("priority"),
    "dated last year": lambda one: one.update(authoredOn="2022-01-01"),
    "not dated": lambda one: one.pop("authoredOn"),
    "no reason": lambda one: one.pop("reasonCode"),
    "another reason": lambda one: one["reasonCode"][0]["coding"][0].update(code="195967001"),
    "a reason in words": lambda one: one.update(reasonCode=[{"text": "recall"}]),
    "two reasons": lambda one: one["reasonCode"].append({"coding": [{"system": "urn:x", "code": "1"}]}),
    "another system": lambda one: one["code"]["coding"][0].update(system="urn:x"),
    "another code too": lambda one: one["code"]["coding"].append({"system": "urn:x", "code": "1"}),
    "another test in words": lambda one: one["code"].update(
        text="glucose, HbA1c, creatinine, cholesterol, triglycerides"
    ),
}


BATCHES = [[*MISTAKES][first : first + 2] for first in range(0, len(MISTAKES), 2)]


@pytest.mark.slow
@pytest.mark.parametrize("batch", BATCHES)
def test_each_mistake_fails_the_patient_that_it_touches(hospital: World, batch: list[str]) -> None:
    left, writes = [*batch], 0

    def with_mistakes(action: Action) -> list[Action]:
        nonlocal writes
        writes += action.kind == "POST"
        return on_each(MISTAKES[left.pop()], action) if action.kind == "POST" and left else [action]

    with one_sweep(hospital) as episode:
        step = play(episode, with_mistakes)
        assert not left and failed(step) == ["request A"]
        assert step.reward == max(0, 1 - 2 * len(batch) / writes)


@pytest.mark.slow
def test_an_element_that_reverses_the_meaning_fails_the_sweep(hospital: World) -> None:
    with one_sweep(hospital) as episode:
        step = play(episode, partial(on_each, lambda one: one.update(doNotPerform=True)))
        assert failed(step) == ["request A"] and step.reward == 0


class FirstWrite:
    """Replace the first write of the reference solution."""

    def __init__(self, change: Callable[[Action], list[Action]]) -> None:
        self._change = change
        self.sent = 0

    def __call__(self, action: Action) -> list[Action]:
        if action.kind != "POST":
            return [action]
        self.sent += 1
        return self._change(action) if self.sent == 1 else [action]


@pytest.mark.parametrize(
    ("change", "cost"),
    [
        (lambda action: [Get("/metadata")], 1),
        (lambda action: [action, action], 2),
        (partial(on_each, lambda one: one.update(status="draft")), 2),
    ],
)
def test_a_sweep_is_scored_by_record(hospital: World, change: Callable[[Action], list[Action]], cost: int) -> None:
    with one_sweep(hospital) as episode:
        first = FirstWrite(change)
        step = play(episode, first)
        assert failed(step) == ["request A"]
        assert step.reward == pytest.approx(1 - cost / first.sent)


def test_a_recall_of_somebody_else_is_a_harm(hospital: World) -> None:
    with one_sweep(hospital) as episode:
        place = f"Organization/{params_of(episode).scene.place}"
        people = params_of(episode).scene.patients
        other = next(one["id"] for one in people if one["managingOrganization"]["reference"] != place)
        subject = {"reference": f"Patient/{other}"}
        first = FirstWrite(partial(on_each, lambda one: one.update(subject=subject)))
        step = play(episode, first)
        assert failed(step) == ["request A"] and step.reward == pytest.approx(1 - 2 / first.sent)


def test_a_change_of_an_existing_record_is_seen(hospital: World) -> None:
    with one_sweep(hospital) as episode:
        condition = next(one for one in params_of(episode).scene.records if one["resourceType"] == "Condition")
        episode.step(Put(f"/Condition/{condition['id']}", {**condition, "recordedDate": "2020-01-01"}))
        assert "nothing else changed" in failed(play(episode))


def additions(action: Action) -> list[Action]:
    """Add elements that change nothing, and give a time of the day."""

    def edit(order: Resource) -> None:
        order.update(note=[{"text": "Sent a letter."}], requester={"display": "Dr. Lee"})
        order.update(authoredOn=f"{order['authoredOn']}T23:30:00+02:00")
        order["subject"]["display"] = "The patient"

    return on_each(edit, action)


def with_put(action: Action) -> list[Action]:
    """Create the records by PUT with an own id."""
    if action.kind != "POST":
        return [action]
    changed: list[Resource] = []
    on_each(changed.append, action)
    id = f"own-{crc32((action.body or '').encode())}"
    return [Put(f"/{ORDER}/{id}", {**one, "id": id}) for one in changed]


@pytest.mark.slow
@pytest.mark.parametrize("other", [additions, with_put, in_transactions])
def test_other_kinds_of_writes_are_right_too(hospital: World, other: Callable[[Action], list[Action]]) -> None:
    with opened(hospital, "S4-1", 1) as episode:
        assert failed(play(episode, other)) == []


@pytest.mark.slow
def test_a_wrong_order_that_is_deleted_does_no_harm(hospital: World) -> None:
    with opened(hospital, "S4-1", 1) as episode:
        patient = params_of(episode).scene.patients[0]["id"]
        episode.step(Put(f"/{ORDER}/mine", {"resourceType": ORDER, "subject": {"reference": f"Patient/{patient}"}}))
        episode.step(Delete(f"/{ORDER}/mine"))
        checks = play(episode).info["verdict"]["checks"]
        assert all(one["passed"] for one in checks if one["name"].startswith("request"))


def solved(world: World, key: str, variation: int, flaw: str = "") -> tuple[Solver, list[str]]:
    with Episode(ENV, task=key, variation=variation, world=world, phrasing=variation % 3, reward="dense") as episode:
        solver = Solver(episode.start(), flaw)
        return solver, failed(solver.solve(episode))


@pytest.mark.parametrize(
    ("key", "variation"), [("S4-1", 1), ("S4-1", 4), pytest.param("S4-2", 0, marks=pytest.mark.slow)]
)
def test_a_solver_that_plans_everything_first_is_right(hospital: World, key: str, variation: int) -> None:
    assert solved(hospital, key, variation)[1] == []


@pytest.mark.slow
def test_flaws_fail_the_requests_that_they_touch(hospital: World) -> None:
    for variation in (20, 21):
        honest, wrong = solved(hospital, "S4-1", variation)
        assert wrong == []
        plans = ((flaw, honest.with_flaw(flaw)) for flaw in FLAWS)
        flaws = [flaw for flaw, one in plans if (one.answers, one.written) != (honest.answers, honest.written)]
        assert flaws
        for flaw in flaws:
            assert solved(hospital, "S4-1", variation, flaw)[1], (variation, flaw)


def test_a_sweep_that_finds_nobody_needs_lookups(hospital: World) -> None:
    with opened_where(hospital, "S4-1", has_outcomes(DONE, NOTHING_TO_DO)) as episode:
        outcomes = [one.outcome for one in params_of(episode).requests]
        without = play(episode, lambda one: [Get("/metadata")] if "/Consent" in one.url or "/Obs" in one.url else [one])
        assert f"request {letters(9)[outcomes.index(NOTHING_TO_DO)]}" in failed(without)


@pytest.mark.slow
@pytest.mark.parametrize(("flaw", "right"), [("last request first", True), ("last request first, twice", False)])
def test_a_patient_of_two_sweeps_is_recalled_once(hospital: World, flaw: str, right: bool) -> None:
    assert (solved(hospital, "S4-1", 0, flaw)[1] == []) is right


ODD: tuple[Resource, ...] = (
    {"resourceType": ORDER},
    {"resourceType": ORDER, "code": {"coding": "TSH"}, "authoredOn": 7, "status": ["active"], "priority": {}},
    {"resourceType": ORDER, "code": {"coding": [{"system": ["x"], "code": {"y": 1}}], "text": 5}, "intent": None},
    {"resourceType": ORDER, "code": "TSH", "reasonCode": [{"coding": [7, {"code": ["44054006"]}]}, "gout"]},
)
ODD_STATES: dict[str, Resource] = {
    "Patient": {"managingOrganization": {"display": "x"}, "deceasedDateTime": "2020"},
    "Condition": {"clinicalStatus": "active", "code": {"coding": [{"code": {}}]}},
    "Observation": {"performer": "x", "valueQuantity": "7 %", "effectiveDateTime": 9},
    "Consent": {"provision": ["deny"], "dateTime": {}},
    "Appointment": {"start": [], "participant": "x"},
}


def test_odd_records_are_judged(hospital: World) -> None:
    with one_sweep(hospital) as episode:
        scene = params_of(episode).scene
        for odd in ODD:
            episode.step(Post(f"/{ORDER}", odd))
            episode.step(Post(f"/{ORDER}", {**odd, "subject": {"reference": f"Patient/{scene.patients[0]['id']}"}}))
        first = {one["resourceType"]: one for one in reversed((*scene.patients, *scene.records))}
        for kind, odd in ODD_STATES.items():
            episode.step(Put(f"/{kind}/{first[kind]['id']}", {**first[kind], **odd}))
        told: list[Json] = ["A: done", "A: done", 7, None]
        step = episode.step(Finish(told))
        assert step.reward == 0 and "answer form" in failed(step)
