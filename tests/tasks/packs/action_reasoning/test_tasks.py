"""The six generated tasks are sound and varied, and agents that use shortcuts fail them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fhir_gym import Episode
from fhir_gym.actions import Finish, Get, Post
from fhir_gym.errors import ArgumentError, TaskError
from fhir_gym.soundness import TaskReport, check_task
from fhir_gym.soundness.policy_runner import Policy, PolicyRunner, script
from fhir_gym.tasks import get_pack, get_task, task_keys
from fhir_gym.tasks.packs.action_reasoning import ENV_ID
from fhir_gym.tasks.packs.action_reasoning.params import ReasoningParams
from fhir_gym.tasks.packs.action_reasoning.reasoning_task import ReasoningTask
from tests.soundness.checking import unnoticed

from .records import WOMAN, ago, result, results, world_of

if TYPE_CHECKING:
    from fhir_gym.fhir import World

KEYS = task_keys(ENV_ID)
QUERIES, CONDITIONAL = KEYS[:4], KEYS[4:]
PRESENT = "2023-11-13T10:15:00Z"


def problems(report: TaskReport) -> str:
    lines = [f"{f.variation} {f.group} {f.policy!r}: {f.problem}\n{f.explanation}" for f in report.failures[:3]]
    return "\n".join([f"uncovered: {report.uncovered}", *lines])


def params(key: str, k: int, world: World, phrasing: int | None = None) -> ReasoningParams:
    found = get_task(ENV_ID, key).variation(k, world, phrasing).params
    assert isinstance(found, ReasoningParams)
    return found


def test_the_pack() -> None:
    assert KEYS == ("01", "02", "03", "04", "05", "06")
    assert get_pack(ENV_ID).world == "cohort-mini"
    tasks = [get_task(ENV_ID, key) for key in KEYS]
    assert [task.kind for task in tasks] == ["query"] * 4 + ["action"] * 2
    assert all(len(set(task.prompts)) == len(task.prompts) >= 3 for task in tasks)
    assert all(task.gold_steps <= 8 for task in tasks)
    assert {task.gradings for task in tasks} == {("state", "evidence")}


@pytest.mark.parametrize("key", KEYS)
def test_tasks_are_sound(key: str, mini: World) -> None:
    report = check_task(get_task(ENV_ID, key), mini, [0, 1, 1_000])
    assert report.sound, problems(report)
    assert report.tallies["gold"].passed == 3
    assert report.constants == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", KEYS)
def test_many_variations_are_sound(key: str, mini: World) -> None:
    report = check_task(get_task(ENV_ID, key), mini, [*range(150), *range(1_000, 1_150)])
    assert report.sound, problems(report)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["01", "04", "06"])
def test_every_check_is_needed(key: str, mini: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unnoticed(get_task(ENV_ID, key), mini, monkeypatch, range(3)) == []


@pytest.mark.parametrize("key", CONDITIONAL)
def test_orders_are_strictly_valid(key: str, mini: World) -> None:
    task, ordered = get_task(ENV_ID, key), Counter[str]()
    for k in range(16):
        with PolicyRunner(task, task.variation(k, mini), mini, validation="strict") as arena:
            run = arena.gold()
            assert run.verdict.success
            ordered.update(action.url for action in run.actions if action.kind == "POST")
    assert ordered.total() == 8
    assert set(ordered) <= {"/MedicationRequest", "/ServiceRequest"}


@pytest.mark.parametrize("key", KEYS)
def test_variations_are_different_finds(key: str, mini: World) -> None:
    for numbers in (range(60), range(1_000, 1_060)):
        cases = [params(key, k, mini).case for k in numbers]
        asked = {(case.eval_MRN, case.plan and (case.plan.lab, case.plan.as_of)) for case in cases}
        assert len(asked) >= 0.9 * len(cases)
        assert len({case.plan.length for case in cases if case.plan}) == 3
        labs = {case.plan.lab for case in cases if case.plan}
        assert len(labs) >= {"04": 3, "05": 8, "06": 3}.get(key, 10)


@pytest.mark.parametrize("key", KEYS)
def test_no_patient_is_both_trained_and_tested_on(key: str, mini: World) -> None:
    train, test = ({params(key, k, mini).case.eval_MRN for k in range(n, n + 200)} for n in (0, 1_000))
    assert train and test and not train & test


@pytest.mark.parametrize("key", CONDITIONAL)
def test_half_of_the_conditional_variations_ask_for_an_order(key: str, mini: World) -> None:
    for start in (0, 1_000):
        due = [params(key, k, mini).case.ground_truth.should_order for k in range(start, start + 100)]
        assert sum(map(bool, due)) == 50


@pytest.mark.parametrize(("key", "fewest", "most"), [("01", 10, 22), ("02", 0, 0), ("03", 30, 37), ("04", 0, 0)])
def test_some_values_are_not_there(key: str, fewest: int, most: int, mini: World) -> None:
    none = sum(params(key, k, mini).case.sol == (-1,) for k in range(100))
    assert fewest <= none <= most


@pytest.mark.parametrize("key", KEYS)
def test_no_answer_is_much_more_common_than_others(key: str, mini: World) -> None:
    answers = Counter(params(key, k, mini).case.sol for k in range(100))
    del answers[(-1,)]
    assert max(answers.values()) <= 10


@pytest.mark.parametrize("key", KEYS)
def test_another_phrasing_changes_the_words_alone(key: str, mini: World) -> None:
    task = get_task(ENV_ID, key)
    variations = [task.variation(5, mini, phrasing) for phrasing in range(len(task.prompts))]
    assert len({variation.prompt for variation in variations}) == len(variations)
    assert task.variation(5, mini) in variations
    first = variations[0].params.model_dump()
    for variation in variations:
        dumped = variation.params.model_dump()
        dumped["case"] |= {name: first["case"][name] for name in ("instruction",)}
        dumped["case"]["plan"]["phrasing"] = first["case"]["plan"]["phrasing"]
        assert dumped == first
        assert isinstance(variation.params, ReasoningParams)
        assert variation.params.case.instruction in variation.prompt


@pytest.mark.parametrize("key", KEYS)
def test_a_prompt_starts_with_the_present_and_is_complete(key: str, mini: World) -> None:
    for k in range(12):
        prompt = get_task(ENV_ID, key).variation(k, mini).prompt
        assert prompt.startswith(f"Present: {PRESENT}, a Monday; all times are UTC.\n\n")
        assert "{" not in prompt and "FINISH([" in prompt


_DUMP = """
from fhir_gym import worlds
from fhir_gym.tasks import get_task, task_keys
with worlds.load("cohort-mini") as world:
    for key in task_keys("FHIRAgent/ActionReasoning-v0"):
        for k in (0, 7, 1000, 1931):
            v = get_task("FHIRAgent/ActionReasoning-v0", key).variation(k, world)
            print(v.params.model_dump_json(), v.prompt, v.phrasing, v.next_id)
