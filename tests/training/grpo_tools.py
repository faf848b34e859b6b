"""Helpers of the GRPO tests: a tiny model, a TRL trainer without a disk, and a scripted model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.agents import Transformer
from fhir_gym.agents.transformer import Prompt, Sample
from fhir_gym.training.config import TaskName
from fhir_gym.training.curriculum import Curriculum

ENV_ID = "FHIRAgent/Appointment-v0"
END = "<|im_end|>"
NAMES = [TaskName(ENV_ID, key) for key in ("01", "02a", "05")]


def load_tiny(folder: str, template: str | None = None) -> tuple[Any, Any]:
    """The tiny model and its tokenizer, with one of TRL's chat templates if one is named."""
    transformers: Any = import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if template is not None:
        home = Path(str(import_module("trl").__file__)).parent
        tokenizer.chat_template = (home / "chat_templates" / template).read_text("utf-8")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32"), tokenizer


def make_trainer(folder: str, out: Path, dataset: Any, *, template: str | None = None, **arguments: Any) -> Any:
    """A trainer of one step on a batch of four episodes in groups of two; it saves nothing."""
    trl: Any = import_module("trl")
    model, tokenizer = load_tiny(folder, template)
    own = {
        name: arguments.pop(name) for name in ("reward_funcs", "rollout_func", "environment_factory") & arguments.keys()
    }
    config = {
        "output_dir": str(out),
        "max_steps": 1,
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "max_completion_length": 20_000,
        "learning_rate": 1e-3,
        "shuffle_dataset": False,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "logging_steps": 1,
    }
    trainer = trl.GRPOTrainer(
        model=model, args=trl.GRPOConfig(**config | arguments), train_dataset=dataset, processing_class=tokenizer, **own
    )
    return trainer


def capture(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the scored batches of a trainer: ids, masks and advantages."""
    batches: list[dict[str, Any]] = []
    score = trainer._generate_and_score_completions

    def recorded(inputs: Any) -> Any:
        batches.append({"inputs": inputs} | score(inputs))
        return batches[-1]

    monkeypatch.setattr(trainer, "_generate_and_score_completions", lambda inputs: _without(recorded(inputs), "inputs"))
    return batches


def _without(batch: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in batch.items() if key != name}


def said_texts(batch: Mapping[str, Any], tokenizer: Any) -> list[str]:
    """For each row of a batch, the tokens that the loss counts, as text."""
    mask = batch["completion_mask"] * batch["tool_mask"]
    return [tokenizer.decode(ids[own.bool()]) for ids, own in zip(batch["completion_ids"], mask, strict=True)]


def script(monkeypatch: pytest.MonkeyPatch, texts: Sequence[Sequence[str]]) -> None:
    """Let the model in each conversation of a batch write these texts, in the order of the batch."""
    turns: dict[int, list[str]] = {}

    def sample(self: Transformer, prompts: Sequence[Prompt], **_: Any) -> list[Sample]:
        samples = []
        for prompt in prompts:
            seed = prompt.generator.initial_seed()
            if seed not in turns:
                turns[seed] = list(texts[len(turns) % len(texts)])
            ids = self.encode(turns[seed].pop(0))
            samples.append(Sample(ids, [-0.5] * len(ids), ids[-1] in self.ends))
        return samples

    monkeypatch.setattr(Transformer, "sample", sample)


def make_curriculum(seed: int = 0, **settings: Any) -> Curriculum:
    """A curriculum over three tasks."""
    return Curriculum(settings.pop("tasks", NAMES), range(5), seed=seed, **settings)


def weights(model: Any) -> dict[str, Any]:
    """A copy of the model's weights."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
