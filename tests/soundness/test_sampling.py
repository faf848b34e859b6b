"""Tests of the samples of policies for long tasks."""

from __future__ import annotations

from fhir_gym.soundness.policy_runner import Policy, script
from fhir_gym.soundness.task_check import MOST_ACTIONS, sampled

STEPS = MOST_ACTIONS // 20
POLICIES = [
    *(Policy("neighbour's value", f"PUT Slot: start = {number}", script(())) for number in range(500)),
    *(Policy("neighbour's value", f"PUT Slot: {name} = 1", script(())) for name in "abc"),
    *(Policy("missing value", f"PUT Slot: without {name}", script(())) for name in "abc"),
]


def names(seed: str, steps: int = STEPS) -> list[str]:
    return [policy.name for policy in sampled(POLICIES, steps, seed)]


def test_short_tasks_try_everything() -> None:
    assert names("a", steps=1) == [policy.name for policy in POLICIES]


def test_a_sample_of_a_group_has_all_kinds() -> None:
    chosen = names("a")
    assert len(chosen) == 20 + 3
    assert {"PUT Slot: a = 1", "PUT Slot: b = 1", "PUT Slot: c = 1"} <= set(chosen)
    assert chosen == sorted(chosen, key=[policy.name for policy in POLICIES].index)


def test_samples_depend_on_the_seed_alone() -> None:
    assert names("a") == names("a")
    assert len({name for seed in range(100) for name in names(str(seed))}) > len(names("a")) * 10


def test_very_long_tasks_try_some() -> None:
    assert len(names("a", steps=10**6)) == 8 + 3


def test_answers_are_sampled() -> None:
    many = tuple((f"answer {number}", [number]) for number in range(100))
    (policy,) = sampled([Policy("wrong answer", "no answer", script(()), many)], STEPS, "a")
    assert len(policy.answers) == 20
