"""Expert iteration: a model attempts tasks and is fine-tuned on its own successes, round after round."""

from __future__ import annotations

import json
import math
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fhir_gym.errors import TrainingError
from fhir_gym.evaluation import without_variance
from fhir_gym.files import write_file
from fhir_gym.rollouts import EpisodeSpec, Rollout, Selection, read_rollouts
from fhir_gym.training.config import TaskName
from fhir_gym.training.curriculum import Curriculum, CurriculumRule
from fhir_gym.training.evaluation import Evaluation
from fhir_gym.training.examples import Example, batches
from fhir_gym.training.policy_rollouts import (
    Progress,
    evaluate,
    evaluation_names,
    make_agent,
    no_progress,
    require_graded,
    roll_out,
)
from fhir_gym.training.report import write_report
from fhir_gym.training.run_folder import RunFolder
from fhir_gym.training.sft import make_examples
from fhir_gym.training.tuner import ModelConfig, Tuner

_LOGGED = ("steps", "invalid_rate", "truncated", "tokens_read", "tokens_written")
"""Metrics of the attempts in ``metrics.jsonl``."""


class ExpertConfig(ModelConfig):
    """Settings of expert iteration.

    A step is one round: attempts at training variations, fine-tuning on the successes, evaluation.

    Attributes:
        rounds: Number of rounds.
        prompts: Number of variations that the model tries in a round.
        samples: Number of attempts at each of them.
        temperature: Sampling temperature of the attempts.
        curriculum: ``uniform``, or ``success`` to draw tasks that succeed about half of the time more often.
        kept_per_variation: Maximum number of successes of one variation to train on.
        kept_per_task: Maximum number of successes of one task to train on in a round; None for no limit. Variations
            that fail more often come first.
        train_on: ``"all"`` successes so far, or those of the ``"last"`` round.
        start_from: The model that a round fine-tunes: the one of the config (``"start"``) or of the ``"last"`` round.
        epochs: Number of times that a round trains on each success.
        checkpoint_updates: Number of weight updates between checkpoints inside a round; 0 for none.
        evaluate_start: Whether to evaluate the model before training, as a reference.
    """

    rounds: int = Field(default=3, ge=1)
    prompts: int = Field(default=64, ge=1)
    samples: int = Field(default=4, ge=1)
    temperature: float = Field(default=0.8, gt=0)
    curriculum: CurriculumRule = "uniform"
    kept_per_variation: int = Field(default=1, ge=1)
    kept_per_task: int | None = Field(default=None, ge=1)
    train_on: Literal["all", "last"] = "all"
    start_from: Literal["start", "last"] = "last"
    epochs: float = Field(default=2.0, gt=0)
    checkpoint_updates: int = Field(default=0, ge=0)
    evaluate_every: int = Field(default=1, ge=0)
    evaluate_start: bool = True


@dataclass(slots=True)
class _State:
    """How far a run was when a checkpoint was saved.

    Attributes:
        rounds: Number of complete rounds.
        in_round: Whether the checkpoint has the tuner of the next round, which had started to train.
        curriculum: State of the curriculum before the next round; None before the first round.
    """

    rounds: int = 0
    in_round: bool = False
    curriculum: dict[str, Any] | None = None


def train_expert(config: ExpertConfig, out: str | Path, *, progress: Progress = no_progress) -> None:
    """Improve a model by expert iteration; a killed run resumes, also in the middle of a round.

    Args:
        config: The settings.
        out: The run folder. Its subfolder ``model`` has the trained model, which `LocalAgent` can load.
        progress: Shows the progress.

    Raises:
        TrainingError: The model had no success in a round.
        InfraError: No attempt of a round, or no episode of an evaluation, has a verdict.
        MissingExtraError: A package is missing.
    """
    with RunFolder(out, recipe="expert", config=config) as folder:
        run = _ExpertRun(config, folder, progress)
        run.evaluate_start()
        while run.state.rounds < config.rounds:
            run.train_round()
        run.finish()
    write_report([out])


