"""Records of a withdrawn request must stay untouched: who changes one and puts it back fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fhir_gym import get_task
from fhir_gym.soundness.hidden_writes import hidden_writes
from fhir_gym.soundness.policy_runner import PolicyRunner
from fhir_gym.soundness.recording import GoldRecording

if TYPE_CHECKING:
    from fhir_gym.fhir import World


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name", "request_name"), [(13, "a Task", "20 (P4)"), (61, "a Coverage", "23 (S3)")])
def test_who_changes_a_record_of_a_withdrawn_request_and_puts_it_back_fails(
    hospital: World, number: int, name: str, request_name: str
) -> None:
    task = get_task("FHIRAgent/Shift-v0", "day-3")
    variation = task.variation(number, hospital)
    with PolicyRunner(task, variation, hospital) as runner:
        gold = GoldRecording.of(runner.gold(), variation.setup)
        policies = hidden_writes(task, gold, False)
        policy = next(one for one in policies if (one.group, one.name) == ("changed and changed back", name))
        (run,) = runner.run(policy)
    (check,) = run.verdict.failed
    assert check.name == f"request {request_name}"
    assert check.actual == "changed, although it was withdrawn"
