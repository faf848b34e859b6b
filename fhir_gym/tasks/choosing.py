"""Which tasks and variations someone may draw from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fhir_gym.errors import FhirGymError
from fhir_gym.tasks.registry import find_task
from fhir_gym.tasks.splits import split_keys, split_numbers
from fhir_gym.tasks.task import Task

__all__ = ["choose_tasks"]


def choose_tasks(
    env_id: str,
    known: Mapping[str, Task[Any]],
    chosen: str | Sequence[str] | None,
    split: str | None,
    *,
    from_file: bool = False,
) -> tuple[tuple[str, ...], range]:
    """Keys of tasks in the order given, and the numbers of their variations.

    Args:
        env_id: The pack.
        known: Its tasks, or those of a task file.
        chosen: Keys, or one; None for all.
        split: See `fhir_gym.tasks.SPLITS`; None for no restriction.
        from_file: Whether they are of a task file, whose tasks have one variation each and no splits.

    Raises:
        UnknownNameError: There is no such task or split.
        FhirGymError: The split has none of the tasks, or the tasks have no splits.
    """
    keys = tuple(known) if chosen is None else (chosen,) if isinstance(chosen, str) else tuple(chosen)
    keys = tuple(find_task(known, key).key for key in keys)
    if not from_file:
        return split_keys(env_id, keys, split), split_numbers(split)
    if split is not None:
        raise FhirGymError("the tasks of a task file have no splits: leave split out")
    return keys, range(1)
