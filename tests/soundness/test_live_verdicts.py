"""In live tasks, other people make some wrong actions harmless: a write is refused, or a colleague acts later."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fhir_gym import get_task
from fhir_gym.soundness.hidden_writes import hidden_writes
from fhir_gym.soundness.near_misses import near_misses
from fhir_gym.soundness.policy_runner import PolicyRunner
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.soundness.verdict_checker import VerdictChecker
from fhir_gym.tasks import LatestResponse

if TYPE_CHECKING:
    from fhir_gym.fhir import World


@pytest.mark.slow
def test_an_extra_write_that_the_server_refuses_may_pass_and_one_that_it_accepts_may_not(hospital: World) -> None:
    task, number = get_task("FHIRAgent/Shift-v0", "day-3"), 96
    variation = task.variation(number, hospital)
    checker = VerdictChecker(task)
    with PolicyRunner(task, variation, hospital) as runner:
        gold = runner.gold()
        checker.gold(number, gold)
        policies = list(hidden_writes(task, GoldRecording.of(gold, variation.setup), False))
        refused, accepted = (
            next(one for one in policies if (one.group, one.name) == named)
            for named in (
                ("odd url", "PUT /Task/TAS9706402/_history/1, and back"),
                ("changed and changed back", "a Schedule"),
            )
        )
        (without_effect,), (with_effect,) = runner.run(refused), runner.run(accepted)
    assert [one.response.status for one in without_effect.end.requests[-2:]] == [409, 409]
    assert without_effect.verdict.success
    checker.policy(number, refused, without_effect)
    assert checker.report.failures == []

    wrongly_accepted = replace(with_effect, verdict=gold.verdict)
    checker.policy(number, accepted, wrongly_accepted)
    (failure,) = checker.report.failures
    assert (failure.group, failure.problem) == ("changed and changed back", "accepted")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "id", "name"),
    [
        # A Task is closed too early and asked about afterwards: a colleague waits.
        (18, "TAS9595277", "PUT Task: status = 'completed'"),
        # A Task is in-progress only after the answer to a question: its requester waits.
        (1, "TAS9521366", "PUT Task: without status"),
    ],
)
def test_a_wrong_write_may_pass_if_somebody_acts_later_because_of_it(
    hospital: World, number: int, id: str, name: str
) -> None:
    """The server assigns other ids."""
    task = get_task("FHIRAgent/Shift-v0", "day-4")
    variation = task.variation(number, hospital)
    checker = VerdictChecker(task)
    with PolicyRunner(task, variation, hospital) as runner:
        gold = runner.gold()
        checker.gold(number, gold)
        recording = GoldRecording.of(gold, variation.setup)
        begin = next(one.action for one in recording.steps if one.writes and one.action.url == f"/Task/{id}")
        place = recording.actions.index(begin)
        policy = next(
            one
            for one in near_misses(task, recording, False)
            if one.name == name and [*one.play(LatestResponse())][place] != begin
        )
        (run,) = runner.run(policy)
    assert run.verdict.success
    checker.policy(number, policy, run)
    assert checker.report.failures == []
