"""Supervised fine-tuning on successful episodes: of rollout files, or of the reference solutions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from pydantic import Field

import fhir_gym
from fhir_gym.agents import GoldAgent
from fhir_gym.errors import TrainingError
from fhir_gym.rollouts import Rollout, Selection, read_rollouts
from fhir_gym.training.examples import Example, batches, make_example, require_trainable
from fhir_gym.training.policy_rollouts import Progress, evaluate, evaluation_names, no_progress
from fhir_gym.training.report import write_report
from fhir_gym.training.run_folder import RunFolder
from fhir_gym.training.tuner import ModelConfig, Tuner


class SftConfig(ModelConfig):
    """Settings of supervised fine-tuning.

    A step is one update of the weights.

    Attributes:
        rollouts: Rollout files with the examples; empty for the reference solutions of the training variations.
        plain_letters: Whether the reference solutions have plain letters in URLs; see `GoldAgent`. Rollout files stay
            as they are.
        steps: Number of steps.
        evaluate_start: Whether to evaluate the model before training, as a reference.
    """

    rollouts: tuple[str, ...] = ()
    plain_letters: bool = False
    steps: int = Field(default=100, ge=1)
    evaluate_start: bool = True
    checkpoint_every: int = Field(default=20, ge=1)


def train_sft(config: SftConfig, out: str | Path, *, progress: Progress = no_progress) -> None:
    """Fine-tune a model; a killed run resumes from its last checkpoint.

    Args:
        config: The settings.
        out: The run folder. Its subfolder ``model`` has the trained model, which `LocalAgent` can load.
        progress: Shows the progress.

    Raises:
        TrainingError: There are no examples, or a rollout has a test variation.
        MissingExtraError: A package is missing.
    """
    with RunFolder(out, recipe="sft", config=config) as folder:
        tuner = Tuner(config, steps=config.steps)
        examples = make_examples(config, tuner, training_rollouts(config))
        last = folder.latest_checkpoint()
        if last is not None:
            tuner.load(last.path)
        elif config.evaluate_start:
            _evaluate(config, folder, tuner, progress)
        for batch in islice(batches(examples, config.batch_size, config.seed), tuner.done, config.steps):
            loss = tuner.step(batch)
            step = tuner.done
            tokens = sum(len(example.ids) for example in batch)
            folder.log(step, {"loss": round(loss, 6), "examples": step * config.batch_size, "tokens": tokens})
            progress(step, config.steps, f"loss {loss:.3f}")
            if step == config.steps or (config.evaluate_every and step % config.evaluate_every == 0):
                _evaluate(config, folder, tuner, progress)
            if step == config.steps or step % config.checkpoint_every == 0:
                folder.save_checkpoint(step, tuner.save)
        tuner.export(folder.path / "model")
    write_report([out])


def _evaluate(config: SftConfig, folder: RunFolder, tuner: Tuner, progress: Progress) -> None:
    model = tuner.trained_model("sft")  # the records do not depend on the folder's path
    for name in evaluation_names(config, tuner.done, config.steps):
        evaluate(
            config, folder, model, tuner.done, name=name, progress=lambda text: progress(tuner.done, config.steps, text)
        )


def training_rollouts(config: SftConfig) -> Iterator[Rollout]:
    """Yield the successful rollouts to train on: of the config's files, or of the reference solutions.

    Raises:
        ArgumentError: A rollout has a test variation.
    """
    names = config.train_tasks()
    if not config.rollouts:
        for env_id in config.env_ids:
            tasks = [name.task for name in names if name.env_id == env_id]
            if tasks:
                settings = config.settings() | {"split": "train"}
                agent = GoldAgent(plain_letters=config.plain_letters)
                yield from fhir_gym.run(env_id, agent, tasks=tasks, variations=config.train_variations, **settings)
        return
    for path in config.rollouts:
        for rollout in require_trainable(read_rollouts(path)):
            if (rollout.env_id, rollout.task.key) in names:
                yield rollout


def make_examples(config: ModelConfig, tuner: Tuner, rollouts: Iterable[Rollout]) -> list[Example]:
    """Return the examples of the successful rollouts without invalid actions, duplicates and overlong ones.

    Raises:
        TrainingError: No example remains.
    """
    selection, examples = Selection(), dict[Example, None]()
    for rollout in rollouts:
        if selection.refusal(rollout) is None:
            example = make_example(
                rollout,
                tuner.transformer,
                system=config.system,
                action_format=config.action_format,
                observation_chars=config.observation_chars,
            )
            if len(example.ids) <= config.max_tokens:
                examples[example] = None
    if not examples:
        raise TrainingError(
            f"there are no examples: no rollout of a training task is successful and has at most {config.max_tokens} "
            "tokens (max_tokens)"
        )
    return list(examples)
