"""Task files written by fhir_gym, and external task files in the paper's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import pytest

from fhir_gym import Episode
from fhir_gym.errors import ArgumentError, TaskError, UnknownNameError
from fhir_gym.rollouts import run
from fhir_gym.soundness.policy_runner import PolicyRunner
from fhir_gym.tasks import task_set
from fhir_gym.tasks.packs.action_reasoning import ENV_ID
from fhir_gym.tasks.packs.action_reasoning.cases import ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.external_cases import inferred, order_of
from fhir_gym.tasks.packs.action_reasoning.file_task import read_cases, write_cases
from fhir_gym.tasks.packs.action_reasoning.generation import generate

from .records import FIGURE_2, NOW, TAKEN, ago, result, world_of

if TYPE_CHECKING:
    from fhir_gym.fhir import World

PRESENT = "2023-11-13T10:15:00Z"
LOW = {**FIGURE_2["ground_truth"], "value": 1.4, "is_low": True, "should_order": True, "value_category": "low"}
PATIENT = {"resourceType": "Patient", "id": "S6227720", "gender": "male", "birthDate": "1956-03-04"}


def magnesium(value: float = 1.8, **more: Any) -> dict[str, Any]:
    resource = result("R1", NOW, value, lab="MG", owner="S6227720")
    return {**resource, "effectiveDateTime": TAKEN, "issued": TAKEN, **more}


def written(folder: Path, *cases: dict[str, Any]) -> Path:
    path = folder / "tasks.json"
    path.write_text(json.dumps(cases), "utf-8")
    return path


def played(path: Path, world: World, *actions: str, task: str = "taskthreshold_37") -> Any:
    with Episode(ENV_ID, task=task, world=world, task_file=path) as episode:
        episode.start()
        for action in actions:
            episode.step(action)
        return episode.verdict()


LOOK = "GET /Observation?patient=S6227720&code=MG"


def test_the_papers_example(tmp_path: Path) -> None:
    path = written(tmp_path, FIGURE_2)
    (case,) = read_cases(path)
    assert case.model_dump(mode="json", by_alias=True, exclude={"plan"}) == FIGURE_2
    with world_of(PATIENT, magnesium()) as world:
        task = task_set(ENV_ID, path)["taskthreshold_37"]
        variation = task.variation(0, world)
        for text in (FIGURE_2["instruction"], FIGURE_2["context"], "the lower limit is 1.7 mg/dL"):
            assert text in variation.prompt
        assert variation.split == "test"
        with PolicyRunner(task, variation, world) as arena:
            assert arena.gold().verdict.success
        assert played(path, world, LOOK, "FINISH([1.8, false])").success
        assert not played(path, world, "FINISH([1.8, false])").success
        assert not played(path, world, LOOK, "FINISH([1.8, true])").success
        assert not played(path, world, LOOK, "FINISH([1.7, false])").success
        order = json.dumps({"resourceType": "MedicationRequest", "status": "active", "intent": "order"})
        assert not played(path, world, LOOK, f"POST /MedicationRequest\n{order}", "FINISH([1.8, false])").success


def test_a_low_value_wants_the_order_the_instruction_names_and_no_more(tmp_path: Path) -> None:
    path = written(tmp_path, {**FIGURE_2, "sol": [1.4, True], "ground_truth": LOW})
    with world_of(PATIENT, magnesium(1.4)) as world:
        task = task_set(ENV_ID, path)["taskthreshold_37"]
        with PolicyRunner(task, task.variation(0, world), world) as arena:
            assert arena.gold().verdict.success

        def ordering(kind: str = "MedicationRequest", **changes: Any) -> bool:
            order = {
                "resourceType": kind,
                "status": "active",
                "intent": "order",
                "medicationCodeableConcept": {"text": "magnesium sulfate 4 g IV"},
                "subject": {"reference": "Patient/S6227720"},
                **changes,
            }
            text = f"POST /{kind}\n{json.dumps(order)}"
            return bool(played(path, world, LOOK, text, "FINISH([1.4, true])").success)

        assert ordering()
        assert ordering(priority="stat", dosageInstruction=[{"text": "4 g over 4 hours"}])
        assert not ordering(status="draft")
        assert not ordering(subject={"reference": "Patient/S1"})
        assert not ordering("ServiceRequest", medicationCodeableConcept=None, code={"text": "magnesium"})


@pytest.mark.parametrize(
    ("patient", "observation", "said"),
    [
        ({}, {"value": 1.6}, r"value: 1.8 in the file, 1.6 in the world.*should_order: False.*sol: \[1.8, False\]"),
        ({}, {"effectiveDateTime": "2023-11-13T02:00:00Z"}, "timestamp: 2023-11-13T01:18"),
        ({"gender": "female"}, {}, "patient_gender: male in the file, female in the world$"),
        ({"birthDate": "1990-01-01"}, {}, "patient_age: 67 in the file, 33 in the world$"),
        ({}, {"status": "cancelled"}, "value: 1.8 in the file, nothing in the world"),
    ],
)
def test_a_world_that_disagrees(
    patient: dict[str, Any], observation: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = written(tmp_path, FIGURE_2)
    with world_of({**PATIENT, **patient}, magnesium(**observation)) as world, pytest.raises(TaskError, match=said):
        task_set(ENV_ID, path)["taskthreshold_37"].variation(0, world)


def test_a_world_without_the_patient(tmp_path: Path) -> None:
    path = written(tmp_path, FIGURE_2)
    with world_of() as world, pytest.raises(TaskError, match="lacks Patient/S6227720"):
        task_set(ENV_ID, path)["taskthreshold_37"].variation(0, world)


@pytest.mark.slow
def test_disagreements_with_the_real_records_are_named(shared_dir: Path, tmp_path: Path) -> None:
    from fhir_gym import worlds

    path = written(tmp_path, FIGURE_2)
    said = r"taskthreshold_37 and the world .* disagree about S6227720: "
    real = worlds.import_files(shared_dir / "medagentbench", out=tmp_path / "real.world")
    with real as world, pytest.raises(TaskError, match=said):
        task_set(ENV_ID, path)["taskthreshold_37"].variation(0, world)


def case(instruction: str, context: str = "Lab code: GLU.", id: str = "task_1", **truth: Any) -> ReasoningCase:
    sol = [truth.get("value", 93.0), *([truth["should_order"]] if "should_order" in truth else [])]
    return ReasoningCase(
        id=id,
        instruction=instruction,
        context=context,
        sol=tuple(sol),
        eval_MRN="S1",
        ground_truth={"value": 93.0, **truth},
    )


@pytest.mark.parametrize(
    ("told", "family", "lab", "hours"),
    [
        (case("What is the average glucose of patient S1 over the last 24 hours?"), "aggregation", "GLU", 24),
        (case("Compute mean glucose for S1 in the past 36h."), "aggregation", "GLU", 36),
        (case("Average sodium over the last 2 days.", "Lab code: NA"), "aggregation", "NA", 48),
        (case("What's the latest PT result for patient S1?", "Lab code: PT."), "retrieval", "PT", None),
        (case("Latest potassium of S1 within the last 24 hours?", ""), "retrieval", "K", 24),
        (case("Latest value for S1?", "Use lab code 'HGB'"), "retrieval", "HGB", None),
    ],
)
def test_the_plan_of_an_external_case_is_inferred(
    told: ReasoningCase, family: str, lab: str, hours: float | None
) -> None:
    plan = inferred(told, PRESENT)
    assert (plan.family, plan.lab, plan.window_hours, plan.as_of) == (family, lab, hours, PRESENT)


@pytest.mark.parametrize(
    ("instruction", "direction", "truth"),
    [
        ("Order replacement if clinically low.", "low", {"value": 60, "threshold_low": 70, "is_low": True}),
        ("Order insulin if elevated.", "high", {"value": 460, "threshold_high": 99, "is_high": True}),
        ("Order a repeat test if abnormal.", "outside", {"value": 60, "threshold_low": 70, "is_low": True}),
        ("Order a repeat test if indicated.", "high", {"value": 460, "threshold_high": 99, "is_high": True}),
        ("Order a repeat test if it is high or low.", "outside", {"value": 460, "threshold_high": 99, "is_high": True}),
    ],
)
def test_on_which_side_an_order_is_due(instruction: str, direction: str, truth: dict[str, Any]) -> None:
    whole = {"is_low": False, "is_high": False, "should_order": True, **truth}
    assert inferred(case(f"Review glucose. {instruction}", **whole), PRESENT).direction == direction


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("Review magnesium. Order IV replacement if clinically low.", "MedicationRequest"),
        ("Check sodium and order a repeat lab if low.", "ServiceRequest"),
        ("If creatinine is high, place a referral to nephrology.", "ServiceRequest"),
        ("Start insulin if the last glucose test is high.", "MedicationRequest"),
    ],
)
def test_the_order_of_a_case(instruction: str, kind: str) -> None:
    assert order_of(case(instruction, "")).resource_type == kind


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (case("Latest value for S1?", ""), "names no known laboratory test"),
        (case("Latest sodium and potassium for S1?", ""), r"several laboratory tests \(K, NA\)"),
        (case("What is the average glucose of S1?"), "over how many hours"),
        (case("Review glucose. Order insulin.", should_order=True), "on which side"),
        (
            case("Order insulin if high.", value=90, threshold_high=99, is_low=False, is_high=False, should_order=True),
            "contradicts itself: should_order is true; sol is true",
        ),
        (
            case("Order insulin if high.", value=90, threshold_high=99, is_high=True, should_order=False),
            "is_low is missing; is_high is true",
        ),
        (case("Latest glucose?").model_copy(update={"sol": (94,)}), "sol says 94, the ground truth 93.0"),
        (case("Latest glucose?").model_copy(update={"sol": ("93",)}), "sol does not begin with a number"),
    ],
)
def test_missing_facts_are_named(told: ReasoningCase, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        inferred(told, PRESENT)


def test_an_order_of_no_kind_is_refused() -> None:
    with pytest.raises(TaskError, match="a drug or a laboratory test"):
        order_of(case("Order something if it is high.", ""))


def test_our_own_file(mini: World, tmp_path: Path) -> None:
    path, again = tmp_path / "tasks.json", tmp_path / "again.json"
    cases = generate(mini, per_family=40)
    write_cases(path, cases)
    assert read_cases(path) == cases
    write_cases(again, read_cases(path))
    assert again.read_bytes() == path.read_bytes()
    first = json.loads(path.read_bytes())[0]
    assert list(first) == [*FIGURE_2, "fhir_gym"]
    assert list(first["ground_truth"]) == list(FIGURE_2["ground_truth"])
    rollouts = list(run(ENV_ID, "gold", world=mini, task_file=path, variations=0))
    assert len(rollouts) == 120
    assert all(rollout.success for rollout in rollouts)


def test_a_case_of_others_is_written_as_it_was_read(tmp_path: Path) -> None:
    path = written(tmp_path, FIGURE_2)
    write_cases(tmp_path / "copy.json", read_cases(path))
    assert json.loads((tmp_path / "copy.json").read_bytes()) == [FIGURE_2]


def test_a_mean_of_others_may_have_all_decimals(tmp_path: Path) -> None:
    values = (1.1, 1.2, 1.2)
    truth = {"value": 1.1666666666666667, "timestamp": None}
    case = {
        "id": "mean",
        "instruction": "What is the average magnesium of patient S6227720 over the last 24 hours?",
        "context": "Lab code: MG",
        "sol": [1.1666666666666667],
        "eval_MRN": "S6227720",
        "ground_truth": truth,
    }
    readings = [
        magnesium(value) | {"id": f"m{n}", "effectiveDateTime": f"2023-11-13T0{n}:00:00Z"}
        for n, value in enumerate(values, start=1)
    ]
    path = written(tmp_path, case)
    with world_of(PATIENT, *readings) as world:
        assert played(path, world, LOOK, "FINISH([1.1666666666666667])", task="mean").success
        assert not played(path, world, LOOK, "FINISH([1.2])", task="mean").success


def test_gym_takes_a_file(mini: World, tmp_path: Path) -> None:
    write_cases(tmp_path / "tasks.json", generate(mini, per_family=2))
    env = gym.make(ENV_ID, task_file=str(tmp_path / "tasks.json"), world=mini)
    prompt, info = env.reset(options={"task": "retrieval_1"})
    assert info["task"] == "retrieval_1"
    assert "FINISH([" in prompt
    env.close()


def test_a_file_of_another_present_is_refused(mini: World, tmp_path: Path) -> None:
    (case,) = [reasoning_case for reasoning_case in generate(mini, per_family=30) if reasoning_case.id == "retrieval_0"]
    assert case.plan is not None
    for as_of, said in (
        ("2023-11-13T10:14:00Z", "made for the current time 2023-11-13T10:14:00Z"),
        ("2024-01-01T00:00:00Z", "2024"),
    ):
        plan = case.plan.model_copy(update={"as_of": as_of})
        write_cases(tmp_path / "tasks.json", [case.model_copy(update={"plan": plan, "instruction": "Latest?"})])
        with pytest.raises(TaskError, match=said):
            task_set(ENV_ID, tmp_path / "tasks.json")["retrieval_0"].variation(0, mini)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lab": "XX"}, "unknown laboratory test 'XX'; known tests are CA, CL"),
        ({"as_of": "yesterday"}, "as_of is 'yesterday', not an instant like"),
        ({"as_of": "0001-01-01T00:00:00Z"}, "as_of is 0001-01-01T00:00:00Z, before the year 1900"),
        ({"window_hours": 1e300}, r"window_hours is 1e\+300"),
        ({"window_hours": 0.0}, "window_hours is 0, not above 0"),
        ({"shift": 1e300}, r"shift is 1e\+300"),
        ({"digits": 10**9}, "digits is 1000000000"),
        ({"order": "ZZ low"}, "unknown order 'ZZ low'"),
        ({"phrasing": 99}, "phrasing is 99, not from 0 to"),
        ({"phrasing": -1}, "phrasing is -1"),
        ({"length": 3}, "length is 3, not one of 0, 1, 2"),
    ],
)
def test_absurd_plans(mini: World, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    (case,) = [
        reasoning_case for reasoning_case in generate(mini, per_family=1) if reasoning_case.id == "aggregation_0"
    ]
    assert case.plan is not None
    write_cases(tmp_path / "tasks.json", [case.model_copy(update={"plan": case.plan.model_copy(update=changes)})])
    with pytest.raises(TaskError, match=f"aggregation_0: {said}"):
        task_set(ENV_ID, tmp_path / "tasks.json")


def test_an_invalid_time_is_a_disagreement(mini: World, tmp_path: Path) -> None:
    case = generate(mini, per_family=1)[1]
    truth = case.ground_truth.model_copy(update={"timestamp": "Tuesday"})
    write_cases(tmp_path / "tasks.json", [case.model_copy(update={"ground_truth": truth})])
    with pytest.raises(TaskError, match="timestamp: Tuesday in the file"):
        task_set(ENV_ID, tmp_path / "tasks.json")[case.id].variation(0, mini)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is not JSON"),
        ("{}", "is not a task file of this pack: it must be a JSON list"),
        ("[]", "holds no tasks"),
        (json.dumps([FIGURE_2, FIGURE_2]), "two tasks with the id 'taskthreshold_37'"),
        (json.dumps([{**FIGURE_2, "more": 1}]), r"at 0\.more"),
        (json.dumps([{**FIGURE_2, "eval_MRN": None}]), r"at 0\.eval_MRN"),
    ],
)
def test_invalid_task_files(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(text, "utf-8")
    with pytest.raises(TaskError, match=said):
        task_set(ENV_ID, path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot be read"):
        task_set(ENV_ID, tmp_path / "none.json")
    with pytest.raises(TaskError, match="cannot be read"):
        read_cases(tmp_path / "none.json")
    with pytest.raises(TaskError, match="cannot be written"):
        write_cases(tmp_path, [])
    path = written(tmp_path, FIGURE_2)
    with pytest.raises(ArgumentError, match="function lists"):
        task_set(ENV_ID, path, path)
    with pytest.raises(UnknownNameError, match="taskthreshold_37"):
        Episode(ENV_ID, task="taskthreshold_3", task_file=path)
    with world_of(PATIENT, magnesium()) as world, pytest.raises(TaskError, match="only variation 0"):
        task_set(ENV_ID, path)["taskthreshold_37"].variation(1, world)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    import os

    path = written(tmp_path, FIGURE_2)
    assert list(task_set(ENV_ID, path)) == ["taskthreshold_37"]
    written(tmp_path, {**FIGURE_2, "id": "other_1"})
    os.utime(path, ns=(1, 1))
    assert list(task_set(ENV_ID, path)) == ["other_1"]


def test_moments_in_another_zone_agree(tmp_path: Path) -> None:
    path = written(tmp_path, FIGURE_2)
    with world_of(PATIENT, magnesium(effectiveDateTime="2023-11-13T02:18:00+01:00")) as world:
        assert task_set(ENV_ID, path)["taskthreshold_37"].variation(0, world)


def test_later_results_make_a_difference(tmp_path: Path) -> None:
    path = written(tmp_path, FIGURE_2)
    later = result("R2", ago(minutes=1), 2.5, lab="MG", owner="S6227720")
    with world_of(PATIENT, magnesium(), later) as world, pytest.raises(TaskError, match=r"2\.5 in the world"):
        task_set(ENV_ID, path)["taskthreshold_37"].variation(0, world)
