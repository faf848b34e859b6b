from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fhir_gym.actions import Delete, Finish, Get, to_request
from fhir_gym.errors import TaskError, UnknownNameError
from fhir_gym.fhir import Change
from fhir_gym.fhir.adapters.remote_interactions import interactions
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.soundness.policy_runner import Policy, PolicyRunner, script
from fhir_gym.tasks import Check, FinishedEpisode, LoggedRequest, Verdict, get_task, grade
from fhir_gym.tasks.core.grader import ANSWER_FORM, EVIDENCE, NOTHING_ELSE, NOTHING_REVERSED, PROHIBITED
from fhir_gym.tasks.core.task import ExpectedChange
from fhir_gym.types import Resource
from tests.fhir.request_parts import request_parts

from .fakes import Greeting, GreetingParams, created, end_state, fake_world

if TYPE_CHECKING:
    from fhir_gym.fhir import World

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
    done = interactions(request, response, request_parts(request), [[]])
    return LoggedRequest(action, request, replace(response, done=done))


def judge(end: FinishedEpisode, grading: Any = "state") -> Verdict:
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


def test_a_reversal_of_the_meaning_fails() -> None:
    reversed_one = created({**GREETING, "modifierExtension": [{"url": "urn:x", "valueBoolean": True}]})
    assert failed(judge(end_state(["77"], changes=(reversed_one,)))) == {NOTHING_REVERSED}


def test_answering_none_without_a_request_is_no_evidence(hospital: World) -> None:
    task = get_task("FHIRAgent/Appointment-v0", "02b")
    with PolicyRunner(task, task.variation(0, hospital), hospital) as arena:
        (idle,) = arena.run(Policy("idle", "says none", script([Finish([])])))
    assert failed(idle.verdict) == {EVIDENCE}
    assert idle.verdict.evidence.looked is False


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


def test_dense_reward_subtracts_checks_that_idling_passes() -> None:
    end = end_state(["78"], changes=(*RIGHT, created({"resourceType": "Basic", "id": "78"})))
    verdict = judge(end)
    assert NOTHING_ELSE in failed(verdict)
    assert verdict.reward("dense") == pytest.approx(2 / 4)
    assert sum(part["reward"] for part in verdict.check_rewards()) == pytest.approx(2 / 4)


def test_the_parts_of_the_dense_reward() -> None:
    parts = {part["name"]: part for part in judge(end_state(["77"], changes=RIGHT)).check_rewards()}
    assert len(parts) == 7 and sum(part["reward"] for part in parts.values()) == pytest.approx(1)
    assert parts[NOTHING_ELSE] == {
        "name": NOTHING_ELSE, "level": "value", "passed": True, "idle": True, "reward": 0.0
    }  # fmt: skip
    assert parts["answer"]["reward"] == 0.25
    broken = judge(end_state(["78"], changes=(*RIGHT, created({"resourceType": "Basic", "id": "78"}))))
    rewards = {part["name"]: part["reward"] for part in broken.check_rewards()}
    assert (rewards[NOTHING_ELSE], rewards["answer"]) == (-0.25, 0.0)


def test_dense_reward_is_never_negative() -> None:
    end = end_state(
        None, changes=(created({"resourceType": "Flag", "id": "1"}),), requests=(logged(Delete("/Basic/1")),)
    )
    assert judge(end).reward("dense") == 0


def test_an_expected_change_covers_one_change_of_its_kind() -> None:
    twice = end_state(["77"], changes=(*RIGHT, created({**GREETING, "id": "78"})))
    (surplus,) = judge(twice).failed
    assert (surplus.name, surplus.actual) == (NOTHING_ELSE, ["created Basic/78"])
    changed = Change("updated", "Basic", "77", {**GREETING, "code": {}}, GREETING)
    assert NOTHING_ELSE in failed(judge(end_state(["77"], changes=(changed,))))


BEFORE = {**PERSON, "meta": {"versionId": "1", "tag": [{"code": "a"}, {"code": "b"}]}}


