"""The tasks that an OpenEnv server offers, by split and index."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any
from weakref import finalize

from typing_extensions import override

from fhir_gym.arguments import require_name, require_whole
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.tasks import SPLITS, available_tasks, find_task, get_pack, split_numbers
from fhir_gym.tasks.core.variation import variation_cache

MAX_LISTED = 10_000
"""Maximum number of task specs in one answer."""
_MAX_START_STATES = 256
"""Number of start states in memory (about 25 MB), because several sessions often play the same variation."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One variation of one task.

    Attributes:
        env_id: Env id of the pack.
        task: Key of the task.
        variation: Number of the variation.
    """

    env_id: str
    task: str
    variation: int


class TaskCatalog(AbstractContextManager["TaskCatalog"]):
    """The tasks of packs by split and index. The first indexes are the first variation of every task, and so on.

    Args:
        configs: The settings of the episodes, one config for each pack. A config without a `World` opens its own, which
            `close` closes.

    Attributes:
        configs: The settings by env id; each has an open world.
        splits: Names of the splits that contain tasks.

    Raises:
        UnknownNameError: A pack does not exist.
        FhirGymError: There is no config, two are for the same pack, or one has a task file or a split.
        WorldError: A world cannot be opened.
        TaskError: A world supports none of a pack's tasks.
    """

    def __init__(self, configs: Sequence[EpisodeConfig]) -> None:
        self.configs: dict[str, EpisodeConfig] = {}
        variation_cache.reserve(_MAX_START_STATES)
        self._release = finalize(self, variation_cache.release, _MAX_START_STATES)
        self._own_worlds: list[World] = []
        if not configs:
            raise FhirGymError("an OpenEnv server needs at least one environment")
        try:
            for config in configs:
                self._add(config)
            self._tasks = {split: self._tasks_of(split) for split in (*SPLITS, None)}
        except BaseException:
            self.close()
            raise
        self.splits = tuple(split for split, tasks in self._tasks.items() if split is not None and tasks)

    def config(self, env_id: str, split: str | None) -> EpisodeConfig:
        """Return the settings of a pack's episodes in a split; None stands for all variations."""
        return replace(self.configs[env_id], split=split)

    def count(self, split: str | None, env_id: str | None = None) -> int:
        """Return the number of variations in a split and a pack; None stands for all variations and for all packs.

        Raises:
            UnknownNameError: There is no such split or pack.
            FhirGymError: The split has no task of the pack.
        """
        if split is not None:
            require_name("split", split, self.splits)
        return len(self._tasks_in(split, env_id)) * len(split_numbers(split))

    def get(self, split: str | None, index: int, env_id: str | None = None) -> TaskSpec:
        """Return the variation at an index of a split and a pack; see `count`.

        Raises:
            UnknownNameError: There is no such split or pack.
            IndexError: The split has no such index.
        """
        count = self.count(split, env_id)
        if not 0 <= require_whole("index", index) < count:
            raise IndexError(f"split {split} has the indexes 0 to {count - 1}, not {index}")
        tasks = self._tasks_in(split, env_id)
        number, place = divmod(index, len(tasks))
        return TaskSpec(*tasks[place], split_numbers(split)[number])

    def _tasks_in(self, split: str | None, env_id: str | None) -> list[tuple[str, str]]:
        if env_id is None:
            return self._tasks[split]
        require_name("environment", env_id, self.configs)
        if not (tasks := [task for task in self._tasks[split] if task[0] == env_id]):
            raise FhirGymError(f"split {split!r} has no task of {env_id}")
        return tasks

    def find(self, env_id: str | None, task: str) -> tuple[str, str]:
        """Return the env id and the key of a task; without an env id, the task must be in the only pack.

        Raises:
            FhirGymError: There is no such pack or task, or there are several packs.
        """
        if env_id is None:
            if len(self.configs) > 1:
                raise FhirGymError(f"env_id is missing: this server has {', '.join(self.configs)}")
            (env_id,) = self.configs
        require_name("environment", env_id, self.configs)
        return env_id, find_task(self.configs[env_id].task_set(), task).key

    def describe(self, split: str, index: int) -> dict[str, Any]:
        """Return a variation as OpenEnv's Task API lists it; its fields are options of `FHIREnvironment.reset`."""
        return {"split": split, "index": index} | asdict(self.get(split, index))

    def close(self) -> None:
        """Close the worlds that the catalogue opened, and free the start states."""
        self._release()
        while self._own_worlds:
            self._own_worlds.pop().close()

    @override
    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, config: EpisodeConfig) -> None:
        get_pack(config.env_id)  # an unknown pack is an error now, not when a client asks for it
        if config.env_id in self.configs:
            raise FhirGymError(f"{config.env_id} is given twice")
        if config.task_file is not None:
            raise FhirGymError("an OpenEnv server offers the tasks of packs: leave task_file out")
        if config.split is not None:
            raise FhirGymError("the clients of an OpenEnv server choose the split: leave split out")
        world, owned = config.resolve_world()
        self._own_worlds += [world] * owned
        self.configs[config.env_id] = replace(config, world=world)

    def _tasks_of(self, split: str | None) -> list[tuple[str, str]]:
        """Return env id and key of the split's tasks."""
        tasks = []
        for env_id in self.configs:
            if split == "heldout_tasks" and not {*get_pack(env_id).held_out} & {*self.configs[env_id].task_set()}:
                continue
            config = self.config(env_id, split)
            keys, numbers = config.choose_tasks(None), config.variations
            assert isinstance(config.world, World)
            keys = available_tasks(env_id, config.task_set(), keys, config.world, numbers[0], named=False)
            config.require_support(keys)
            tasks += [(env_id, key) for key in keys]
        return tasks
