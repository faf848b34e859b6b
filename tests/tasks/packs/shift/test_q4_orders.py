from __future__ import annotations

from collections.abc import Callable
from functools import partial
from zlib import crc32

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Action, Delete, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import DONE, letters
from fhir_gym.tasks.packs.shift.q4_orders.rules import OrderRequest
from fhir_gym.tasks.packs.shift.static_task import ShiftParams
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.order_solver import FLAWS, Solver
from tests.tasks.packs.shift.playing import (
    ENV,
    checks_of_done_requests,
    edited,
    failed,
    in_transactions,
    only_reads,
    opened,
    opened_where,
    params_of,
    play,
)
from tests.tasks.packs.shift.rule_variations import dependent_checks


def requests_of(episode: Episode) -> tuple[OrderRequest, ...]:
    return params_of(episode).requests


def checks_of_orders(episode: Episode, resource_type: str) -> list[str]:
    """Return the names of the checks of the requests that lead to an order of a type."""
    params = params_of(episode)
    types = [params.scene.formulary.named(one.ask.item).resource_type for one in requests_of(episode)]
    checks = (f"request {one}" for one in letters(len(types)))
    return [one for one, name in zip(checks, types, strict=True) if name == resource_type]


@pytest.mark.parametrize("variation", [0, 1_000])
@pytest.mark.parametrize("key", ["Q4-1", "Q4-2"])
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


@pytest.mark.slow
def test_the_reference_solution_stays_within_the_step_limit(hospital: World) -> None:
    for key, fewest in (("Q4-1", 8), ("Q4-2", 25)):
        steps = []
        for variation in range(5):
            with opened(hospital, key, variation) as episode:
                step = play(episode)
                assert step.reward == 1, (key, variation, failed(step))
                steps.append(step.info["step"])
        assert sum(steps) / len(steps) >= fewest


def test_lookups_without_writes_earn_the_declined_requests(hospital: World) -> None:
    with opened(hospital, "Q4-1", 1) as episode:
        wrong = {*checks_of_done_requests(episode), *dependent_checks(episode)}
        step = play(episode, only_reads)
        assert {*failed(step)} == wrong


def set_dose(order: Resource, **changes: Json) -> None:
    order["dosageInstruction"][0]["doseAndRate"][0]["doseQuantity"].update(changes)


