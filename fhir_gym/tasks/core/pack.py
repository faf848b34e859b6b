"""The tasks and settings of a pack."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from fhir_gym.errors import TaskError
from fhir_gym.tasks.core.task import Task

_TASK_MODULE = re.compile(r"[a-z][0-9]+[a-z]?_")

TaskReader = Callable[[Path, Path | None], Mapping[str, Task[Any]]]
"""Function that reads a benchmark's own files and returns its tasks by key.

Its arguments are the task file and the function list, or None without a list.
"""


@dataclass(frozen=True)
class Pack:
    """A set of tasks that form one environment.

    The tasks come from `tasks` and from task modules: the modules and sub-packages of `package` whose names begin with
    a letter and a number (``t02_search_patient``). Each task module lists its task classes in ``TASKS``.

    Attributes:
        env_id: Id of the environment (``"FHIRAgent/Appointment-v0"``).
        title: Subject of the tasks, as a short phrase.
        package: Name of a package with task modules.
        tasks: Further task classes.
        world: Name of the default world.
        max_steps: Default step limit: the number of actions after which an episode is truncated.
        modelled_on: The published benchmark that the tasks are modelled on.
        held_out: Keys of the tasks in the split ``heldout_tasks``.
        published_calls: For each task key, the minimum and maximum number of requests that the published task needs.
        task_reader: Function that reads the published benchmark's task files; it raises `TaskError` for an unusable
            file.
        reads_functions: Whether the task reader also takes a function list.
        error_labels: The error labels that the pack's diagnoses use.

    Examples:
        >>> from fhir_gym.tasks import get_pack
        >>> get_pack("FHIRAgent/Appointment-v0").world
        'hospital-small'
    """

    env_id: str
    title: str = ""
    package: str = ""
    tasks: tuple[type[Task[Any]], ...] = ()
    world: str = "hospital-small"
    max_steps: int = 15
    modelled_on: str = ""
    held_out: tuple[str, ...] = ()
    published_calls: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    task_reader: TaskReader | None = None
    reads_functions: bool = False
    error_labels: tuple[str, ...] = ()

    def load(self) -> list[Task[Any]]:
        """Import the task modules and return the tasks, sorted by key."""
        classes = list(self.tasks)
        if self.package:
            path = import_module(self.package).__path__
            names = (module.name for module in pkgutil.iter_modules(path) if _TASK_MODULE.match(module.name))
            classes += [task for name in names for task in import_module(f"{self.package}.{name}").TASKS]
        return [task() for task in sorted(classes, key=lambda task: task.key)]

    def read_tasks(self, task_file: Path, funcs_file: Path | None) -> Mapping[str, Task[Any]]:
        """Read the tasks from the published benchmark's files.

        Raises:
            TaskError: The pack does not read such files, or a file is unusable.
        """
        if self.task_reader is None:
            raise TaskError(f"{self.env_id} does not read task files")
        if funcs_file is not None and not self.reads_functions:
            raise TaskError(f"{self.env_id} does not read function lists: leave funcs_file out")
        return self.task_reader(task_file, funcs_file)
