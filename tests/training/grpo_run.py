"""Run GRPO on the tiny model, and kill the process after a step.

Usage: `python -m tests.training.grpo_run MODEL OUT STEP SHAPE`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.rollouts import Rollout
from fhir_gym.training.grpo import groups
from fhir_gym.training.grpo.config import GrpoConfig
from fhir_gym.training.grpo.policy import PolicyRollouts, play_choices
from fhir_gym.training.grpo.recipe import train_grpo
from fhir_gym.training.token_tree import TokenSequence


def make_config(model: str, **settings: Any) -> GrpoConfig:
    """A run of five steps, with a checkpoint every second step."""
    given: dict[str, Any] = {
        "model": model,
        "device": "cpu",
        "tasks": ("01", "02a"),
        "train": "0-9",
        "test": "1000",
        "steps": 5,
        "group_size": 2,
        "batch_size": 4,
        "micro_batch": 2,
        "learning_rate": 1e-3,
        "max_steps": 2,
        "max_new_tokens": 8,
        "observation_chars": 300,
        "checkpoint_every": 2,
        "evaluate_every": 3,
        "reward": "dense",
    }
    return GrpoConfig(**given | settings)


def rewards_by_tokens(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """Rewards that differ between the random texts of the tiny model, so that the weights change."""
    return [sum(ids) % 7 / 7 for ids in completion_ids]


async def play_with_rewards_by_tokens(*args: Any, **options: Any) -> list[Rollout]:
    """Like `play_choices`, with the rewards of `rewards_by_tokens`."""
    rollouts = await play_choices(*args, **options)
    rewards = rewards_by_tokens([TokenSequence.of(rollout, 0).completion_ids for rollout in rollouts])
    return [rollout.model_copy(update={"reward": reward}) for rollout, reward in zip(rollouts, rewards, strict=True)]


def main(model: str, out: str, last: int, shape: str) -> None:
    """Train, and kill the process when the step after the last step ends."""

    def progress(done: int, _: int, text: str) -> None:
        if done > last and "reward" in text:
            os.kill(os.getpid(), signal.SIGKILL)

    patch = pytest.MonkeyPatch()
    patch.setattr(PolicyRollouts, "rewards", staticmethod(rewards_by_tokens))
    patch.setattr(groups, "play_choices", play_with_rewards_by_tokens)
    train_grpo(make_config(model, shape=shape), Path(out), progress=progress)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
