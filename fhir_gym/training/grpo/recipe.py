"""GRPO on FHIR tasks: with TRL, or with our own update for small models."""

from __future__ import annotations

import copy
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents import Transformer
from fhir_gym.errors import TrainingError, missing_extra
from fhir_gym.training.diagnostics import TrainingEpisode
from fhir_gym.training.grpo.config import GrpoConfig, trl_arguments
from fhir_gym.training.grpo.episodes import INSTALL, EpisodeRows, OpenConfigs
from fhir_gym.training.grpo.groups import GroupRun
from fhir_gym.training.grpo.policy import PolicyRollouts, policy_transformer
from fhir_gym.training.grpo.run import GrpoRun
from fhir_gym.training.grpo.tool_env import FHIRToolEnv
from fhir_gym.training.policy_rollouts import Progress, make_agent, no_progress
from fhir_gym.training.report import write_report
from fhir_gym.training.run_folder import RunFolder
from fhir_gym.training.tuner import load_model, save_model

_LOGGED = ("loss", "grad_norm", "learning_rate", "entropy", "kl", "clip_ratio/region_mean")
"""Metrics of TRL that are logged."""
_TRL = 1, 16
"""The first version of TRL that the recipe was tested with."""


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
    run = GroupRun if config.shape == "groups" else _TrlRun
    with RunFolder(out, recipe="grpo", config=config) as folder:
        run(config, folder, progress).train()
    write_report([out])


class _TrlRun(GrpoRun):
    """A run with TRL; its `on_…` methods are the events of a transformers `TrainerCallback`."""

    def train(self) -> None:
        """Train from the last checkpoint to the end."""
        config, checkpoint = self._config, self._folder.latest_checkpoint()
        if checkpoint is not None and checkpoint.step >= config.steps:
            return
        assert config.shape != "groups"
        rows = self._rows = EpisodeRows(self._curriculum, config.shape, config.system)
        if checkpoint is not None:
            rows.load_state_dict(self._restore(checkpoint.path)["rows"])
        with OpenConfigs(**config.settings()) as configs:
            trainer = self._trainer = self._make_trainer(configs)
            if checkpoint is None and config.evaluate_start:
                self._evaluate(0, policy_transformer(trainer))
            with _without_noise():
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint.path))

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        """Count the episodes of the step; leave the weights unchanged if no episode has a reward."""
        if self._config.shape == "environment_factory":
            self._episodes = [env.result for env in self._trainer.environments]
        else:
            self._episodes = [TrainingEpisode.of(rollout) for rollout in self._policy.rollouts]
        if not self._count(self._episodes):
            model.zero_grad(set_to_none=True)  # the optimizer skips weights without a gradient

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        """Evaluate at intervals and after the last step, which also writes the trained model."""
        step, config = state.global_step, self._config
        if self._is_evaluated(step):
            self._evaluate(step, policy_transformer(self._trainer))
            self._log_sampled(step)
        if step >= config.steps:
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
        trl = {name: round(float(logs[name]), 8) for name in _LOGGED if logs.get(name) is not None}
        self._log(state.global_step, groups, trl)

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Move the checkpoint that the trainer has written into the run folder."""
        written = Path(args.output_dir, f"checkpoint-{state.global_step}")

        def write(path: Path) -> None:
            for file in written.iterdir():
                file.replace(path / file.name)
            self._store(path, rows=self._rows.state_dict())

        self._folder.save_checkpoint(state.global_step, write)
        shutil.rmtree(args.output_dir, ignore_errors=True)

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
            own = trl_arguments(config, output, cpu=model.device.type == "cpu")
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
            configs, lambda model: make_agent(config, model, config.temperature, protocol=self._protocol), config.seed
        )
        return {"rollout_func": self._policy, "reward_funcs": self._policy.rewards}

    def _callback(self) -> Any:
        """Return a callback of the trainer with the events of this object."""
        base = _package("transformers").TrainerCallback
        events = {name: getattr(self, name) for name in dir(self) if name.startswith("on_")}
        return type("RunFolderCallback", (base,), {name: staticmethod(event) for name, event in events.items()})()


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


def _package(name: str) -> Any:
    with missing_extra(f"GRPO needs the package {name}: {INSTALL}"):
        return import_module(name)
