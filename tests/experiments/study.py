"""A scripted study: experiments against a chat server whose simulated model learns from reflections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fhir_gym.errors import ArgumentError
from fhir_gym.experiments import ExperimentConfig
from fhir_gym.experiments.manifest import EpisodeName
from fhir_gym.fhir import World
from fhir_gym.rollouts import read_rollouts
from fhir_gym.tasks import EXPERIMENTS
from fhir_gym.testing import ChatServer, StudyModel


def study_model(world: World, **choice: Any) -> StudyModel:
    """Return a simulated model that knows the episodes of all experiments with some tasks of some packs."""
    known: dict[EpisodeName, None] = {}
    for name in EXPERIMENTS:
        try:
            config = ExperimentConfig(name, "scripted", ("baseline",), **choice)
        except ArgumentError:  # none of the tasks is held out
            continue
        for part in (config.definition.train, config.definition.test):
            known |= dict.fromkeys(config.episodes(part))
    packs = {episode[0] for episode in known}
    return StudyModel({env_id: world for env_id in packs}, known)


def config_of(server: ChatServer, experiment: str, configurations: tuple[str, ...], **choice: Any) -> ExperimentConfig:
    """Return the settings of an experiment with the simulated model."""
    settings = {"seed": 0, "backoff": 0.01} | choice.pop("settings", {})
    return ExperimentConfig(
        experiment, "scripted", configurations, base_url=server.base_url, settings=settings, **choice
    )


def results(folder: Path) -> dict[str, list[str] | bytes]:
    """Return everything in an experiment's folder that must not depend on kills or concurrency."""
    found: dict[str, list[str] | bytes] = {"manifest": (folder / "manifest.json").read_bytes()}
    for file in sorted(folder.glob("rollouts/*.jsonl")):
        found[file.name] = sorted(rollout.line(timings=False) for rollout in read_rollouts(file))
    for file in sorted(folder.glob("memory/*.jsonl")):
        found[f"memory {file.name}"] = file.read_bytes()
    return found
