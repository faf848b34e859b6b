"""Settings with which RLlib's PPO learns to choose actions from a menu."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import TrainingError, missing_extra, pip_install
from fhir_gym.tasks import DEFAULT_SPLIT, RewardRule
from fhir_gym.training.config import TaskName
from fhir_gym.training.menu import MenuEnv

_ENV = "fhir-menu"


def menu_ppo(
    templates: str | Path,
    tasks: Iterable[TaskName | tuple[str, str]],
    *,
    variations: Sequence[int] | None = None,
    reward: RewardRule = "dense",
    prepared: int = 0,
    split: str | None = DEFAULT_SPLIT,
) -> Any:
    """Return a `PPOConfig` of RLlib for a `MenuEnv`, with a module that scores the places of the menu.

    The caller may change every setting before `build_algo`, such as the number of runners.

    Args:
        templates: Path of a template file; see `learn_templates`. All machines of a cluster must have the file.
        tasks: The tasks to draw from, as pairs of env id and key.
        variations: The variations to draw from; None for all of the split.
        reward: ``"sparse"`` or ``"dense"``; see `Verdict.reward`.
        prepared: Number of start states that each process keeps in memory; see `FHIREnv`.
        split: The split of the variations; None admits all.

    Raises:
        TrainingError: There is no task.
        UnknownNameError: A pack or a task does not exist.
        ArgumentError: A variation does not exist or is not in the split.
        MissingExtraError: RLlib or torch is not installed.
    """
    names = [TaskName(*task) for task in tasks]
    if not names:
        raise TrainingError("menu_ppo needs at least one task")
    for name in names:
        EpisodeConfig(name.env_id, split=split).choose_tasks(name.task)
    numbers = EpisodeConfig(names[0].env_id, split=split).require_variations(variations)
    with missing_extra(f"training with RLlib needs: {pip_install('rllib')}"):
        ppo = import_module("ray.rllib.algorithms.ppo")
        spec_class = import_module("ray.rllib.core.rl_module.rl_module").RLModuleSpec
        module = import_module("fhir_gym.training.menu.rllib_module").MenuModule
    # Runners in other processes do not know the environments of this process, so RLlib gets a function.
    import_module("ray.tune.registry").register_env(_ENV, _make_env)
    settings = {
        "templates": str(templates),
        "tasks": [tuple(name) for name in names],
        "variations": list(numbers),
        "reward": reward,
        "prepared": prepared,
        "split": split,
    }
    return (
        ppo.PPOConfig()
        .environment(_ENV, env_config=settings)
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .rl_module(rl_module_spec=spec_class(module_class=module))
        .training(train_batch_size_per_learner=1024, minibatch_size=128, num_epochs=4, lr=1e-3, gamma=1.0)
        .debugging(seed=0)
    )


def _make_env(config: dict[str, Any]) -> MenuEnv:
    return MenuEnv(**config)
