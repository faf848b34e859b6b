from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from fhir_gym.actions import Delete, Get, to_request
from fhir_gym.errors import TaskError, UnknownNameError
from fhir_gym.fhir.answered import interactions
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.session import Change
from fhir_gym.fhir.touched import asked
from fhir_gym.tasks import Check, EndState, LoggedRequest, Verdict, grade
from fhir_gym.tasks.grading import ANSWER_FORM, EVIDENCE, NOTHING_ELSE, NOTHING_REVERSED, PROHIBITED

from .fakes import Greeting, GreetingParams, created, end_state, fake_world

BASE = "http://localhost:8080/fhir"
TASK = Greeting()
VARIATION = TASK.variation(0, fake_world())
PERSON = VARIATION.setup[0]
GREETING = {"resourceType": "Basic", "id": "77", "code": {"text": VARIATION.params.model_dump()["text"]}}
RIGHT = (created(GREETING),)


def logged(action: Any, body: Any = None, status: int = 200) -> LoggedRequest:
    request = to_request(action, BASE)
    assert isinstance(request, Request)
    response = Response(status, body=json.dumps(body).encode())
    done = interactions(request, response, asked(request, BASE), [[]])
    return LoggedRequest(action, request, replace(response, done=done))


def judge(end: EndState, grading: Any = "state") -> Verdict:
    return grade(TASK, VARIATION, end, grading)


def failed(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.failed}


def test_success() -> None:
    verdict = judge(end_state(["77"], changes=RIGHT))
    assert verdict.success
    assert verdict.light
    assert verdict.reward() == verdict.reward("dense") == 1
    assert verdict.explanation.startswith("Success: all 7 checks passed.")
    assert not verdict.evidence.sufficient, "the person was never looked up"


def test_evidence_counts_when_asked_for() -> None:
    end = end_state(["77"], changes=RIGHT)
    assert failed(judge(end, "evidence")) == {EVIDENCE}
    looked = end_state(["77"], changes=RIGHT, requests=(logged(Get(f"/Patient/{PERSON['id']}"), PERSON),))
    assert judge(looked, "evidence").success


def test_idle_is_worth_nothing() -> None:
    verdict = judge(end_state([]))
    assert not verdict.success
    assert not verdict.light
    assert verdict.reward() == verdict.reward("dense") == 0
    assert set(verdict.idle) == {NOTHING_ELSE, NOTHING_REVERSED, PROHIBITED}


def test_never_finishing_is_worth_nothing() -> None:
    verdict = judge(end_state(None))
    assert failed(verdict) >= {ANSWER_FORM}
    assert verdict.answer is None
    assert verdict.reward("dense") == 0


def test_dense_reward_is_the_share_beyond_idle() -> None:
    wrong_answer = judge(end_state(["78"], changes=RIGHT))
    assert failed(wrong_answer) == {"answer"}
    assert wrong_answer.light
    assert wrong_answer.reward() == 0
    assert wrong_answer.reward("dense") == pytest.approx(3 / 4)


def test_dense_reward_takes_off_what_idling_would_have_left_whole() -> None:
    end = end_state(["78"], changes=(*RIGHT, created({"resourceType": "Basic", "id": "78"})))
    verdict = judge(end)
    assert NOTHING_ELSE in failed(verdict)
    assert verdict.reward("dense") == pytest.approx(2 / 4)


def test_dense_reward_is_never_negative() -> None:
    end = end_state(
        None, changes=(created({"resourceType": "Flag", "id": "1"}),), requests=(logged(Delete("/Basic/1")),)
    )
    assert judge(end).reward("dense") == 0


def test_a_touch_covers_one_change_of_its_kind() -> None:
    twice = end_state(["77"], changes=(*RIGHT, created({**GREETING, "id": "78"})))
    (surplus,) = judge(twice).failed
    assert (surplus.name, surplus.actual) == (NOTHING_ELSE, ["created Basic/78"])
    changed = Change("updated", "Basic", "77", {**GREETING, "code": {}}, GREETING)
    assert NOTHING_ELSE in failed(judge(end_state(["77"], changes=(changed,))))


def test_what_was_changed_back_is_no_change() -> None:
    before = {**PERSON, "meta": {"versionId": "1"}}
    back = Change("updated", "Patient", PERSON["id"], before, {**PERSON, "meta": {"versionId": "3"}})
    assert judge(end_state(["77"], changes=(*RIGHT, back))).success
    told = Change("updated", "Patient", PERSON["id"], before, {**PERSON, "text": {"div": "<div>told</div>"}})
    assert failed(judge(end_state(["77"], changes=(*RIGHT, told)))) == {NOTHING_ELSE}


def test_prohibited_tools_count_even_without_effect() -> None:
    (check,) = judge(end_state(["77"], changes=RIGHT, requests=(logged(Delete("/Basic/1"), status=404),))).failed
    assert (check.name, check.actual) == (PROHIBITED, ["delete"])


def test_explanation_names_what_failed() -> None:
    text = judge(end_state(["Basic/78"], changes=RIGHT)).explanation
    assert '- answer: expected "77", found "78"' in text
    assert f"never retrieved Patient/{PERSON['id']}" in text


def test_verdict_is_plain_data() -> None:
    verdict = judge(end_state(["77"], changes=RIGHT))
    assert Verdict.model_validate_json(json.dumps(verdict.model_dump())) == verdict


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="evidence"):
        judge(end_state([]), "evidense")
    with pytest.raises(UnknownNameError, match="dense"):
        judge(end_state([])).reward(cast(Any, "dens"))


class Twins(Greeting):
    key = "twins"

    def checks(self, p: GreetingParams, end: EndState) -> Iterator[Check]:
        yield Check(name="one", passed=True)
        yield Check(name="one", passed=False)


def test_two_checks_of_one_name_are_a_mistake_of_the_task() -> None:
    with pytest.raises(TaskError, match="alike"):
        grade(Twins(), VARIATION, end_state([]))