class _ExpertRun:
    """A run of expert iteration in its folder."""

    def __init__(self, config: ExpertConfig, folder: RunFolder, progress: Progress) -> None:
        self._config, self._folder, self._progress = config, folder, progress
        self.state, self._checkpoint = _State(), folder.latest_checkpoint()
        if self._checkpoint is not None:
            self.state = _State(**json.loads((self._checkpoint.path / "state.json").read_text("utf-8")))

    def evaluate_start(self) -> None:
        """Evaluate the model before the first round."""
        if self._checkpoint is None and self._config.evaluate_start:
            self._evaluate(Tuner(self._config, steps=1), 0)

    def train_round(self) -> None:
        """Perform the next round."""
        number, config = self.state.rounds, self._config
        curriculum = self._curriculum()
        rollouts = self._attempt(curriculum)
        require_graded(rollouts)
        kept = _keep(rollouts, config)
        write_file(self._kept_file(number), "".join(rollout.line() + "\n" for rollout in kept), TrainingError)
        tuner = Tuner(config, model=self._model(0 if config.start_from == "start" else number), steps=0)
        rounds = range(number + 1) if config.train_on == "all" else (number,)
        successes = [rollout for round_number in rounds for rollout in read_rollouts(self._kept_file(round_number))]
        if not successes:
            raise TrainingError(
                f"the model had no success in round {number + 1}: start from a model that solves some episodes "
                "(fine-tune it with `fhir-gym train sft`), or raise samples or prompts"
            )
        examples = make_examples(config, tuner, successes)
        tuner.steps = max(1, math.ceil(len(examples) * config.epochs / config.batch_size))
        if self.state.in_round and self._checkpoint is not None:
            tuner.load(self._checkpoint.path)
        else:
            self._log_attempts(rollouts, len(kept), len(examples))
        self._fine_tune(tuner, examples)
        if number + 1 == config.rounds or (config.evaluate_every and (number + 1) % config.evaluate_every == 0):
            self._evaluate(tuner, number + 1)
        for rollout in rollouts:
            if rollout.graded:
                curriculum.record(TaskName(rollout.env_id, rollout.task.key), bool(rollout.success))
        tuner.export(self._model_folder(number + 1))
        self.state = _State(number + 1, False, curriculum.state_dict())
        self._save()
        shutil.rmtree(self._model_folder(number), ignore_errors=True)

    def finish(self) -> None:
        """Move the model of the last round to its place."""
        last = self._model_folder(self.state.rounds)
        if last.exists():
            shutil.rmtree(self._folder.path / "model", ignore_errors=True)
            last.replace(self._folder.path / "model")
        shutil.rmtree(self._folder.path / "models", ignore_errors=True)

    def _attempt(self, curriculum: Curriculum) -> list[Rollout]:
        """Let the current model perform the attempts of a round."""
        number, config = self.state.rounds, self._config
        model = Tuner(config, model=self._model(number), steps=1).trained_model(f"round-{number}")
        episodes = [
            (name, EpisodeSpec(name.task, variation, repeat))
            for name, variation in _draw(curriculum, config.prompts)
            for repeat in range(config.samples)
        ]
        path = self._folder.path / "rollouts" / f"attempts-{number:03d}-{model.fingerprint()}.jsonl"
        agent = make_agent(config, model, config.temperature)
        shown = f"round {number + 1}: attempt"
        return roll_out(
            config,
            agent,
            episodes,
            path,
            seed=config.seed + number,
            on_rollout=lambda done: self._progress(number, config.rounds, f"{shown} {done} of {len(episodes)}"),
        )

    def _log_attempts(self, rollouts: Sequence[Rollout], kept: int, examples: int) -> None:
        step = self.state.rounds + 1
        attempts = Evaluation.from_rollouts(rollouts)
        self._folder.log_evaluation(step, attempts, "train")
        metrics = {
            "attempts": attempts.episodes,
            "attempts_success": round(attempts.success, 6),
            "attempts_not_graded": attempts.not_graded,
            "solved_variations": round(
                sum(task_attempts.successes > 0 for task_attempts in attempts.attempts) / len(attempts.attempts), 6
            ),
            "kept": kept,
            "examples": examples,
            **{name: value for name, value in attempts.metrics.items() if name in _LOGGED},
        }
        constant = without_variance(attempts.attempts)
        self._folder.log(step, metrics | ({} if constant is None else {"groups_without_variance": constant}))

    def _fine_tune(self, tuner: Tuner, examples: Sequence[Example]) -> None:
        number, config = self.state.rounds, self._config
        losses: list[float] = []
        for batch in islice(batches(examples, config.batch_size, config.seed + number), tuner.done, tuner.steps):
            losses.append(tuner.step(batch))
            done = tuner.done
            text = f"round {number + 1}: update {done} of {tuner.steps}, loss {losses[-1]:.3f}"
            self._progress(number, config.rounds, text)
            if config.checkpoint_updates and done % config.checkpoint_updates == 0 and done < tuner.steps:
                self.state.in_round = True
                self._save(tuner)
        tokens = sum(len(example.ids) for example in examples)
        metrics = {"updates": tuner.done, "tokens_of_examples": tokens}
        self._folder.log(number + 1, metrics | ({"loss": round(losses[-1], 6)} if losses else {}))

    def _evaluate(self, tuner: Tuner, step: int) -> None:
        config = self._config
        model = tuner.trained_model(f"round-{step}")
        for name in evaluation_names(config, step, config.rounds):
            evaluate(
                config,
                self._folder,
                model,
                step,
                name=name,
                progress=lambda text: self._progress(step, config.rounds, text),
            )

    def _curriculum(self) -> Curriculum:
        config = self._config
        curriculum = Curriculum(config.train_tasks(), config.train_variations, rule=config.curriculum, seed=config.seed)
        if self.state.curriculum is not None:
            curriculum.load_state_dict(self.state.curriculum)
        return curriculum

    def _save(self, tuner: Tuner | None = None) -> None:
        def write(path: Path) -> None:
            (path / "state.json").write_text(json.dumps(asdict(self.state)), "utf-8")
            if tuner is not None:
                tuner.save(path)

        self._folder.save_checkpoint(self.state.rounds, write)

    def _model(self, rounds: int) -> Path | None:
        """Return the folder of the model after some rounds; None for the model of the config."""
        return self._model_folder(rounds) if rounds else None

    def _model_folder(self, rounds: int) -> Path:
        return self._folder.path / "models" / f"round-{rounds:03d}"

    def _kept_file(self, number: int) -> Path:
        return self._folder.path / "rollouts" / f"kept-{number:03d}.jsonl"


