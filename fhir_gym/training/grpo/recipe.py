"""GRPO on FHIR tasks with TRL: config, checkpoints, metrics and evaluations in a run folder."""

from __future__ import annotations

import copy
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents import Transformer
from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.errors import InfraError, MissingExtraError, TrainingError
from fhir_gym.training.curriculum import Curriculum, CurriculumRule, other_phrasings
from fhir_gym.training.diagnostics import TrainingEpisode, batch_metrics
from fhir_gym.training.evaluation import Evaluation, Outcome
from fhir_gym.training.grpo.episodes import INSTALL, EpisodeRows, OpenConfigs, RowShape
from fhir_gym.training.grpo.policy import PolicyRollouts, policy_transformer
from fhir_gym.training.grpo.tool_env import FHIRToolEnv
from fhir_gym.training.policy_rollouts import Progress, evaluate, evaluation_names, make_agent, no_progress
from fhir_gym.training.report import write_report
from fhir_gym.training.run_folder import RunFolder
from fhir_gym.training.tuner import ModelConfig, load_model, save_model

_LOGGED = ("loss", "grad_norm", "learning_rate", "entropy", "kl", "clip_ratio/region_mean")
"""Metrics of TRL that are logged."""
_TRL = 1, 16
"""The first version of TRL that the recipe was tested with."""
_STATE = "grpo.json"
"""File of a checkpoint with the state of the dataset and the counters of the run."""
_FAILED_BATCHES = 3
"""Number of consecutive batches without a graded episode after which training stops."""


