"""Reinforcement-learning environments in which LLM agents work on an embedded FHIR R4 server.

The import of this package registers the env ids with Gymnasium. The public names are loaded on first use.

Attributes:
    __version__: Version of this package.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fhir_gym import plugins
from fhir_gym.errors import TaskError
from fhir_gym.registration import SHIPPED, is_env_id, register_envs

if TYPE_CHECKING:
    from fhir_gym import agents, envs, errors, fhir, rollouts, suites, tasks, worlds
    from fhir_gym.agents import make_agent
    from fhir_gym.episode import Episode, Step
    from fhir_gym.episode_config import EpisodeConfig
    from fhir_gym.rollouts import Rollout, read_rollouts, run, write_rollouts
    from fhir_gym.suites import evaluate
    from fhir_gym.tasks import Check, Task, Verdict, get_task, task_keys
    from fhir_gym.trainer_api import EpisodeRow, aplay, play, rows

    __version__: str

__all__ = [
    "Check",
    "Episode",
    "EpisodeConfig",
    "EpisodeRow",
    "Rollout",
    "Step",
    "Task",
    "Verdict",
    "__version__",
    "agents",
    "aplay",
    "envs",
    "errors",
    "evaluate",
    "fhir",
    "get_task",
    "make_agent",
    "play",
    "read_rollouts",
    "rollouts",
    "rows",
    "run",
    "suites",
    "task_keys",
    "tasks",
    "worlds",
    "write_rollouts",
]

_HOMES = {
    "Check": "tasks",
    "Episode": "episode",
    "EpisodeConfig": "episode_config",
    "EpisodeRow": "trainer_api",
    "Rollout": "rollouts",
    "Step": "episode",
    "Task": "tasks",
    "Verdict": "tasks",
    "aplay": "trainer_api",
    "get_task": "tasks",
    "make_agent": "agents",
    "play": "trainer_api",
    "read_rollouts": "rollouts",
    "rows": "trainer_api",
    "evaluate": "suites",
    "run": "rollouts",
    "task_keys": "tasks",
    "write_rollouts": "rollouts",
}
_MODULES = frozenset({"agents", "envs", "errors", "fhir", "rollouts", "suites", "tasks", "worlds"})


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name == "__version__":
        return version("fhir-gym")
    if name in _MODULES:
        return import_module(f"fhir_gym.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fhir_gym.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)


def _register_installed() -> None:
    """Register the packs of other distributions.

    An entry point whose name is an env id is registered without an import. The modules of other entry points are
    imported.
    """
    installed_packs = plugins.entry_points_of(plugins.PACKS)
    for name, point in installed_packs.items():
        if is_env_id(name):
            try:
                register_envs(name)
            except TaskError as error:
                plugins.warn_about(plugins.plugin_error(point, str(error)))
    if not all(is_env_id(name) for name in installed_packs):
        import_module("fhir_gym.tasks.core.registry").register_unnamed()


register_envs(*SHIPPED)
_register_installed()
