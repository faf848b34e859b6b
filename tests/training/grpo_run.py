"""Run GRPO on the tiny model, and kill the process after a step: `python -m tests.training.grpo_run MODEL OUT STEP`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.training.grpo.policy import PolicyRollouts
from fhir_gym.training.grpo.recipe import GrpoConfig, train_grpo


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


def main(model: str, out: str, last: int) -> None:
    """Train, and kill the process when the step after the last step ends."""

    def progress(done: int, _: int, text: str) -> None:
        if done > last and "reward" in text:
            os.kill(os.getpid(), signal.SIGKILL)

    pytest.MonkeyPatch().setattr(PolicyRollouts, "rewards", staticmethod(rewards_by_tokens))
    train_grpo(make_config(model), Path(out), progress=progress)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
