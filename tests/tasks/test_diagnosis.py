from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from fhir_gym.tasks import Check, Diagnosis, FinishedEpisode, Verdict, grade
from fhir_gym.tasks.core.grader import SharedFindings
from fhir_gym.tasks.grading.tool_usage import ToolUsage
from fhir_gym.tasks.grading.verdict import Evidence
from fhir_gym.tasks.packs.action_reasoning.cases import ERRORS

from .fakes import Greeting, GreetingParams, end_state, fake_world

WRONG = Check(name="sum", passed=False, expected=4, actual=5)


class Diagnosed(Greeting):
    """A task with a diagnosis that reports its input."""

    key = "diagnosed"

    def diagnose(self, p: GreetingParams, end: FinishedEpisode, verdict: Verdict) -> Diagnosis | None:
        if verdict.success:
            return Diagnosis(steps=())
        return Diagnosis(steps=(Check(name="look", passed=True), WRONG), error="arithmetic", step="sum")


def test_a_verdict_contains_and_explains_the_diagnosis() -> None:
    task = Diagnosed()
    verdict = grade(task, task.variation(0, fake_world()), end_state(["1"]))
    assert not verdict.success and verdict.diagnosis is not None
    assert verdict.diagnosis.culprit == WRONG
    assert "Error: arithmetic, in the step 'sum': expected 4, found 5." in verdict.explanation
    assert Verdict.model_validate_json(json.dumps(verdict.model_dump())) == verdict


def test_a_diagnosis_changes_neither_success_nor_checks() -> None:
    plain, task = Greeting(), Diagnosed()
    verdict = grade(plain, plain.variation(0, fake_world()), end_state(["1"]))
    diagnosed = grade(task, task.variation(0, fake_world()), end_state(["1"]))
    assert verdict.diagnosis is None
    ignored = {"diagnosis", "explanation", "evidence", "checks"}
    assert verdict.model_dump(exclude=ignored) == diagnosed.model_dump(exclude=ignored)
    assert [check.passed for check in verdict.checks] == [check.passed for check in diagnosed.checks]


def test_grading_many_episodes_skips_the_diagnosis() -> None:
    task = Diagnosed()
    findings = SharedFindings(Evidence(sufficient=True, note="-"), ToolUsage(requests={}, errors={}, calls=()), ())
    assert grade(task, task.variation(0, fake_world()), end_state([]), findings=findings).diagnosis is None


def test_a_verdict_of_before_diagnoses_is_read() -> None:
    task = Greeting()
    data = grade(task, task.variation(0, fake_world()), end_state([])).model_dump()
    del data["diagnosis"]
    assert Verdict.model_validate(data).diagnosis is None


def test_an_error_names_a_step_that_failed() -> None:
    assert len(set(ERRORS)) == 10
    with pytest.raises(ValidationError, match="belongs to a step"):
        Diagnosis(steps=(WRONG,), error="arithmetic")
    with pytest.raises(ValidationError, match="no step 'look' failed"):
        Diagnosis(steps=(Check(name="look", passed=True), WRONG), error="arithmetic", step="look")