"""


@pytest.mark.slow
def test_the_same_bytes_in_any_process() -> None:
    root = Path(__file__).resolve().parents[4]
    outputs = []
    for seed, zone in (("1", "UTC"), ("2", "Asia/Kathmandu")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "PYTHONPATH": str(root)}
        run = subprocess.run([sys.executable, "-c", _DUMP], env=env, cwd=root, capture_output=True, check=True)
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"Present: ") == 4 * len(KEYS)


def test_a_world_without_the_scenario_is_refused(own_world: Callable[[str], World]) -> None:
    hospital = own_world("FHIRAgent/Appointment-v0")
    with pytest.raises(TaskError, match=r"no cluster candidates; `fhir-gym research art mine --world hospital-small`"):
        get_task(ENV_ID, "02").variation(0, hospital)
    with pytest.raises(ArgumentError, match="-1"):
        get_task(ENV_ID, "02").variation(-1, hospital)


def test_a_world_of_one_patient_serves_both_halves() -> None:
    with world_of(results({ago(hours=2): 4.1})) as world:
        for k in (0, 1, 1_000, 1_001):
            report = check_task(get_task(ENV_ID, "01"), world, [k])
            assert not report.failures, problems(report)


def episode(key: str, world: World, *actions: Any, k: int = 0) -> bool:
    """Whether an agent that performs these actions succeeds."""
    task = get_task(ENV_ID, key)
    assert isinstance(task, ReasoningTask)
    with PolicyRunner(task, task.variation(k, world), world) as arena:
        (run,) = arena.run(Policy("by hand", "by hand", script(actions)))
        return run.verdict.success


def test_absent_results_require_a_search() -> None:
    """The evidence must cover all of the patient's results in the window."""
    with world_of(result("R1", ago(hours=24, minutes=30), 4.1)) as world:
        cases = {k: params("03", k, world).case for k in range(9)}
        k = next(k for k, case in cases.items() if case.sol == (-1,) and case.plan and case.plan.as_of == PRESENT)
        base = {"patient": "S1", "code": "K"}
        assert episode("03", world, Get("/Observation", base), Finish([-1]), k=k)
        assert episode("03", world, Get("/Observation", {**base, "date": "ge2023-11-12T10:15:00Z"}), Finish([-1]), k=k)
        assert not episode("03", world, Get("/Observation", {**base, "date": "ge2023-11-13"}), Finish([-1]), k=k)
        assert not episode("03", world, Get("/Observation", {**base, "patient": "S2"}), Finish([-1]), k=k)
        assert not episode("03", world, Get("/Observation", {**base, "code": "NA"}), Finish([-1]), k=k)
        assert not episode("03", world, Finish([-1]), k=k)
        assert not episode("03", world, Get("/Observation", base), Finish([4.1]), k=k)


