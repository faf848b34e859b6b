"""Changed variations, to test whether a trained policy relies on positions, ids or times, or ignores the prompt.

In a mirrored variation, the records of the start state are created in reverse order, the smallest id becomes the
largest, and the oldest record the newest. Prompt, task and grading stay the same. A policy that reads the records
succeeds equally often on both; a policy that learned "the first one" does not.

A blind variation has the prompt of another variation of the same task. A policy that does what the prompt says fails.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from pydantic import BaseModel

from fhir_gym import tasks
from fhir_gym.fhir import World
from fhir_gym.tasks import Task, Variation
from fhir_gym.types import Phrasing, Resource

_Change = Callable[[Task[Any], int, World, Phrasing | None], Variation]
"""Draws a changed variation."""
_WORD = re.compile(r"[A-Za-z0-9]+")


def mirrored(variation: Variation) -> Variation:
    """Return a variation whose records have the reverse order of creation, of ids and of update times.

    Ids are exchanged among the records of one type, everywhere they occur: in references, prompt and parameters.
    """
    ids = _exchanged_ids(variation.setup)
    setup = [_mapped(resource, ids) for resource in reversed(variation.setup)]
    updated = sorted(resource["meta"]["lastUpdated"] for resource in setup)
    ranks = sorted(range(len(setup)), key=lambda at: setup[at]["meta"]["lastUpdated"], reverse=True)
    for time, at in zip(updated, ranks, strict=True):
        setup[at]["meta"]["lastUpdated"] = time
    return replace(
        variation,
        params=_mapped(variation.params, ids),
        prompt=_renamed(variation.prompt, ids),
        setup=tuple(setup),
        _target=_renamed(variation._target, ids),
        _qualifying=tuple(_renamed(reference, ids) for reference in variation._qualifying),
    )


@cache
def mirrored_pack(env_id: str) -> str:
    """Register a pack with the mirrored variations of all tasks of another pack.

    Returns:
        The env id of the new pack (``"FHIRAgent/AppointmentMirrored-v0"``).

    Raises:
        UnknownNameError: There is no such pack.
    """
    return _changed_pack(env_id, "Mirrored", lambda task, *which: mirrored(task.variation(*which)))


@cache
def blind_pack(env_id: str) -> str:
    """Register a pack whose variations have the prompt of their neighbour: 0 that of 1, 1 that of 0, 2 that of 3.

    Returns:
        The env id of the new pack (``"FHIRAgent/AppointmentBlind-v0"``).

    Raises:
        UnknownNameError: There is no such pack.
    """

    def blind(task: Task[Any], k: int, world: World, phrasing: Phrasing | None) -> Variation:
        return replace(task.variation(k, world, phrasing), prompt=task.variation(k ^ 1, world, phrasing).prompt)

    return _changed_pack(env_id, "Blind", blind)


def _changed_pack(env_id: str, suffix: str, change: _Change) -> str:
    pack = tasks.get_pack(env_id)
    name, version = env_id.rsplit("-", 1)
    copy = replace(pack, env_id=f"{name}{suffix}-{version}", package="", tasks=(), task_reader=None)
    tasks.register(copy, *(_changed_task(task, suffix, change) for task in tasks.task_set(env_id).values()))
    return copy.env_id


def _changed_task(task: Task[Any], suffix: str, change: _Change) -> Task[Any]:
    def variation(self: Task[Any], k: int, world: World, phrasing: Phrasing | None = None) -> Variation:
        return change(task, k, world, phrasing)

    changed_task: Task[Any] = type(f"{suffix}{type(task).__name__}", (type(task),), {"variation": variation})()
    return changed_task


def _exchanged_ids(setup: Sequence[Resource]) -> dict[str, str]:
    """Pair the ids of each type in opposite order."""
    by_type: dict[str, list[str]] = defaultdict(list)
    for resource in setup:
        by_type[resource["resourceType"]].append(resource["id"])
    return {
        old: new for ids in by_type.values() for old, new in zip(sorted(ids), sorted(ids, reverse=True), strict=True)
    }


def _renamed(text: str, ids: Mapping[str, str]) -> str:
    """Exchange ids in a text. Ids are words of their own, such as ``SLOT0122637`` in ``Slot/SLOT0122637``."""
    return _WORD.sub(lambda match: ids.get(match[0], match[0]), text)


def _mapped(value: Any, ids: Mapping[str, str]) -> Any:
    """Copy plain data, pydantic models and dataclasses with exchanged ids."""
    if isinstance(value, str):
        return _renamed(value, ids)
    if isinstance(value, dict):
        return {_mapped(key, ids): _mapped(element, ids) for key, element in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_mapped(element, ids) for element in value)
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _mapped(getattr(value, name), ids) for name in type(value).model_fields})
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _mapped(getattr(value, field.name), ids) for field in fields(value)})
    return value
