"""Tasks of an official task file, in episodes and envs and under each grading."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import pytest

import fhir_gym
from fhir_gym import Episode
from fhir_gym.actions import GRAMMAR
from fhir_gym.errors import ArgumentError, FhirGymError, TaskError, UnknownNameError
from fhir_gym.tasks import Verdict
from fhir_gym.tasks.packs.medagentbench import ENV_ID
from fhir_gym.tasks.packs.medagentbench.official.orders import COMMENT
from tests.tasks.packs.medagentbench.conftest import (
    BASE,
    MRN,
    NOW,
    blood_pressure,
    magnesium,
    morning,
    post,
    potassium,
    service,
)

if TYPE_CHECKING:
    from fhir_gym.fhir import World

LOOK = {code: f"GET {BASE}/Observation?patient={MRN}&code={code}&_count=5000" for code in ("MG", "GLU", "K", "A1C")}


@pytest.fixture(scope="module")
def judged(small: World, task_file: Path) -> Iterator[Any]:
    """Perform an episode and return its verdict."""

    def judge(task: str, *texts: Any, grading: Any = "state") -> Verdict:
        with Episode(ENV_ID, task=task, world=small, task_file=task_file, grading=grading) as episode:
            episode.start()
            for text in texts:
                step = episode.step(text)
            assert step.done
            return episode.verdict()

    yield judge


def test_prompt_and_format(small: World, task_file: Path, shared_dir: Path) -> None:
    functions = shared_dir / "medagentbench" / "funcs_v1.json"
    with Episode(ENV_ID, task="task4_1", world=small, task_file=task_file) as episode:
        text = episode.start()
        assert f"Context: It's {NOW} now." in text
        assert f"Question: What about {MRN}?" in text
        assert "PATCH" in text
        assert episode.config.step_limit == 8
    settings: dict[str, Any] = {"task_file": task_file, "funcs_file": functions, "grading": "official"}
    with Episode(ENV_ID, task="task4_1", world=small, **settings) as episode:
        text = episode.start()
        assert "GET {api_base}/Observation" in text
        assert "PATCH" not in text


@pytest.mark.parametrize("grading", ["state", "evidence", "official"])
@pytest.mark.parametrize("patient", ["1", "2", "3"])
def test_gold_is_right_under_every_grading(small: World, task_file: Path, grading: Any, patient: str) -> None:
    tasks = [f"task{kind}_{patient}" for kind in range(1 if patient == "1" else 2, 11)]
    choice: dict[str, Any] = {"world": small, "task_file": task_file, "tasks": tasks, "grading": grading}
    for rollout in fhir_gym.run(ENV_ID, "gold", **choice):
        assert rollout.verdict is not None
        assert rollout.verdict.gradings == {"state": True, "evidence": True, "official": True}, (
            rollout.verdict.explanation
        )
        assert rollout.task.split == "test"
        assert rollout.task.title


def test_the_official_verdict_does_not_depend_on_the_grammar(judged: Any) -> None:
    """The official verdict may be a success while fhir_gym's own verdict is a failure, and the reverse."""
    record = post("Observation", blood_pressure())
    assert judged("task3_1", record, "FINISH([])").gradings == {"state": True, "evidence": True, "official": True}
    relative = record.replace(BASE, "")
    assert judged("task3_1", relative, "FINISH([])").gradings["official"] is False
    fenced = f"```\n{record}\n```"
    assert judged("task3_1", fenced, "FINISH([])").gradings == {"state": True, "evidence": True, "official": False}
    assert judged("task3_1", record, "FINISH(done)", grading="official").gradings["official"] is True


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("FINISH([1.9])", None),
        ("FINISH([2.5])", "wrong value"),
        ("FINISH([])", "wrong value"),
        ('FINISH(["1.9 mg/dL"])', "wrong format"),
        ("FINISH(1.9)", "wrong format"),
        ("The value is 1.9.", "wrong format"),
    ],
)
def test_the_two_kinds_of_error_are_told_apart(judged: Any, answer: str, label: str | None) -> None:
    verdict = judged("task4_1", LOOK["MG"], answer, grading="official")
    assert (verdict.diagnosis and verdict.diagnosis.error) == label
    if answer.startswith("FINISH(["):
        assert judged("task4_1", LOOK["MG"], answer).diagnosis is None


