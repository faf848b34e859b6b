from __future__ import annotations

from dataclasses import fields

import pytest

from fhir_gym import Episode
from fhir_gym.fhir import World
from tests.tasks.packs.shift.playing import failed, opened
from tests.tasks.packs.shift.solvers import Habits, Solver, one_by_one, plan_then_write, solve

KEYS = ("Q1-1", "Q1-2", "Q2-1", "Q2-2")
SOLVERS = (plan_then_write, one_by_one)


def problems_of(world: World, key: str, variation: int, solver: Solver) -> list[str]:
    with Episode(
        "FHIRAgent/Shift-v0", task=key, variation=variation, phrasing=variation % 3, world=world, reward="dense"
    ) as episode:
        step = solve(episode, solver)
        return failed(step) if step.terminated else ["truncated"]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("key", KEYS)
def test_a_solver_that_knows_only_the_prompt_succeeds(hospital: World, key: str, solver: Solver) -> None:
    assert problems_of(hospital, key, 2, solver) == []


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("key", KEYS)
def test_a_solver_that_knows_only_the_prompt_succeeds_in_other_variations(
    hospital: World, key: str, solver: Solver
) -> None:
    numbers = (3, 4, 5, 1_000, 1_001)
    assert {number: wrong for number in numbers if (wrong := problems_of(hospital, key, number, solver))} == {}


def test_a_slot_may_pass_from_one_appointment_to_another_in_one_transaction(hospital: World) -> None:
    assert problems_of(hospital, "Q2-2", 24, plan_then_write) == []


@pytest.mark.slow
@pytest.mark.parametrize("habit", [one.name for one in fields(Habits)])
def test_a_solver_with_a_bad_habit_fails(hospital: World, habit: str) -> None:
    """Not every variation has records with which each habit goes wrong."""
    habits = Habits(**{habit: True})
    wrong = []
    for variation in range(5):
        with opened(hospital, "Q1-2", variation) as episode:
            step = solve(episode, lambda prompt: plan_then_write(prompt, habits))
            assert bool(failed(step)) != step.info["success"]
            wrong += failed(step)
    assert wrong
