"""Tasks by key, including keys with dials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from typing_extensions import override

from fhir_gym.errors import ArgumentError, UnknownNameError
from fhir_gym.tasks.core.task import Task, checked_dials, key_with_dials, split_key


class TaskSet(Mapping[str, Task[Any]]):
    """Tasks by key. A key may be the key of a task with values of its dials, such as ``day-3+minutes=60``.

    Args:
        tasks: The tasks by their keys without dials.
        dials: Values of dials that all tasks get. The iteration leaves out tasks that lack any of these dials.

    Raises:
        UnknownNameError: No task has one of the dials, or not the task of a key with dials.
        ArgumentError: No task has all of the dials, or a value is not possible.
    """

    def __init__(self, tasks: Mapping[str, Task[Any]], dials: Mapping[str, object] | None = None) -> None:
        self._tasks, self._dials = tasks, dict(dials or {})
        dial_names = dict.fromkeys(name for task in tasks.values() for name in task.dials)
        for name in self._dials:
            if name not in dial_names:
                raise UnknownNameError("dial of these tasks", name, dial_names)
        if self._dials and not len(self):
            raise ArgumentError(f"none of the tasks has all of the dials {', '.join(self._dials)}")

    @override
    def __getitem__(self, key: str) -> Task[Any]:
        if not isinstance(key, str):
            raise KeyError(key)
        if key in self._tasks:
            return with_dials(self._tasks[key], self._dials)
        name, values = split_key(key)
        return with_dials(self._tasks[name], self._dials | values)

    @override
    def __iter__(self) -> Iterator[str]:
        if not self._dials:
            return iter(self._tasks)
        return (
            with_dials(task, self._dials).key
            for task in self._tasks.values()
            if self._dials.keys() <= task.dials.keys()
        )

    @override
    def __len__(self) -> int:
        return sum(1 for _ in self)


def with_dials(task: Task[Any], values: Mapping[str, object]) -> Task[Any]:
    """Return a task with values of its dials; the task itself if these are the usual values.

    Raises:
        UnknownNameError: The task has no such dial.
        ArgumentError: A value is not possible.
    """
    dials = checked_dials(task.key, task.dials, values)
    return _resized(task, tuple(dials.items())) if dials else task


@lru_cache(maxsize=64)
def _resized(task: Task[Any], values: tuple[tuple[str, float], ...]) -> Task[Any]:
    """Return a task with values of dials. Equal values get the same object, so that caches of variations work."""
    resized = task.with_dials(key_with_dials(task.key, dict(values)), dict(values))
    resized.pack = task.pack
    return resized
