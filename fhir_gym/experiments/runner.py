"""Run an experiment: train the memories that its configurations need, and test each configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fhir_gym import worlds
from fhir_gym.agents import Agent, make_agent
from fhir_gym.agents.factory import CONFIGURATIONS, Configuration, chat_settings
from fhir_gym.errors import TrainingBudgetError
from fhir_gym.experiments.folder import (
    ROLES,
    ExperimentFolder,
    ExperimentStatus,
    ModelPrices,
    experiment_status,
    memory_file,
    rollout_file,
    tracker_of,
)
from fhir_gym.experiments.manifest import ExperimentConfig, Manifest, own_agent
from fhir_gym.fhir import World
from fhir_gym.reflexion import MemoryTrainingConfig, ModelSettings, train_memory
from fhir_gym.rollouts import BudgetTracker, Rollout, RunPlan, plan, run_plan, write_rollouts
from fhir_gym.tasks import get_pack

Progress = Callable[[int, int, str], None]
"""Function that gets the number of finished episodes of a phase, the number of all its episodes, and a text."""


def run_experiment(
    config: ExperimentConfig,
    out: str | Path,
    *,
    concurrency: int = 8,
    max_tokens: int | None = None,
    max_cost: float | None = None,
    prices: ModelPrices | None = None,
    progress: Progress = lambda done, total, text: None,
) -> ExperimentStatus:
    """Run an experiment, or the part of it that is not yet in its folder.

    Each memory is trained when the first configuration that reads it is tested. Every finished episode is on disk at
    once, so that the same call continues the experiment after a kill at any moment.

    Args:
        config: The experiment's settings.
        out: The experiment's folder.
        concurrency: Number of episodes that run at the same time.
        max_tokens: No new episode starts after the experiment has used this many tokens in all its runs.
        max_cost: No new episode starts after the experiment has cost this much in all its runs.
        prices: Prices of the models' tokens, which `max_cost` needs.
        progress: Function that receives the progress of the current phase.

    Returns:
        How far the experiment is.

    Raises:
        ExperimentError: The folder holds another experiment, or an argument is invalid.
        EndpointError: An endpoint is misconfigured or does not answer.
        FhirGymError: The training of a memory failed.
    """
    prices = prices or ModelPrices()
    with ExitStack() as stack:
        opened = _open_worlds(config, stack)
        folder = stack.enter_context(ExperimentFolder(out, Manifest.of(config, opened)))
        tracker = tracker_of(folder.path, folder.manifest, max_tokens, max_cost, prices)
        run = _ExperimentRun(config, folder, opened, tracker, prices, concurrency, progress)
        for configuration in config.chosen:
            if not run.test(configuration):
                break
    return experiment_status(out, prices)


def _open_worlds(config: ExperimentConfig, stack: ExitStack) -> dict[str, World]:
    """Open the world of each pack."""
    by_name: dict[str, World] = {}
    for env_id in config.packs:
        name = get_pack(env_id).world
        if name not in by_name:
            by_name[name] = stack.enter_context(worlds.load(name))
    return {env_id: by_name[get_pack(env_id).world] for env_id in config.packs}


@dataclass(frozen=True, slots=True)
class _ExperimentRun:
    """One call of `run_experiment`."""

    config: ExperimentConfig
    folder: ExperimentFolder
    worlds: Mapping[str, World]
    tracker: BudgetTracker
    prices: ModelPrices
    concurrency: int
    progress: Progress

    def test(self, configuration: Configuration) -> bool:
        """Run the missing test episodes of a configuration.

        Returns:
            Whether the next configuration can be tested: the budget is not used up, and not every episode failed
            without a verdict, as episodes do when the endpoint is down.
        """
        if configuration.memory is not None and not self._train(configuration.memory):
            return False
        agent = self._agent(configuration) if self.config.agent == "chat" else own_agent(self.config)
        file = rollout_file(self.folder.path, configuration.name)
        missing = [
            pack_plan.unfinished(file, agent, self.worlds[pack_plan.config.env_id]) for pack_plan in self._plans()
        ]
        total = sum(len(pack_plan.episodes) for pack_plan in missing)
        outcomes: list[bool] = []
        for pack_plan in missing:
            running = run_plan(pack_plan, agent, concurrency=self.concurrency, budget=self.tracker)
            write_rollouts(file, self._watched(running, configuration.name, outcomes, total))
        return len(outcomes) == total and (any(outcomes) or not outcomes)

    def _plans(self) -> Iterator[RunPlan]:
        part = self.config.definition.test
        for env_id in self.config.packs:
            keys = self.config.keys(part, env_id)
            if keys:
                yield plan(
                    env_id,
                    tasks=keys,
                    variations=part.variations,
                    phrasing=part.phrasing,
                    repeats=self.config.run_count,
                    seed=self.config.seed,
                    world=self.worlds[env_id],
                    grading=self.config.grading,
                    max_steps=self.config.max_steps,
                )

    def _watched(self, rollouts: Iterator[Rollout], name: str, outcomes: list[bool], total: int) -> Iterator[Rollout]:
        """Yield rollouts, and collect whether they have a verdict."""
        self.progress(len(outcomes), total, name)
        for rollout in rollouts:
            outcomes.append(rollout.graded)
            yield rollout
            self.progress(len(outcomes), total, name)

    def _agent(self, configuration: Configuration, model: str | None = None, base_url: str | None = None) -> Agent:
        memory = None if configuration.memory is None else memory_file(self.folder.path, configuration.memory)
        settings: dict[str, Any] = {**chat_settings(configuration, memory), **self.config.settings}
        return make_agent(
            "chat", model=model or self.config.model, base_url=base_url or self.config.base_url, **settings
        )

    def _train(self, name: str) -> bool:
        """Train a memory, or read it if it is trained; return False if the budget is used up."""
        config, file = self.config, memory_file(self.folder.path, name)
        model, base_url = config.training_models["trainer"], config.training_base_url or config.base_url
        try:
            memory = train_memory(
                self._training_config(name, base_url),
                file,
                episodes=list(config.episodes(config.definition.train)),
                agent=self._agent(CONFIGURATIONS["baseline"], model, base_url),
                progress=lambda done, total, text: self.progress(done, total, f"memory {name}: {text}"),
                budget=self.tracker,
                prices={role: self.prices.of(config.training_models[trainer]) for role, trainer in ROLES.items()},
            )
        except TrainingBudgetError:
            return False
        self.folder.save_memory(name, memory)
        return True

    def _training_config(self, name: str, base_url: str | None) -> MemoryTrainingConfig:
        config = self.config
        models = {
            role: {"model": config.training_models[ROLES[role]], "base_url": base_url, **settings}
            for role, settings in (
                ("agent", _model_settings(config.settings)),
                ("evaluator", config.training_settings),
                ("reflector", config.training_settings),
            )
        }
        settings: dict[str, Any] = {
            **models,
            "specification": name == "spec",
            "env_ids": config.packs,
            "tasks": config.tasks,
            "max_steps": config.max_steps,
            "seed": config.seed,
            "concurrency": self.concurrency,
            "embedder": config.embedder,
        }
        return MemoryTrainingConfig.model_validate(settings)


def _model_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings of the chat agent that every model of the training takes."""
    return {name: value for name, value in settings.items() if name in ModelSettings.model_fields}
