"""Run soundness checks in this process or in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from fhir_gym import processes
from fhir_gym.fhir import World
from fhir_gym.tasks.core.registry import pickle_packs, unpickle_packs

R = TypeVar("R")


def run_jobs(
    function: Callable[..., R], world: World, jobs: Sequence[tuple[Any, ...]], packs: Iterable[str], workers: int
) -> Iterator[R]:
    """Call ``function(world, *job)`` for each job, and yield the results in order.

    Args:
        function: A module-level function.
        world: The world.
        jobs: For each call, the arguments after the world; they must be picklable.
        packs: Env ids of the packs that the tasks belong to.
        workers: Number of worker processes; 0 to run in this process.

    Raises:
        TaskError: A worker process cannot import a task's class.
        InfraError: A worker process died.
    """
    if workers == 0:
        yield from (function(world, *job) for job in jobs)
        return
    with processes.worker_pool(workers, partial(_prepare, world, pickle_packs(packs))) as submit:
        parts = [submit(function, *job) for job in jobs]
        yield from (part.result() for part in parts)


def _prepare(world: World, packed: bytes) -> World:
    unpickle_packs(packed)
    return world
