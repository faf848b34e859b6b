"""In every task that creates records, the agent may add what the prompt allows."""

from __future__ import annotations

import pytest

from fhir_gym import worlds
from fhir_gym.soundness.equivalents import equivalents
from fhir_gym.soundness.policy_runner import PolicyRunner
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.tasks import ADD_NOTHING, get_pack, get_task, pack_ids, task_keys
from fhir_gym.tasks.core.dates import instant

SHIFT = "FHIRAgent/Shift-v0"
CREATING = [
    pytest.param(env, key, marks=[pytest.mark.slow] if env == SHIFT else [])
    for env in pack_ids()
    for key in task_keys(env)
    if get_task(env, key).requested_elements or key == "day-3"
]


@pytest.mark.parametrize(("env", "key"), CREATING)
def test_what_the_prompt_allows_may_be_added(env: str, key: str) -> None:
    task = get_task(env, key)
    created = 0
    with worlds.load(get_pack(env).world) as world:
        for number in range(20):
            with PolicyRunner(task, task.variation(number, world), world) as runner:
                assert ADD_NOTHING in runner.variation.prompt
                gold = GoldRecording.of(runner.gold(), runner.variation.setup)
                created += sum(step.created is not None for step in gold.steps)
                policies = equivalents(task, gold, runner.gold().end.base_url, instant(world.now))
                allowed = (policy for policy in policies if policy.name == "with the details that prompts allow")
                for policy in allowed:
                    assert [run.verdict.explanation for run in runner.run(policy) if not run.verdict.success] == []
            if created:
                break
    assert created