def test_official_rules_of_the_conversation(small: World, task_file: Path) -> None:
    with Episode(ENV_ID, task="task3_1", world=small, task_file=task_file, grading="official") as episode:
        episode.start()
        step = episode.step(f"GET {BASE}/Patient?identifier={MRN}")
        assert step.observation.startswith("HTTP 200")
        assert step.info["status"] == 200
        step = episode.step("GET Patient?identifier=1")
        assert (step.done, step.info["invalid"], step.info["status"]) == (False, True, 0)
        step = episode.step("POST nowhere\n{}")
        assert step.observation.startswith("POST request accepted")
        step = episode.step("I am done.")
        assert (step.terminated, step.info["invalid"], step.info["success"]) == (True, True, False)
        with pytest.raises(FhirGymError):
            episode.step("FINISH([])")
        episode.start()
        for _ in range(8):
            step = episode.step(LOOK["MG"])
        assert step.truncated


def test_posts_are_executed_where_they_are_valid(small: World, task_file: Path) -> None:
    with Episode(ENV_ID, task="task5_1", world=small, task_file=task_file, grading="official") as episode:
        episode.start()
        episode.step(post("MedicationRequest", magnesium()))
        seen = episode.step(f"GET {BASE}/MedicationRequest?subject=Patient/{MRN}").observation
        assert '"0338-1715-40"' in seen
        step = episode.step("FINISH([])")
        assert step.info["verdict"]["process"]["requests"]["create"] == 1
        episode.start()
        assert episode.step(post("Observation", {"resourceType": "Patient"})).observation.startswith("POST request")
        assert episode.step("FINISH([])").info["success"] is False


def test_state_grades_the_sent_body_where_the_server_stores_less(judged: Any) -> None:
    right = [LOOK["MG"], post("MedicationRequest", magnesium()), "FINISH([1.9])"]
    assert judged("task5_1", *right).success
    for route in ({"text": "IV"}, {"text": "intravenous"}, "iv"):
        other = magnesium(route=route)
        assert judged("task5_1", LOOK["MG"], post("MedicationRequest", other), "FINISH([])").success
    for route in ("oral", {"text": "oral"}):
        other = magnesium(route=route)
        verdict = judged("task5_1", LOOK["MG"], post("MedicationRequest", other), "FINISH([1.9])")
        assert [check.name for check in verdict.failed] == ["medication route"]


def test_orders_in_a_bundle_or_under_an_own_id(judged: Any) -> None:
    bundle = {
        "resourceType": "Bundle",
        "type": "transaction",
        "entry": [
            {"resource": potassium(), "request": {"method": "POST", "url": "MedicationRequest"}},
            {"resource": morning(), "request": {"method": "POST", "url": "ServiceRequest"}},
        ],
    }
    assert judged("task9_1", LOOK["K"], f"POST /\n{json.dumps(bundle)}", "FINISH([3.1])").success
    own = {**magnesium(), "id": "mine"}
    assert judged("task5_1", LOOK["MG"], f"PUT /MedicationRequest/mine\n{json.dumps(own)}", "FINISH([1.9])").success


@pytest.mark.parametrize(
    ("note", "right"),
    [
        ([{"text": COMMENT}], True),
        ({"text": COMMENT}, True),
        ([{"text": f"For the surgeon: {COMMENT}"}], True),
        ([{"text": COMMENT[:-20]}], False),
    ],
)
def test_notes_in_either_form(judged: Any, note: Any, right: bool) -> None:
    order = service("http://snomed.info/sct", "306181000000106", note=note)
    order.pop("priority")
    assert judged("task8_1", post("ServiceRequest", order), "FINISH([])").success is right


def test_holes_of_the_official_verdict_are_closed(judged: Any) -> None:
    def gradings(task: str, *texts: str) -> tuple[bool, bool]:
        found = judged(task, *texts, grading="official").gradings
        return found["official"], found["state"]

    assert gradings("task5_3", "FINISH([])") == (True, False), "none, without looking"
    assert gradings("task9_2", "FINISH([])") == (True, False), "enough, without looking"
    assert gradings("task10_1", "FINISH([])") == (True, False)
    assert gradings("task4_3", "FINISH([-1])") == (True, False)
    assert gradings("task2_1", "FINISH([60])") == (True, False), "a guess"
    assert gradings("task1_5", 'FINISH(["Patient not found"])') == (True, False)
    look = f"GET {BASE}/Observation?patient=S0000003&code=MG"
    assert gradings("task5_3", look, "FINISH([])") == (True, True)
    elsewhere = f"GET {BASE}/Observation?patient=S0000002&code=MG"
    assert gradings("task5_3", elsewhere, "FINISH([])") == (True, False)
    assert gradings("task10_1", LOOK["A1C"], "FINISH([])") == (True, False), "the value was asked for"