def test_sex_and_age_have_to_be_looked_up() -> None:
    with world_of(result("R1", ago(hours=2), 16.5, lab="HGB")) as world:
        found = params("06", 0, world)
        assert found.case.sol == (16.5, True)
        look, who = Get("/Observation", {"patient": "S1", "code": "HGB"}), Get("/Patient/S1")
        assert isinstance(found, ReasoningParams) and found.order is not None
        order = found.order
        post, finish = Post(f"/{order.resource_type}", order.body("S1", PRESENT)), Finish([16.5, True])
        assert episode("06", world, who, look, post, finish)
        assert episode("06", world, Get("/Patient", {"identifier": "S1", "_id": "S1"}), look, post, finish) is False
        assert episode("06", world, Get("/Patient", {"_id": "S1"}), look, post, finish)
        assert not episode("06", world, look, post, finish)
        assert not episode("06", world, Get("/Patient/S1", {"_elements": "id"}), look, post, finish)
        assert not episode("06", world, look, post, who, finish)
        assert episode(
            "06", world, Post("/ServiceRequest", {}), who, look, post, finish
        )  # a refused write changes nothing
        assert not episode("06", world, who, look, finish)
        assert not episode("06", world, who, look, post, Finish([16.5, False]))
        assert not episode("06", world, who, look, post, Finish([16.5, 1]))
        assert not episode("06", world, who, look, post, Finish([16.5]))
        assert episode("06", world, who, look, post, Finish(["16.5", "true"]))
        assert not episode("06", world, who, look, post, Finish(["16.5 g/dL", True]))


def test_patients_of_unknown_sex_are_not_drawn() -> None:
    somebody = {**WOMAN, "gender": "unknown"}
    with world_of(somebody, result("R1", ago(hours=2), 16.5, lab="HGB")) as world, pytest.raises(TaskError):
        params("06", 0, world)


def test_eight_steps_and_the_packs_own_world(mini: World) -> None:
    made = gym.make(ENV_ID)
    _, info = made.reset(seed=3, options={"task": "05"})
    assert info["task"] == "05"
    made.close()
    with Episode(ENV_ID, task="01", world=mini) as episode:
        episode.start()
        steps = [episode.step("GET /Patient?_count=1") for _ in range(8)]
    assert [step.truncated for step in steps] == [False] * 7 + [True]
    with pytest.raises(Exception, match="official"):
        Episode(ENV_ID, task="01", world=mini, grading="official")