def rewritten(*versions: Resource | None) -> Change:
    return Change("updated", "Patient", PERSON["id"], BEFORE, versions[-1], versions)


def of_version(number: int, **elements: Any) -> Resource:
    return {**PERSON, "meta": {**BEFORE["meta"], "versionId": str(number)}, **elements}


def test_an_equal_version_is_no_change() -> None:
    labels = {
        "versionId": "3",
        "lastUpdated": "2023-11-13T10:15:00Z",
        "source": "#1",
        "tag": BEFORE["meta"]["tag"][::-1],
    }
    same = rewritten(of_version(2), of_version(3, meta=labels))
    assert judge(end_state(["77"], changes=(*RIGHT, same))).success


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        ((of_version(2, active=False), of_version(3)), ", and back"),
        ((None, of_version(3)), ", deleted in between"),
        ((of_version(2, text={"div": "<div>told</div>"}),), ""),
        ((of_version(2, meta={"tag": [{"code": "a"}]}),), ""),
        ((of_version(2, meta={**BEFORE["meta"], "profile": ["urn:p"]}),), ""),
        ((of_version(2, meta={**BEFORE["meta"], "security": [{"code": "R"}]}),), ""),
    ],
)
def test_every_version_of_another_record_counts(versions: tuple[Resource | None, ...], told: str) -> None:
    (check,) = judge(end_state(["77"], changes=(*RIGHT, rewritten(*versions)))).failed
    assert (check.name, check.actual) == (NOTHING_ELSE, [f"updated Patient/{PERSON['id']}{told}"])


class Renaming(Greeting):
    """A task that also allows a change of the Patient."""

    def expected_changes(self, p: GreetingParams) -> tuple[ExpectedChange, ...]:
        return (*super().expected_changes(p), ExpectedChange("updated", "Patient", p.id))


def test_an_allowed_change_does_not_allow_delete_and_recreate() -> None:
    def told(*versions: Resource | None) -> Any:
        end = end_state(["77"], changes=(*RIGHT, rewritten(*versions)))
        return next(check.actual for check in grade(Renaming(), VARIATION, end).checks if check.name == NOTHING_ELSE)

    assert told(of_version(2, active=False), of_version(3, active=True)) == []
    assert told(None, of_version(3, active=True)) == [f"updated Patient/{PERSON['id']}, deleted in between"]


def test_an_unknown_history_may_contain_anything() -> None:
    unknown = Change("updated", "Patient", PERSON["id"], BEFORE, of_version(3))
    assert failed(judge(end_state(["77"], changes=(*RIGHT, unknown)))) == {NOTHING_ELSE}


def test_a_created_record_may_be_corrected_and_recreated() -> None:
    own = Change("created", "Basic", "77", None, GREETING, ({**GREETING, "code": {}}, None, GREETING))
    assert judge(end_state(["77"], changes=(own,))).success


def test_the_unexpected_change_is_named_and_not_the_right_one() -> None:
    """Without an id in the answer, the resource that satisfies the checks counts as the requested one."""
    wrong = created({**GREETING, "id": "76", "code": {"text": "No"}})
    for answer in (["77"], ["78"], None):
        verdict = judge(end_state(answer, changes=(wrong, *RIGHT)))
        (check,) = [check for check in verdict.failed if check.name == NOTHING_ELSE]
        assert check.actual == ["created Basic/76"]


def test_prohibited_tools_count_even_without_effect() -> None:
    (check,) = judge(end_state(["77"], changes=RIGHT, requests=(logged(Delete("/Basic/1"), status=404),))).failed
    assert (check.name, check.actual) == (PROHIBITED, ["delete"])


def test_the_explanation_names_the_failed_checks() -> None:
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

    def checks(self, p: GreetingParams, end: FinishedEpisode) -> Iterator[Check]:
        yield Check(name="one", passed=True)
        yield Check(name="one", passed=False)


def test_two_checks_of_one_name_are_a_mistake_of_the_task() -> None:
    with pytest.raises(TaskError, match="two checks of the same name"):
        grade(Twins(), VARIATION, end_state([]))