def test_incomplete_records_make_every_answer_wrong(judged: Any) -> None:
    for task in ("task2_4", "task4_4", "task9_4"):
        verdict = judged(task, "FINISH([2.2])")
        assert verdict.gradings == {"state": False, "evidence": False, "official": False}


def test_a_world_without_the_patient_is_refused(task_file: Path, hospital: World) -> None:
    with pytest.raises(TaskError, match=r"S0000001.*worlds import"):
        Episode(ENV_ID, task="task2_1", world=hospital, task_file=task_file)
    with Episode(ENV_ID, task="task1_5", world=hospital, task_file=task_file) as episode:
        assert "DOB" in episode.prompt


def test_wrong_arguments(task_file: Path, small: World) -> None:
    with pytest.raises(UnknownNameError, match="task99_1"):
        Episode(ENV_ID, task="task99_1", world=small, task_file=task_file)
    with pytest.raises(ArgumentError, match="one variation"):
        Episode(ENV_ID, task="task2_1", variation=1, world=small, task_file=task_file)
    with pytest.raises(UnknownNameError, match="grading of task 01"):
        Episode(ENV_ID, task="01", world=small, grading="official")
    with pytest.raises(UnknownNameError, match="grading of task 01"):
        gymnasium.make(ENV_ID, world=small, grading="official")
    with pytest.raises(FhirGymError, match="no splits"):
        gymnasium.make(ENV_ID, world=small, task_file=task_file, split="test")
    with pytest.raises(FhirGymError, match="one variation"):
        fhir_gym.run(ENV_ID, "idle", world=small, task_file=task_file, variations="0-9")
    with pytest.raises(UnknownNameError, match="grading of task 01"):
        fhir_gym.run(ENV_ID, "idle", tasks="01", world=small, grading="official")


def test_the_env_serves_a_file(task_file: Path, small: World) -> None:
    tasks = ["task3_1", "task4_1"]
    env = gymnasium.make(ENV_ID, world=small, task_file=str(task_file), grading="official", tasks=tasks)
    seen = set()
    for seed in range(6):
        _, info = env.reset(seed=seed)
        seen.add((info["task"], info["variation"]))
    assert seen == {("task3_1", 0), ("task4_1", 0)}
    env.reset(options={"task": "task3_2"})
    env.step(post("Observation", blood_pressure("S0000002")))
    _, reward, terminated, _, info = env.step("FINISH([])")
    assert (reward, terminated, info["verdict"]["gradings"]["official"]) == (1.0, True, True)
    env.close()


def test_vector_env_serves_a_file(task_file: Path, small: World) -> None:
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, world=small, task_file=task_file, tasks="task4_3", grading="official")
    envs.reset(seed=1)
    _, rewards, terminated, _, _ = envs.step(["FINISH([-1])", "FINISH([1])"])
    assert (list(rewards), list(terminated)) == ([1.0, 0.0], [True, True])
    envs.close()


def test_tool_calls_count_as_absolute_urls(judged: Any) -> None:
    call = GRAMMAR.from_tool_call("createResource", {"resourceType": "Observation", "body_json": blood_pressure()})
    done = GRAMMAR.from_tool_call("finish", {"answer": []})
    for grading in ("state", "official"):
        assert judged("task3_1", call, done, grading=grading).gradings["official"] is True


@pytest.mark.slow
def test_workers_serve_a_file(task_file: Path, small: World) -> None:
    choice: dict[str, Any] = {"world": small, "task_file": task_file, "tasks": ["task4_1", "task5_1"]}
    here = list(fhir_gym.run(ENV_ID, "gold", **choice))
    there = list(fhir_gym.run(ENV_ID, "gold", workers=1, **choice))
    assert [rollout.turns for rollout in here] == [rollout.turns for rollout in there]
    assert all(rollout.success for rollout in there)