class GrpoConfig(ModelConfig):
    """Settings of GRPO.

    A step is one update of the weights, on `batch_size` new episodes. `max_tokens` limits an episode in
    training: an episode that does not fit is truncated and graded.

    Attributes:
        shape: How TRL runs the episodes. ``rollout_func``: as `LocalAgent` does, by text or tools.
            ``environment_factory``: TRL runs the tool calls itself; needs a chat template that TRL can parse.
        protocol: ``text`` or ``tools``, for ``rollout_func``.
        steps: Number of steps.
        group_size: Number of episodes of a group, which are compared with each other.
        batch_size: Number of episodes in a step, a multiple of `group_size`.
        micro_batch: Number of episodes in one forward and backward pass; a divisor of `batch_size`.
        temperature: Sampling temperature in training.
        beta: Weight of the KL divergence from the start model; 0 for none.
        curriculum: How tasks are drawn; see `Curriculum`.
        held_out_phrasing: Index of a prompt wording, or ``brief``, that training never uses; None to use all.
        evaluate_start: Whether to evaluate the model before training, as a reference.
        trl: Further arguments of `trl.GRPOConfig`, such as ``loss_type``.
    """

    shape: RowShape = "rollout_func"
    protocol: ChatProtocol = "text"
    steps: int = Field(default=100, ge=1)
    group_size: int = Field(default=8, ge=2)
    batch_size: int = Field(default=16, ge=2)
    micro_batch: int = Field(default=4, ge=1)
    learning_rate: float = Field(default=5e-6, gt=0)
    warmup: int = Field(default=0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    beta: float = Field(default=0.0, ge=0)
    curriculum: CurriculumRule = "success"
    held_out_phrasing: Annotated[int, Field(ge=0)] | Literal["brief"] | None = None
    evaluate_start: bool = True
    checkpoint_every: int = Field(default=20, ge=1)
    trl: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        """Refuse sizes that do not divide each other, and arguments of TRL that the recipe sets."""
        if self.batch_size % self.group_size:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of group_size {self.group_size}")
        if self.batch_size % self.micro_batch:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of micro_batch {self.micro_batch}")
        taken = sorted(self.trl.keys() & _trl_arguments(self, Path(), cpu=True).keys())
        if taken:
            raise ValueError(f"trl must not contain {taken[0]!r}: the recipe sets it")
        return self


def train_grpo(config: GrpoConfig, out: str | Path, *, progress: Progress = no_progress) -> None:
    """Train a model with GRPO; a killed run resumes from its last checkpoint.

    Args:
        config: The settings.
        out: The run folder. Its subfolder ``model`` has the trained model, which `LocalAgent` can load.
        progress: Shows the progress.

    Raises:
        TrainingError: The config does not fit the run folder or the model, or several processes are used.
        InfraError: Several batches in a row had no graded episode.
        MissingExtraError: A package is missing.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TrainingError(
            "train_grpo uses one process; with several, build a GRPOTrainer from fhir_gym.training.grpo"
        )
    with RunFolder(out, recipe="grpo", config=config) as folder:
        _GrpoRun(config, folder, progress).train()
    write_report([out])


class _GrpoRun:
    """A run of GRPO in its folder; its `on_…` methods are the events of a transformers `TrainerCallback`."""

    def __init__(self, config: GrpoConfig, folder: RunFolder, progress: Progress) -> None:
        self._config, self._folder, self._progress = config, folder, progress
        self._episodes: list[TrainingEpisode] = []
        self._failed_batches = 0
        self._tokens = 0
        self._sampled: list[tuple[str, str, int, bool]] = []
        self._protocol: ChatProtocol = "tools" if config.shape == "environment_factory" else config.protocol

    def train(self) -> None:
        """Train from the last checkpoint to the end."""
        config, checkpoint = self._config, self._folder.latest_checkpoint()
        if checkpoint is not None and checkpoint.step >= config.steps:
            return
        rows = self._rows = EpisodeRows(_make_curriculum(config), config.shape, config.system)
        if checkpoint is not None:
            state = json.loads((checkpoint.path / _STATE).read_text("utf-8"))
            rows.load_state_dict(state["rows"])
            self._tokens = state["tokens"]
            self._sampled = [(env_id, task, variation, won) for env_id, task, variation, won in state["sampled"]]
        with OpenConfigs(reward=config.reward, max_steps=config.max_steps) as configs:
            trainer = self._trainer = self._make_trainer(configs)
            if checkpoint is None and config.evaluate_start:
                self._evaluate(0)
            with _without_noise():
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint.path))

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        """Count the episodes of the step; leave the weights unchanged if no episode has a reward."""
        if self._config.shape == "environment_factory":
            self._episodes = [env.result for env in self._trainer.environments]
        else:
            self._episodes = [TrainingEpisode.of(rollout) for rollout in self._policy.rollouts]
        for episode in self._episodes:
            if episode.graded:
                self._rows.curriculum.record(episode.task, bool(episode.success))
                self._sampled.append((*episode.task, episode.variation, bool(episode.success)))
        if any(episode.graded for episode in self._episodes):
            self._failed_batches = 0
            return
        model.zero_grad(set_to_none=True)  # the optimizer skips weights without a gradient
        self._failed_batches += 1
        if self._failed_batches >= _FAILED_BATCHES:
            error = next((episode.error for episode in self._episodes if episode.error), "")
            raise InfraError(f"no episode of the last {_FAILED_BATCHES} batches has a reward: {error}")

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        """Evaluate at intervals and after the last step, which also writes the trained model."""
        step, config = state.global_step, self._config
        last = step >= config.steps
        if last or (config.evaluate_every and step % config.evaluate_every == 0):
            self._evaluate(step)
            if self._sampled:  # the report shows their pass@k and reliability
                sampled = Evaluation.from_outcomes(Outcome(*outcome) for outcome in self._sampled)
                self._folder.log_evaluation(step, sampled, "train")
            self._sampled.clear()
        if last:
            model = self._trainer.accelerator.unwrap_model(self._trainer.model)
            if config.lora_rank:
                model = copy.deepcopy(model).merge_and_unload()
            save_model(model, self._trainer.processing_class, self._folder.path / "model")

    def on_log(self, _: Any, state: Any, *__: Any, logs: Mapping[str, Any], **___: Any) -> None:
        """Log the metrics of a step."""
        if "loss" not in logs:  # the summary after the last step
            return
        size = self._config.group_size
        groups = [self._episodes[start : start + size] for start in range(0, len(self._episodes), size)]
        metrics = batch_metrics(groups)
        self._tokens += sum(episode.tokens_written or 0 for episode in self._episodes)
        trl = {name: round(float(logs[name]), 8) for name in _LOGGED if logs.get(name) is not None}
        self._folder.log(state.global_step, metrics | trl | {"tokens": self._tokens})
        shown = f"reward {metrics['reward']:.3f}, success {metrics['success']:.2f}" if "reward" in metrics else "failed"
        self._progress(state.global_step, self._config.steps, shown)

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Move the checkpoint that the trainer has written into the run folder."""
        written = Path(args.output_dir, f"checkpoint-{state.global_step}")

        def write(path: Path) -> None:
            for file in written.iterdir():
                file.replace(path / file.name)
            state = {"rows": self._rows.state_dict(), "tokens": self._tokens, "sampled": self._sampled}
            (path / _STATE).write_text(json.dumps(state), "utf-8")

        self._folder.save_checkpoint(state.global_step, write)
        shutil.rmtree(args.output_dir, ignore_errors=True)

    def _evaluate(self, step: int) -> None:
        config = self._config
        for name in evaluation_names(config, step, config.steps):
            model = policy_transformer(self._trainer)
            evaluate(
                config,
                self._folder,
                model,
                step,
                name=name,
                protocol=self._protocol,
                progress=lambda text: self._progress(step, config.steps, text),
            )

    def _make_trainer(self, configs: OpenConfigs) -> Any:
        config, trl = self._config, _package("trl")
        if tuple(int(part) for part in version("trl").split(".")[:2]) < _TRL:
            raise TrainingError(f"GRPO needs TRL {'.'.join(map(str, _TRL))} or later, not {version('trl')}")
        _package("torch").set_num_threads(config.threads)
        model, tokenizer = load_model(config, config.dtype if config.lora_rank else "float32")
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if config.shape == "rollout_func":
            _keep_messages(model, tokenizer)
        output = self._folder.path / "trainer"
        shutil.rmtree(output, ignore_errors=True)
        groups = config.steps * (config.batch_size // config.group_size)
        options: dict[str, Any] = {"train_dataset": self._rows.dataset(groups), "processing_class": tokenizer}
        options |= self._episode_source(configs)
        if config.lora_rank:
            rank = config.lora_rank
            options["peft_config"] = _package("peft").LoraConfig(
                r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
            )
        with _without_noise():
            own = _trl_arguments(config, output, cpu=model.device.type == "cpu")
            try:
                arguments = trl.GRPOConfig(**own, **config.trl)
            except (TypeError, ValueError) as error:
                raise TrainingError(f"TRL refuses the config: {error}") from error
            trainer = trl.GRPOTrainer(model=model, args=arguments, callbacks=[self._callback()], **options)
        trainer.remove_callback(_package("transformers").PrinterCallback)
        if config.shape == "environment_factory":
            # Show the model the schemas that it reads in evaluations; TRL would derive them from the type hints.
            trainer._env_tools = {None: GRAMMAR.tools()}
        return trainer

    def _episode_source(self, configs: OpenConfigs) -> dict[str, Any]:
        """Return the arguments of the trainer that let it play episodes."""
        config = self._config
        if config.shape == "environment_factory":
            factory: Callable[[], FHIRToolEnv] = partial(
                FHIRToolEnv, configs, observation_chars=config.observation_chars
            )
            return {"environment_factory": factory}
        self._policy = PolicyRollouts(
            configs,
            lambda model: make_agent(
                config, model, config.temperature, protocol=self._protocol, context_tokens=config.max_tokens
            ),
            config.seed,
        )
        return {"rollout_func": self._policy, "reward_funcs": self._policy.rewards}

    def _callback(self) -> Any:
        """Return a callback of the trainer with the events of this object."""
        base = _package("transformers").TrainerCallback
        events = {name: getattr(self, name) for name in dir(self) if name.startswith("on_")}
        return type("RunFolderCallback", (base,), {name: staticmethod(event) for name, event in events.items()})()


def _trl_arguments(config: GrpoConfig, output: Path, *, cpu: bool) -> dict[str, Any]:
    """Return the arguments of `trl.GRPOConfig` that the recipe sets."""
    return {
        "output_dir": str(output),
        "max_steps": config.steps,
        "num_generations": config.group_size,
        "per_device_train_batch_size": config.micro_batch,
        "gradient_accumulation_steps": config.batch_size // config.micro_batch,
        "steps_per_generation": config.batch_size // config.micro_batch,
        "num_iterations": 1,  # the recipe counts the episodes of each step
        "max_completion_length": config.max_tokens,
        "max_tool_calling_iterations": config.max_steps or 30,
        "temperature": config.temperature,
        "beta": config.beta,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": config.warmup,
        "seed": config.seed,
        "shuffle_dataset": False,
        "bf16": config.dtype == "bfloat16",
        "use_cpu": cpu,
        "save_strategy": "steps",
        "save_steps": config.checkpoint_every,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }


def _keep_messages(model: Any, tokenizer: Any) -> None:
    """Replace a chat template that changes earlier messages by TRL's template for training."""
    transformer = Transformer.around(model, tokenizer)
    chat: list[dict[str, Any]] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    before = transformer.render(chat, tools=False, answer=False)
    if not transformer.render([*chat, chat[0]], tools=False).startswith(before):
        try:
            tokenizer.chat_template = import_module("trl.chat_template_utils").get_training_chat_template(tokenizer)
        except ValueError as error:
            raise TrainingError(
                "the chat template changes earlier messages, and TRL has no template for training that replaces it; "
                "save the model with a chat template that keeps them"
            ) from error


@contextmanager
def _without_noise() -> Iterator[None]:
    """Hide warnings of the training libraries, such as that TRL calls both shapes experimental, and progress bars."""
    logging = _package("transformers").utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _make_curriculum(config: GrpoConfig) -> Curriculum:
    tasks, held_out = config.train_tasks(), config.held_out_phrasing
    return Curriculum(
        tasks,
        config.train_variations,
        phrasings=None if held_out is None else other_phrasings(tasks, held_out),
        held_out=config.held_out_tasks(),
        rule=config.curriculum,
        seed=config.seed,
    )


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"GRPO needs the package {name}: {INSTALL}") from error
