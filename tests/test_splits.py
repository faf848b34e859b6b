"""A split admits only its own variations, wherever the number of a variation enters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import fhir_gym
from fhir_gym import Episode
from fhir_gym.envs import FHIREnv, FHIRVectorEnv
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import ArgumentError, FhirGymError, MissingExtraError
from fhir_gym.fhir import World
from fhir_gym.reflexion import MemoryTrainingConfig, train_memory
from fhir_gym.rollouts import EpisodeSpec, RunPlan, plan
from fhir_gym.soundness import check_tasks
from fhir_gym.soundness.probe import Effort
from fhir_gym.tasks import get_task, split_numbers
from fhir_gym.training.config import TaskName, TrainingConfig, make_config
from fhir_gym.training.curriculum import Curriculum
from fhir_gym.training.examples import require_trainable
from fhir_gym.training.grpo import FHIRToolEnv
from fhir_gym.training.menu import MenuEnv, Templates
from fhir_gym.training.rllib import menu_ppo

ENV_ID = "FHIRAgent/Appointment-v0"
NO_TEMPLATES = Templates((), {}, ())
MEMORY = {"agent": {"model": "m", "base_url": "http://127.0.0.1:1/v1"}, "env_ids": [ENV_ID]}

Entry = Callable[[World, str | None, int], object]
"""Asks for a variation in a split."""


def reset_env(world: World, split: str | None, number: int) -> object:
    """Reset an environment that Gymnasium makes."""
    env = gym.make(ENV_ID, world=world, split=split)
    try:
        return env.reset(options={"task": "03", "variation": number})
    finally:
        env.close()


def reset_vector_env(world: World, split: str | None, number: int) -> object:
    """Reset a vector environment."""
    envs = FHIRVectorEnv(ENV_ID, num_envs=2, world=world, split=split)
    try:
        return envs.reset(options={"task": "03", "variation": number})
    finally:
        envs.close()


def reset_menu_env(world: World, split: str | None, number: int) -> object:
    """Reset an environment with a menu of actions."""
    env = MenuEnv(NO_TEMPLATES, [(ENV_ID, "03")], world=world, split=split)
    try:
        return env.reset(options={"variation": number})
    finally:
        env.close()


def reset_tool_env(world: World, split: str | None, number: int) -> object:
    """Reset the environment of TRL."""
    env = FHIRToolEnv(world=world, split=split)
    env.reset(ENV_ID, "03", number)
    return env.get_reward()


def start_episode(world: World, split: str | None, number: int) -> object:
    """Start an episode without a framework."""
    episode = Episode(ENV_ID, task="03", variation=number, world=world, split=split)
    try:
        return episode.start()
    finally:
        episode.close()


def draw_menu_env(world: World, split: str | None, number: int) -> object:
    """Draw from a list of variations."""
    return MenuEnv(NO_TEMPLATES, [(ENV_ID, "03")], variations=[number], world=world, split=split)


def ppo(world: World, split: str | None, number: int) -> object:
    """Make the settings of RLlib, whose check precedes the import of RLlib."""
    try:
        return menu_ppo("menu.json", [(ENV_ID, "03")], variations=range(number, number + 1), split=split)
    except MissingExtraError:
        return None


def hand_made_plan(world: World, split: str | None, number: int) -> object:
    """Make a plan by hand, as suites and experiments do."""
    return RunPlan(EpisodeConfig(ENV_ID, world=world, split=split), (EpisodeSpec("03", number, 0),))


def make_plan(world: World, split: str | None, number: int) -> object:
    """Plan a run."""
    return plan(ENV_ID, tasks="03", variations=number, world=world, split=split)


def run(world: World, split: str | None, number: int) -> object:
    """Run an agent."""
    return list(fhir_gym.run(ENV_ID, "idle", tasks="03", variations=number, world=world, split=split))


ENTRIES: Sequence[Entry] = (
    reset_env,
    reset_vector_env,
    reset_menu_env,
    reset_tool_env,
    start_episode,
    draw_menu_env,
    ppo,
    hand_made_plan,
    make_plan,
    lambda world, split, number: [
        *fhir_gym.run(ENV_ID, "idle", tasks="03", variations=number, world=world, split=split)
    ],
)
ALLOWED = ((None, 0), (None, 1999), ("train", 999), ("test", 1000), ("heldout_tasks", 1999))
REFUSED = (
    ("train", 1000, "variation 1000 is not in split 'train' (0 to 999)"),
    ("train", 1500, "variation 1500 is not in split 'train' (0 to 999)"),
    ("test", 999, "variation 999 is not in split 'test' (1000 to 1999)"),
    ("heldout_tasks", 5, "variation 5 is not in split 'heldout_tasks' (1000 to 1999)"),
    ("train", 2000, "variation 2000 does not exist: variations are numbered from 0 to 1999"),
    (None, 99_999, "variation 99999 does not exist: variations are numbered from 0 to 1999"),
    (None, -1, "variation -1 does not exist: variations are numbered from 0 to 1999"),
)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_split_admits_only_its_own_variations(hospital: World, entry: Entry) -> None:
    for split, number in ALLOWED:
        entry(hospital, split, number)
    for split, number, message in REFUSED:
        with pytest.raises(ArgumentError) as refused:
            entry(hospital, split, number)
        assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    "make",
    [
        lambda world: gym.make(ENV_ID, world=world).unwrapped,
        lambda world: FHIREnv(EpisodeConfig(ENV_ID, world=world)),
        lambda world: FHIRVectorEnv(ENV_ID, world=world),
        lambda world: MenuEnv(NO_TEMPLATES, [(ENV_ID, "03")], world=world),
    ],
)
def test_environments_train_unless_told_otherwise(hospital: World, make: Callable[[World], Any]) -> None:
    env = make(hospital)
    with pytest.raises(ArgumentError, match="test variations are never trained on"):
        env.reset(options={"task": "03", "variation": 1500})
    env.close()


def test_a_config_keeps_its_split_in_every_environment(hospital: World) -> None:
    config = EpisodeConfig(ENV_ID, world=hospital, split="test")
    env = FHIREnv(config, tasks="03")
    assert env.variations == split_numbers("test")
    with pytest.raises(ArgumentError, match="variation 0 is not in split 'test'"):
        env.reset(options={"variation": 0})
    both = FHIREnv(config, tasks="03", split=None)
    assert [both.reset(options={"variation": number})[1]["variation"] for number in (0, 1999)] == [0, 1999]
    with pytest.raises(FhirGymError, match="unknown split 'tests'; did you mean 'test'"):
        EpisodeConfig(ENV_ID, split="tests")
    for made in (env, both):
        made.close()


def test_held_out_tasks_are_the_only_tasks_of_their_split(hospital: World) -> None:
    with pytest.raises(FhirGymError, match="split 'heldout_tasks' has none of 01"):
        Episode(ENV_ID, task="01", variation=1000, world=hospital, split="heldout_tasks")
    env = FHIREnv(ENV_ID, world=hospital, split="heldout_tasks")
    with pytest.raises(FhirGymError, match="split 'heldout_tasks' has none of 01"):
        env.reset(options={"task": "01", "variation": 1000})
    env.close()


def test_a_task_has_two_thousand_variations(hospital: World) -> None:
    task = get_task(ENV_ID, "01")
    assert task.variation(1999, hospital).split == "test"
    for number in (-1, 2000):
        with pytest.raises(ArgumentError, match="numbered from 0 to 1999"):
            task.variation(number, hospital)
    with pytest.raises(ArgumentError, match="numbered from 0 to 1999"):
        check_tasks(hospital, [task], variations=2001)
    with pytest.raises(ArgumentError, match="variation 1000 is not in split 'train'"):
        Effort(train=1001)
    with pytest.raises(ArgumentError, match="variation 2000 does not exist"):
        Effort(test=1001)


def memory(**settings: object) -> MemoryTrainingConfig:
    """Return the settings of a memory training."""
    return MemoryTrainingConfig.model_validate({**MEMORY, "tasks": ["03"], **settings})


@pytest.mark.parametrize(
    ("train", "error"),
    [
        (lambda number: Curriculum([TaskName(ENV_ID, "03")], [0, number]), ArgumentError),
        (lambda number: make_config(TrainingConfig, {"train": f"0,{number}"}), ArgumentError),
        (lambda number: memory(variations=str(number)), ValueError),
        (lambda number: train_memory(memory(), Path("memory"), episodes=[(ENV_ID, "03", number, 0)]), ArgumentError),
        (
            lambda number: [*require_trainable(fhir_gym.run(ENV_ID, "gold", tasks="03", variations=number))],
            ArgumentError,
        ),
        (lambda number: FHIRToolEnv().reset(ENV_ID, "03", number), ArgumentError),
        (lambda number: menu_ppo("menu.json", [(ENV_ID, "03")], variations=range(number, number + 2)), ArgumentError),
    ],
)
def test_nothing_trains_on_test_variations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, train: Callable[[int], object], error: type[Exception]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=r"variation 1500 is not in split 'train' .*test variations are never trained on"):
        train(1500)