@pytest.mark.parametrize("key", KEYS)
def test_gold_answers_from_the_responses(key: str, mini: World) -> None:
    """The reference solution takes its answer from the responses: another latest result changes the answer."""
    task = get_task(ENV_ID, key)
    for k in range(4):
        variation = task.variation(k, mini)
        found = params(key, k, mini)
        if not found.deciding:
            continue
        latest = mini.read("Observation", found.deciding[-1])
        assert latest is not None
        other = {**latest, "valueQuantity": {**latest["valueQuantity"], "value": 77.7}}
        with PolicyRunner(task, replace(variation, setup=(other,)), mini) as arena:
            answer = arena.gold().end.answer
        assert answer is not None
        assert answer[0] != found.case.sol[0]
        assert answer[0] == 77.7 or key == "04"


@pytest.mark.parametrize("key", KEYS)
def test_no_prompt_contains_the_answer_or_the_evidence(key: str, mini: World) -> None:
    for k in range(12):
        found, prompt = params(key, k, mini), get_task(ENV_ID, key).variation(k, mini).prompt
        assert not [id for id in found.deciding if id in prompt]
        assert found.case.ground_truth.timestamp is None or found.case.ground_truth.timestamp not in prompt


@pytest.mark.parametrize("key", ["01", "04", "05"])
def test_gold_takes_the_one_issued_later_of_a_tie(key: str) -> None:
    lab = "GLU" if key == "04" else "K"
    values = [
        result("R1", ago(hours=9), 4, lab=lab),
        result("R2", ago(hours=8), 5, lab=lab),
        result("R3", ago(hours=3), 3, lab=lab, issued=timedelta(hours=2)),
        result("R4", ago(hours=3), 7, lab=lab, issued=timedelta(hours=1)),
    ]
    with world_of(values) as world:
        task = get_task(ENV_ID, key)
        numbers = (*range(6), *range(1_000, 1_006))
        asked = [k for k in numbers if params(key, k, world).deciding[-1:] == ("R3",)]
        assert asked
        for k in asked:
            with PolicyRunner(task, task.variation(k, world), world) as arena:
                run = arena.gold()
            assert run.verdict.success
            assert (run.end.answer or [])[0] == (4 if key == "04" else 3)


drawn_results = st.lists(
    st.tuples(
        st.integers(1, 90).map(lambda n: 20 * n),
        st.integers(20, 70),
        st.sampled_from(["final", "final", "final", "amended", "cancelled", "entered-in-error"]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=40)
@given(drawn=drawn_results, lab=st.sampled_from(["K", "HGB"]))
def test_whatever_is_on_file_the_solution_is_right_and_another_value_is_not(
    drawn: list[tuple[int, int, str, int]], lab: str
) -> None:
    scale = {"K": 10, "HGB": 4}[lab]
    resources = [
        result(f"R{n}", ago(minutes=minutes), value / scale, lab=lab, status=status, issued=timedelta(minutes=later))
        for n, (minutes, value, status, later) in enumerate(drawn)
    ]
    with world_of(resources) as world:
        for key in KEYS:
            task = get_task(ENV_ID, key)
            try:
                variations = [task.variation(k, world) for k in range(3)]
            except TaskError:  # no record of the world fits the scenario
                continue
            for variation in variations:
                with PolicyRunner(task, variation, world) as arena:
                    run = arena.gold()
                    assert run.verdict.success, run.verdict.explanation
                    *before, finish = run.actions
                    value, *rest = finish.answer or []
                    wrong = Policy("by hand", "another value", script([*before, Finish([value + 0.5, *rest])]))
                    (refused,) = arena.run(wrong)
                    assert [check.name for check in refused.verdict.failed] == ["answered value"]
