"""Generated sets of cases are balanced, distinct and deterministic."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fhir_gym.errors import TaskError
from fhir_gym.tasks.core.dates import instant
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, ReasoningCase, Scenario
from fhir_gym.tasks.packs.action_reasoning.derivation import derive_truth, solution
from fhir_gym.tasks.packs.action_reasoning.file_task import write_cases
from fhir_gym.tasks.packs.action_reasoning.generation import SCENARIOS, build_case, generate, reworded, vary
from fhir_gym.tasks.packs.action_reasoning.mining import candidates
from fhir_gym.tasks.packs.action_reasoning.phrasing import PROMPTS
from fhir_gym.tasks.packs.action_reasoning.ranges import CATEGORIES, LABS
from fhir_gym.tasks.packs.action_reasoning.series import lab_chart

from .records import ago, result, world_of

if TYPE_CHECKING:
    from fhir_gym.fhir import World


RIVALS: tuple[Scenario, ...] = ("sparse", "cluster")


def plan_of(case: ReasoningCase) -> CaseSpec:
    assert case.plan is not None
    return case.plan


@pytest.fixture(scope="module")
def cases(mini: World) -> tuple[ReasoningCase, ...]:
    return generate(mini)


def of(cases: tuple[ReasoningCase, ...], family: str) -> list[ReasoningCase]:
    return [case for case in cases if plan_of(case).family == family]


def test_two_hundred_of_each_kind_over_all_labs(cases: tuple[ReasoningCase, ...]) -> None:
    assert len(cases) == len({case.id for case in cases}) == 600
    for family in SCENARIOS:
        some = of(cases, family)
        labs = Counter(plan_of(case).lab for case in some)
        assert len(some) == 200
        assert set(labs) == ({"GLU", "K", "NA"} if family == "aggregation" else set(LABS))
        assert max(labs.values()) - min(labs.values()) <= 12
        sexes = Counter(case.ground_truth.patient_gender for case in some)
        assert min(sexes["female"], sexes["male"]) >= 70
        assert len({case.eval_MRN for case in some}) >= 50


def test_no_case_is_repeated(cases: tuple[ReasoningCase, ...]) -> None:
    plans = [(case.eval_MRN, plan_of(case)) for case in cases]
    asked = [(mrn, p.family, p.lab, p.as_of, p.window_hours) for mrn, p in plans]
    assert len(set(asked)) == len(asked)


def test_a_find_of_two_scenarios_is_used_once() -> None:
    """A record with only two results, taken within an hour, fits two scenarios: sparse record and cluster."""
    results = [result(f"R{n}", ago(hours=n, minutes=7), 4 + n / 10) for n in (1, 2)]
    results += [result(f"G{n}", ago(hours=n, minutes=7), 90 + n, lab="GLU") for n in (1, 2, 3)]
    results.append(result("H1", ago(hours=1), 12.9, lab="HGB"))
    edge = result("N1", ago(hours=24, minutes=30), 140, lab="NA", owner="S2")
    with world_of(results, edge) as world:
        retrieved = of(generate(world, per_family=100), "retrieval")
        sparse, cluster = (
            {(candidate.patient, candidate.as_of) for candidate in candidates(world, scenario, "K")}
            for scenario in RIVALS
        )
    assert sparse & cluster
    asked = [plan_of(case).model_dump(include={"lab", "as_of", "window_hours"}) for case in retrieved]
    whole = [(case.eval_MRN, *resource.values()) for case, resource in zip(retrieved, asked, strict=True)]
    assert len(whole) == len(set(whole)) >= 4


def test_orders_and_categories_are_balanced(cases: tuple[ReasoningCase, ...]) -> None:
    some = of(cases, "conditional")
    assert sum(bool(case.ground_truth.should_order) for case in some) == 100
    categories = Counter(case.ground_truth.value_category for case in some)
    assert set(categories) == set(CATEGORIES)
    assert min(categories.values()) >= 15
    assert {plan_of(case).direction for case in some} == {"low", "high", "outside"}
    assert {plan_of(case).scenario for case in some} == {"general", "demographic"}
    wrong_side = [case for case in some if case.ground_truth.is_low and plan_of(case).direction == "high"]
    assert wrong_side and not any(case.ground_truth.should_order for case in wrong_side)


def test_critical_and_borderline_values_are_asked_about_in_every_lab_that_has_them(
    cases: tuple[ReasoningCase, ...], mini: World
) -> None:
    asked = {(plan_of(case).lab, case.ground_truth.value_category) for case in of(cases, "conditional")}
    for scenario in SCENARIOS["conditional"]:
        for lab in LABS:
            offered = Counter(find.category for find in candidates(mini, scenario, lab))
            telling = {
                category for category, count in offered.items() if count >= 4 and category and category != "normal"
            }
            assert {(lab, category) for category in telling} <= asked


def test_retrieval_asks_for_present_and_absent_results(cases: tuple[ReasoningCase, ...]) -> None:
    some = of(cases, "retrieval")
    assert Counter(plan_of(case).scenario for case in some).keys() == set(SCENARIOS["retrieval"])
    assert 20 <= sum(case.sol == (-1,) for case in some) <= 30
    assert 40 <= sum(plan_of(case).as_of == "2023-11-13T10:15:00Z" for case in some) <= 160


def test_words_vary(cases: tuple[ReasoningCase, ...]) -> None:
    for family in SCENARIOS:
        some = of(cases, family)
        assert len({plan_of(case).phrasing for case in some}) == len(PROMPTS[SCENARIOS[family][0]])
        assert len({plan_of(case).length for case in some}) == 3


def test_each_lazy_way_is_caught_by_some(cases: tuple[ReasoningCase, ...], mini: World) -> None:
    caught: Counter[tuple[str, str]] = Counter()
    for case in cases:
        p = plan_of(case)
        found = {
            (candidate.patient, instant(candidate.as_of), candidate.window_hours): candidate
            for candidate in candidates(mini, p.scenario, p.lab)
        }
        traps = found[case.eval_MRN, p.as_of, p.window_hours].pitfalls
        caught.update((p.family, trap) for trap in traps)
    assert caught["aggregation", "whole record"] >= 100
    assert caught["aggregation", "latest regardless of window"] >= 100
    assert caught["aggregation", "first page"] >= 20
    assert caught["retrieval", "latest regardless of window"] >= 8
    assert caught["conditional", "other sex"] >= 15
    assert caught["conditional", "other age"] >= 15
    for family in SCENARIOS:
        assert caught[family, "later results"] >= 40


def test_every_answer_is_that_of_its_plan(cases: tuple[ReasoningCase, ...], mini: World) -> None:
    for case in cases:
        right = derive_truth(plan_of(case), case.eval_MRN, lab_chart(mini))
        assert right.ground == case.ground_truth
        assert solution(plan_of(case), right.ground) == case.sol


def test_another_seed_gives_another_set(cases: tuple[ReasoningCase, ...], mini: World) -> None:
    other = generate(mini, seed=1, per_family=20)
    assert len(other) == 60
    assert not {(c.eval_MRN, c.instruction) for c in other} <= {(c.eval_MRN, c.instruction) for c in cases}


@pytest.mark.slow
def test_the_same_bytes_in_any_process(cases: tuple[ReasoningCase, ...], tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[4]
    program = (
        "import sys; from fhir_gym import worlds\n"
        "from fhir_gym.tasks.packs.action_reasoning.generation import generate\n"
        "from fhir_gym.tasks.packs.action_reasoning.file_task import write_cases\n"
        "write_cases(sys.argv[1], generate(worlds.load('cohort-mini')))\n"
    )
    write_cases(tmp_path / "here.json", cases)
    env = {**os.environ, "PYTHONHASHSEED": "77", "TZ": "Asia/Kathmandu", "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "there.json")], env=env, cwd=root, check=True)
    here, there = (hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("here.json", "there.json"))
    assert here == there


def test_of_a_world_without_a_scenario_the_others_are_taken(own_world: Callable[[str], World]) -> None:
    hospital = own_world("FHIRAgent/Appointment-v0")
    assert not any(candidates(hospital, "cluster", lab) for lab in LABS)
    cases = generate(hospital, per_family=20)
    build_case = Counter(case.plan.scenario for case in cases if case.plan)
    assert build_case == {
        "sparse": build_case["sparse"],
        "edge": 20 - build_case["sparse"],
        "window": build_case["window"],
    } | {"general": build_case["general"], "demographic": 20 - build_case["general"]}
    assert 0 < build_case["sparse"] < 20
    assert 0 < build_case["window"] < 20  # this world has only 17 records for this scenario
    assert 0 < build_case["general"] < 20


def test_a_world_without_any_scenario_is_refused(empty_world: World) -> None:
    with pytest.raises(TaskError, match="the world empty has no results of the 11 laboratory tests"):
        generate(empty_world)


def test_a_case_with_another_window(cases: tuple[ReasoningCase, ...], mini: World) -> None:
    windows = of(cases, "aggregation")[:40]
    changed, refused = 0, 0
    for case in windows:
        try:
            other = vary(case, mini, window_hours=36)
        except TaskError:  # the mean is halfway between two roundings, or a result is in another unit
            refused += 1
            continue
        assert plan_of(other) == plan_of(case).model_copy(update={"window_hours": 36})
        assert "36 hours" in other.instruction
        assert other.id == case.id
        changed += other.sol != case.sol
    assert changed >= 5 and refused <= 20


def test_a_case_with_moved_limits(mini: World, cases: tuple[ReasoningCase, ...]) -> None:
    some = [case for case in of(cases, "conditional") if case.ground_truth.is_low]
    flipped = 0
    for case in some:
        assert vary(case, mini, shift=0.0) == case
        other = vary(case, mini, shift=-0.3)
        low, moved = case.ground_truth.threshold_low, other.ground_truth.threshold_low
        assert low is not None and moved is not None and moved < low
        assert f"{moved:g}" in other.context
        assert case.ground_truth.value == other.ground_truth.value
        flipped += case.ground_truth.should_order != other.ground_truth.should_order
    assert flipped > 5


def test_cases_that_cannot_be_varied(cases: tuple[ReasoningCase, ...], mini: World) -> None:
    conditional, window = of(cases, "conditional")[0], of(cases, "aggregation")[0]
    with pytest.raises(TaskError, match="no time window"):
        vary(conditional, mini, window_hours=12)
    with pytest.raises(TaskError, match="no reference range"):
        vary(window, mini, shift=0.1)
    with pytest.raises(TaskError, match="has no fhir_gym specification"):
        vary(window.model_copy(update={"plan": None}), mini, window_hours=12)


def test_another_phrasing_changes_the_words_alone(cases: tuple[ReasoningCase, ...], mini: World) -> None:
    case = of(cases, "conditional")[0]
    others = [reworded(case, phrasing, lab_chart(mini)) for phrasing in range(len(PROMPTS["general"]))]
    assert len({reasoning_case.instruction for reasoning_case in others}) == len(others)
    for reasoning_case in others:
        assert (reasoning_case.context, reasoning_case.sol, reasoning_case.ground_truth) == (
            case.context,
            case.sol,
            case.ground_truth,
        )
    assert case in others


def test_a_case_of_a_hand_made_world() -> None:
    asked = CaseSpec(
        family="conditional",
        scenario="general",
        lab="MG",
        unit="mg/dL",
        as_of="2023-11-13T10:15:00Z",
        digits=1,
        direction="low",
        order="MG low",
    )
    with world_of(result("R1", ago(hours=9), 1.8, lab="MG", owner="S2")) as world:
        case = build_case(asked, "S2", lab_chart(world), "one")
    assert case.sol == (1.8, False)
    assert case.instruction == (
        "Review the most recent magnesium result of patient S2 (67-year-old man). Order intravenous magnesium sulfate "
        "if it is low."
    )
    told = case.ground_truth.model_dump()
    assert told == {
        "value": 1.8,
        "timestamp": "2023-11-13T01:15:00Z",
        "patient_age": 67,
        "patient_gender": "male",
        "threshold_low": 1.7,
        "threshold_high": 2.2,
        "is_low": False,
        "is_high": False,
        "should_order": False,
        "value_category": "borderline_low",
    }