DRUG, TEST = "MedicationRequest", "ServiceRequest"
MISTAKES: dict[str, tuple[str, Callable[[Resource], object]]] = {
    "a draft": (DRUG, lambda one: one.update(status="draft")),
    "a plan": (TEST, lambda one: one.update(intent="plan")),
    "dated last year": (DRUG, lambda one: one.update(authoredOn="2022-01-01")),
    "not dated": (TEST, lambda one: one.pop("authoredOn")),
    "grams": (DRUG, lambda one: set_dose(one, unit="g")),
    "less than the dose": (DRUG, lambda one: set_dose(one, comparator="<")),
    "another dose": (DRUG, lambda one: set_dose(one, value=7.5)),
    "another drug in words": (DRUG, lambda one: one["medicationCodeableConcept"].update(text="Paclitaxel")),
    "no dose": (DRUG, lambda one: one.pop("dosageInstruction")),
    "a timing": (DRUG, lambda one: one["dosageInstruction"][0].update(timing={"code": {"text": "twice a day"}})),
    "two doses": (DRUG, lambda one: one["dosageInstruction"].extend(one["dosageInstruction"])),
    "not to be done": (TEST, lambda one: one.update(doNotPerform=True)),
    "another code too": (TEST, lambda one: one["code"]["coding"].append({"system": "urn:x", "code": "1"})),
    "another system": (DRUG, lambda one: one["medicationCodeableConcept"]["coding"][0].update(system="urn:x")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_the_requests_that_it_touches(hospital: World, mistake: str) -> None:
    kind, edit = MISTAKES[mistake]

    def orders_both(params: ShiftParams) -> bool:
        items = [params.scene.formulary.named(one.ask.item) for one in params.requests if one.outcome == DONE]
        return {item.resource_type for item in items} == {DRUG, TEST}

    with opened_where(hospital, "Q4-1", orders_both) as episode:
        dependent = dependent_checks(episode)
        step = play(episode, partial(edited, kind, edit))
        orders = checks_of_orders(episode, kind)
        touched = {one for one in checks_of_done_requests(episode) if one in orders}
        assert touched and touched <= {*failed(step)} <= touched | dependent
        assert step.reward < 1


def test_an_order_for_another_patient_fails_its_request(hospital: World) -> None:
    with opened(hospital, "Q4-1", 4) as episode:
        asked = {id for one in requests_of(episode) for id in one.patients}
        other = next(one.id for one in params_of(episode).scene.people if one.id not in asked)
        subject = {"reference": f"Patient/{other}"}
        step = play(episode, partial(edited, DRUG, lambda one: one.update(subject=subject)))
        assert "nothing else changed" in failed(step) and step.reward < 1


def additions(action: Action) -> list[Action]:
    """Add elements that change nothing, and give a time of the day."""
    more = {"priority": "routine", "note": [{"text": "Asked by telephone."}], "requester": {"display": "Dr. Lee"}}

    def edit(order: Resource) -> None:
        order.update(more, authoredOn=f"{order['authoredOn']}T23:30:00+02:00")
        order["subject"]["display"] = "The patient"

    return [one for found in edited(DRUG, edit, action) for one in edited(TEST, edit, found)]


def with_put(action: Action) -> list[Action]:
    """Create the records by PUT with an own id."""
    if action.kind != "POST":
        return [action]
    changed: list[Resource] = []
    for kind in (DRUG, TEST):
        edited(kind, changed.append, action)
    id = f"own-{crc32((action.body or '').encode())}"
    return [Put(f"/{one['resourceType']}/{id}", {**one, "id": id}) for one in changed]


UCUM = "http://unitsofmeasure.org"


@pytest.mark.parametrize(
    "unit",
    [
        {"code": "mg"},
        {"unit": "mg", "system": UCUM},
        {"code": "mg", "system": UCUM},
        {"unit": "mg", "code": "mg", "system": UCUM},
    ],
)
def test_the_unit_of_a_dose_may_be_written_in_any_way(hospital: World, unit: Resource) -> None:
    def edit(order: Resource) -> None:
        quantity = order["dosageInstruction"][0]["doseAndRate"][0]["doseQuantity"]
        del quantity["unit"]
        quantity.update(unit)

    with opened(hospital, "Q4-1", 4) as episode:
        assert failed(play(episode, partial(edited, DRUG, edit))) == []


@pytest.mark.parametrize("other", [additions, with_put, in_transactions])
def test_other_kinds_of_writes_are_right_too(hospital: World, other: Callable[[Action], list[Action]]) -> None:
    with opened(hospital, "Q4-1", 4) as episode:
        step = play(episode, other)
        assert failed(step) == []


def test_a_wrong_order_that_is_deleted_does_no_harm(hospital: World) -> None:
    with opened(hospital, "Q4-1", 4) as episode:
        request = next(one for one in requests_of(episode) if one.outcome == DONE)
        wrong = {"resourceType": TEST, "subject": {"reference": f"Patient/{request.patients[0]}"}}
        episode.step(Put("/ServiceRequest/mine", wrong))
        episode.step(Delete("/ServiceRequest/mine"))
        checks = play(episode).info["verdict"]["checks"]
        assert all(one["passed"] for one in checks if one["name"].startswith("request"))


def solved(world: World, key: str, variation: int, flaw: str = "") -> tuple[Solver, list[str]]:
    with Episode(ENV, task=key, variation=variation, world=world, phrasing=variation % 3, reward="dense") as episode:
        solver = Solver(episode.start(), flaw)
        return solver, failed(solver.solve(episode))


@pytest.mark.parametrize(("key", "variation"), [("Q4-1", 0), ("Q4-1", 1), ("Q4-1", 2), ("Q4-2", 1)])
def test_a_solver_that_plans_everything_first_is_right(hospital: World, key: str, variation: int) -> None:
    assert solved(hospital, key, variation)[1] == []


@pytest.mark.slow
def test_each_flaw_fails_the_requests_that_it_touches(hospital: World) -> None:
    left = {*FLAWS}
    for number in range(120):
        key, variation = "Q4-2" if number % 2 else "Q4-1", 20 + number
        honest, wrong = solved(hospital, key, variation)
        assert wrong == [], (key, variation)
        for flaw in sorted(left):
            flawed = honest.with_flaw(flaw)
            if (flawed.answers, flawed.written) == (honest.answers, honest.written):
                continue
            left.remove(flaw)
            other = [a != b for a, b in zip(flawed.answers, honest.answers, strict=True)]
            expected = {f"request {one}" for one, differs in zip(letters(99), other, strict=False) if differs}
            _, wrong = solved(hospital, key, variation, flaw)
            # A request that meets the agent's own mistake is judged by what it met, so it may be right.
            assert wrong and (len(expected) > 1 or expected <= {*wrong}), (key, variation, flaw, wrong)
        if not left:
            return
    pytest.fail(f"flaws that made no difference: {left}")


ODD: tuple[Resource, ...] = (
    {"resourceType": DRUG},
    {"resourceType": DRUG, "dosageInstruction": [{"doseAndRate": [{"doseQuantity": "500 mg"}]}]},
    {"resourceType": DRUG, "dosageInstruction": "500 mg", "medicationCodeableConcept": "amoxicillin"},
    {"resourceType": TEST, "code": {"coding": "TSH"}, "authoredOn": 7, "status": ["active"]},
    {"resourceType": TEST, "code": {"coding": [{"system": ["x"], "code": {"y": 1}}], "text": 5}, "intent": None},
)


@pytest.mark.parametrize("odd", ODD)
def test_odd_orders_are_judged(hospital: World, odd: Resource) -> None:
    with opened(hospital, "Q4-1") as episode:
        patient = next(one.patients[0] for one in requests_of(episode) if one.patients)
        episode.step(Post(f"/{odd['resourceType']}", odd))
        episode.step(Post(f"/{odd['resourceType']}", {**odd, "subject": {"reference": f"Patient/{patient}"}}))
        episode.step(Get("/metadata"))
        step = episode.step(Finish(["A: done", "A: done", 7, None]))
        assert step.reward == 0 and "answer form" in failed(step)