def _draw(curriculum: Curriculum, count: int) -> list[tuple[TaskName, int]]:
    """Draw different pairs of task and variation; fewer than `count` if there are not enough."""
    count = min(count, len(curriculum.tasks) * len(curriculum.variations))
    drawn: dict[tuple[TaskName, int], None] = {}
    while len(drawn) < count:
        choice = curriculum.draw()
        drawn[choice.name, choice.variation] = None
    return list(drawn)


def _keep(rollouts: Sequence[Rollout], config: ExpertConfig) -> list[Rollout]:
    """Return the successes to train on, without duplicates and within the limits per variation and per task."""
    selection = Selection()
    groups: dict[tuple[str, str, int], list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.graded:
            groups[rollout.env_id, rollout.task.key, rollout.task.variation].append(rollout)
    chosen: dict[TaskName, list[tuple[float, list[Rollout]]]] = defaultdict(list)
    for (env_id, task, _), group in groups.items():
        different = {
            tuple(turn.action for turn in rollout.turns): rollout
            for rollout in group
            if selection.refusal(rollout) is None
        }
        rate = sum(bool(rollout.success) for rollout in group) / len(group)
        chosen[TaskName(env_id, task)].append((rate, list(different.values())[: config.kept_per_variation]))
    kept: list[Rollout] = []
    for ranked in chosen.values():
        ranked.sort(key=lambda item: item[0])  # variations that fail more often first
        kept += [rollout for _, several in ranked for rollout in several][: config.kept_per_task]
    return kept
