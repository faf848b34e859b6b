from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fhir_gym import Episode, Step
from fhir_gym.actions import Action, Finish, Post
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, NOT_ALLOWED, letters
from fhir_gym.tasks.packs.shift.p2_order_sets.rules import FORMULARY, ORDER_SETS, SETS, OrderSet
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.order_set_solver import SET_FLAWS, OrderSetSolver
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
from tests.tasks.packs.shift.policy_solver import POLICY_FLAWS
from tests.tasks.packs.shift.rule_variations import dependent_checks

DRUG, TEST = "MedicationRequest", "ServiceRequest"
VALUES = {rule.name: rule.values[0] for rule in ORDER_SETS.rules} | {"most": "400", "creatinine": "1.4"}
READING_FLAWS = POLICY_FLAWS[:6]


def played(world: World, key: str, variation: int, flaw: str = "") -> Step:
    with Episode(ENV, task=key, variation=variation, phrasing=variation % 3, world=world, reward="dense") as episode:
        return OrderSetSolver(episode.start(), flaw).solve(episode)


@pytest.mark.parametrize(
    ("kg", "creatinine", "dose", "settled"),
    [
        (61.6, 1, 305, True),
        (62.5, 1, 310, True),
        (61, 1.6, 150, True),
        (100, 1, 400, True),
        (60.95, 1, 300, False),
        (61, 1.405, 150, False),
    ],
)
def test_doses_follow_the_policies(kg: float, creatinine: float, dose: int, settled: bool) -> None:
    order_set = OrderSet.of(VALUES, SETS[0])
    assert order_set.dose(kg, creatinine) == dose
    assert order_set.settled_dose(kg, creatinine) == (dose if settled else None)


def test_all_values_of_the_policies_make_order_sets() -> None:
    for number in range(max(len(rule.values) for rule in ORDER_SETS.rules)):
        values = {rule.name: rule.values[number % len(rule.values)] for rule in ORDER_SETS.rules}
        for name in SETS:
            found = OrderSet.of(values, name)
            items = [FORMULARY.named(one) for one in (found.drug, found.substitute, *found.tests)]
            assert [bool(one.group) for one in items] == [True, True, False, False]
            assert items[0].group != items[1].group and items[2] != items[3]
            assert {*found.not_in_pregnancy} <= {one.group for one in FORMULARY.drugs}


@pytest.mark.parametrize(("key", "variation"), [("P2-1", 0), ("P2-2", 1_000)])
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


def test_a_solver_that_knows_only_the_prompt_succeeds(hospital: World) -> None:
    assert failed(played(hospital, "P2-1", 1)) == []


@pytest.mark.slow
def test_a_solver_that_knows_only_the_prompt_succeeds_in_other_variations(hospital: World) -> None:
    cases = [("P2-1", 2), ("P2-1", 1_001), ("P2-2", 2), ("P2-2", 1_001)]
    assert {case: wrong for case in cases if (wrong := failed(played(hospital, *case)))} == {}


def test_lookups_without_writes_earn_the_declined_requests(hospital: World) -> None:
    with opened(hospital, "P2-1", 0) as episode:
        wrong = {*checks_of_done_requests(episode), *dependent_checks(episode)}
        assert {*failed(play(episode, only_reads))} == wrong


def set_dose(order: Resource, **changes: Json) -> None:
    order["dosageInstruction"][0]["doseAndRate"][0]["doseQuantity"].update(changes)


def dropped(resource_type: str, action: Action) -> list[Action]:
    """Leave out the orders of a type."""
    return only_reads(action) if action.url == f"/{resource_type}" else [action]


def doubled(action: Action) -> list[Action]:
    return [action, action] if action.kind == "POST" else [action]


MISTAKES: dict[str, Callable[[Action], list[Action]]] = {
    "another dose": partial(edited, DRUG, lambda one: set_dose(one, value=5)),
    "a plan": partial(edited, DRUG, lambda one: one.update(intent="plan")),
    "dated last year": partial(edited, DRUG, lambda one: one.update(authoredOn="2022-01-01")),
    "no drug": partial(dropped, DRUG),
    "twice": doubled,
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_the_requests_that_it_touches(hospital: World, mistake: str) -> None:
    with opened(hospital, "P2-1") as episode:
        step = play(episode, MISTAKES[mistake])
        assert failed(step) == checks_of_done_requests(episode)
        assert step.reward < 1


@pytest.mark.slow
def test_orders_in_transactions_are_right(hospital: World) -> None:
    with opened(hospital, "P2-1") as episode:
        assert play(episode, in_transactions).reward == 1


@pytest.mark.slow
def test_a_guess_without_the_policies_is_worth_nothing(hospital: World) -> None:
    with opened(hospital, "P2-2", 1) as episode:
        actions: list[Action] = []

        def noted(action: Action) -> list[Action]:
            actions.append(action)
            return [action]

        play(episode, noted)
        requests = params_of(episode).requests
        named = zip(letters(len(requests)), requests, strict=True)
        wrong = [f"request {letter}" for letter, one in named if one.outcome in (ALREADY_DONE, NOT_ALLOWED)]
        episode.start()
        for one in actions:
            if "DocumentReference" not in one.url:
                step = episode.step(one)
        assert wrong and failed(step) == wrong


@pytest.mark.slow
@pytest.mark.parametrize("flaw", [*READING_FLAWS, *SET_FLAWS])
def test_a_solver_with_a_flaw_fails(hospital: World, flaw: str) -> None:
    # Not every flaw matters in every variation.
    assert any(failed(played(hospital, "P2-2", variation, flaw)) for variation in range(16))


def test_odd_orders_are_judged(hospital: World) -> None:
    with opened(hospital, "P2-1", 0) as episode:
        patient = next(one.patients[0] for one in params_of(episode).requests if one.patients)
        who = {"reference": f"Patient/{patient}"}
        episode.step(Post(f"/{DRUG}", {"resourceType": DRUG, "subject": who, "dosageInstruction": [{}]}))
        episode.step(Post(f"/{TEST}", {"resourceType": TEST, "subject": who, "code": {"coding": [{}]}}))
        step = episode.step(Finish(["A: done", None]))
        assert step.reward == 0 and not step.info["success"]
