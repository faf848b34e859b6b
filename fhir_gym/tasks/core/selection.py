"""Select tasks by key, split and world."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from fhir_gym.arguments import require_phrasing_type
from fhir_gym.errors import ArgumentError, TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.core.registry import find_task, get_pack, task_set
from fhir_gym.tasks.core.task import Task
from fhir_gym.types import Phrasing

_KEYS_TOLD, _REASONS_TOLD = 40, 3
"""Maximum numbers of task keys and of reasons in an error message; a task file may have hundreds of tasks."""


def choose_tasks(
    env_id: str, tasks: Mapping[str, Task[Any]], chosen: str | Sequence[str] | None, split: str | None
) -> tuple[str, ...]:
    """Return the keys of the selected tasks that belong to a split, without repeats.

    Args:
        env_id: The pack.
        tasks: Tasks of the pack or of a task file.
        chosen: One key or several keys; None for all tasks.
        split: Name of a split in `fhir_gym.tasks.SPLITS`; None for all tasks.

    Raises:
        UnknownNameError: There is no such task.
        ArgumentError: The split contains none of the tasks.
    """
    if not (chosen is None or isinstance(chosen, str | Iterable)):
        raise ArgumentError(f"tasks must be one task key or several, not {chosen!r}")
    keys = tuple(tasks) if chosen is None else (chosen,) if isinstance(chosen, str) else tuple(chosen)
    keys = tuple(dict.fromkeys(find_task(tasks, key).key for key in keys))
    if split != "heldout_tasks":
        return keys
    held_out = get_pack(env_id).held_out
    held = tuple(key for key in keys if key in held_out)
    if keys and not held:
        there = ", ".join(held_out) or "none"
        raise ArgumentError(f"split {split!r} has none of {', '.join(keys)}; of {env_id} it has {there}")
    return held


def available_tasks(
    env_id: str, tasks: Mapping[str, Task[Any]], keys: Sequence[str], world: World, variation: int, *, named: bool
) -> tuple[str, ...]:
    """Return the keys of the tasks that a world supports, in the given order.

    A world may lack the records that a task needs, such as patients with enough results. To find out, this function
    draws one variation of each task. It assumes that a pack's default world supports all of the pack's own tasks
    without dials.

    Args:
        env_id: The pack.
        tasks: Tasks of the pack or of a task file.
        keys: Keys of the tasks to select from.
        world: The world.
        variation: Number of the variation to draw.
        named: Whether a user named these tasks. If so, all of them must be available.

    Raises:
        TaskError: The world supports none of the tasks, or not every named task.
    """
    if tasks is task_set(env_id) and world.name == get_pack(env_id).world and {*keys} <= {*tasks}:
        return tuple(keys)
    lacking: dict[str, str] = {}
    for key in keys:
        reason = _lacking(tasks[key], world, variation)
        if reason is not None:
            lacking[key] = reason
    if lacking and (named or len(lacking) == len(keys)):
        missing = _listed(list(lacking), ", ", _KEYS_TOLD)
        reasons = _listed(list(dict.fromkeys(lacking.values())), "; ", _REASONS_TOLD)
        raise TaskError(f"world {world.name} does not support {missing} of {env_id}: {reasons}")
    return tuple(key for key in keys if key not in lacking)


def _listed(texts: Sequence[str], between: str, most: int) -> str:
    more = f"{between}and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


_reasons: WeakKeyDictionary[World, dict[tuple[Task[Any], int], str | None]] = WeakKeyDictionary()
"""For each world and each variation of a task, why the world does not support it; None if the world does.

All environments share these results.
"""


def _lacking(task: Task[Any], world: World, variation: int) -> str | None:
    """Return why a world does not support a task; None if the world supports it."""
    reasons = _reasons.setdefault(world, {})
    if (task, variation) not in reasons:
        try:
            task.variation(variation, world)
        except TaskError as error:
            reasons[task, variation] = str(error)
        else:
            reasons[task, variation] = None
    return reasons[task, variation]


def require_phrasing(tasks: Mapping[str, Task[Any]], keys: Sequence[str], phrasing: Phrasing | None) -> None:
    """Check that every task has a prompt in the phrasing `phrasing`.

    Raises:
        ArgumentError: The phrasing is neither a whole number nor ``brief`` nor ``paraphrase``.
        ArgumentError: A task does not have this phrasing.
    """
    if phrasing is None:
        return
    require_phrasing_type("phrasing", phrasing)
    for key in keys:
        tasks[key].require_phrasing(phrasing)
