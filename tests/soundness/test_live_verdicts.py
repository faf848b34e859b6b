"""In live tasks, other people make some wrong actions harmless: a write is refused, or a colleague acts later."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fhir_gym import get_task
from fhir_gym.actions import Finish
from fhir_gym.soundness.near_misses import hidden_writes, near_misses
from fhir_gym.soundness.policy_runner import Policy, PolicyRunner, script
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.soundness.task_check import VerdictChecker

if TYPE_CHECKING:
    from fhir_gym.fhir import World


TASK, NUMBER = get_task("FHIRAgent/Shift-v0", "day-3"), 0


@pytest.mark.slow
def test_an_extra_write_that_the_server_refuses_may_pass_and_one_that_it_accepts_may_not(hospital: World) -> None:
    variation = TASK.variation(NUMBER, hospital)
    checker = VerdictChecker(TASK)
    with PolicyRunner(TASK, variation, hospital) as runner:
        gold = runner.gold()
        checker.gold(NUMBER, gold)
        recording = GoldRecording.of(gold, variation.setup)
        step = next(step for step in recording.steps if step.writes and step.action.url.startswith("/Task/"))
        stale = replace(step.action, url=f"{step.action.url}/_history/1")
        refused = Policy(
            "odd url", "a stale version", script([*recording.actions, stale, Finish(gold.end.answer or [])])
        )
        policies = hidden_writes(TASK, recording, False)
        accepted = next(policy for policy in policies if policy.group == "changed and changed back")
        (without_effect,), (with_effect,) = runner.run(refused), runner.run(accepted)
    assert without_effect.end.requests[-1].response.status == 409
    assert without_effect.verdict.success
    checker.policy(NUMBER, refused, without_effect)
    assert checker.report.failures == []

    wrongly_accepted = replace(with_effect, verdict=gold.verdict)
    checker.policy(NUMBER, accepted, wrongly_accepted)
    (failure,) = checker.report.failures
    assert (failure.group, failure.problem) == ("changed and changed back", "accepted")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PUT Task: status = 'completed'", "PUT Task: without status"])
def test_a_wrong_write_may_pass_if_another_one_replaces_it(hospital: World, name: str) -> None:
    variation = TASK.variation(NUMBER, hospital)
    checker = VerdictChecker(TASK)
    with PolicyRunner(TASK, variation, hospital) as runner:
        gold = runner.gold()
        checker.gold(NUMBER, gold)
        policies = near_misses(TASK, GoldRecording.of(gold, variation.setup), False)
        runs = ((policy, runner.run(policy)[0]) for policy in policies if policy.name == name)
        policy, run = next((policy, run) for policy, run in runs if run.verdict.success)
    checker.policy(NUMBER, policy, run)
    assert checker.report.failures == []
