"""Run the episodes of a plan on a Ray cluster.

Each actor runs its episodes like a worker process. If an actor or its node dies, other actors repeat its episodes.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fhir_gym.agents import Agent, ConcurrentAgent
from fhir_gym.arguments import require_whole
from fhir_gym.errors import FhirGymError, InfraError, MissingExtraError, in_one_line
from fhir_gym.fhir import World
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.plan import RunPlan
from fhir_gym.rollouts.ray_actors import ConversationActor, EpisodeActor, Shipment
from fhir_gym.rollouts.ray_pool import ActorPool, cause_of
from fhir_gym.rollouts.record import Rollout

LOCAL = "local"
"""Address with which Ray starts on this machine."""

_AUTO = "auto"
_ADDRESS = re.compile(r"(?:ray://)?([\w.-]+|\[[\da-fA-F:]+\]):(\d{1,5})")
_FIRST_ANSWER_TIMEOUT = 10.0
"""Maximum number of seconds to wait for a TCP connection to a cluster. Ray itself would wait for minutes."""
_MAX_ATTEMPTS = 4
"""Number of actors that may die during the same episode until the run fails."""
_AHEAD = 4
"""Number of episodes per actor that may be finished or running before the next record in order."""


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A Ray cluster whose actors run episodes, as the argument `workers` of `run`.

    If this process is connected to a cluster (`ray.init`), the run uses this connection and leaves it open.

    Attributes:
        address: ``"local"`` to start Ray on this machine; ``"auto"`` for the running cluster of this machine;
            ``"HOST:PORT"`` or ``"ray://HOST:PORT"``. None for Ray's own choice: the environment variable RAY_ADDRESS,
            the running cluster of this machine, or else ``"local"``.
        actors: Number of actors; None for one per CPU of the cluster. Actors for which the cluster has no free CPU
            join the run when a CPU becomes free.
        cpus: Number of CPUs that each actor reserves.

    Raises:
        FhirGymError: A value is invalid.
    """

    address: str | None = None
    actors: int | None = None
    cpus: float = 1.0

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.actors is not None:
            require_whole("actors", self.actors, 1)
        if not 0 < self.cpus < float("inf"):
            raise FhirGymError(f"cpus of a Ray actor must be a positive number, not {self.cpus}")
        if self.address not in (None, LOCAL, _AUTO) and _host_and_port(self.address) is None:
            raise FhirGymError(
                f"the address of a Ray cluster is auto, local, HOST:PORT or ray://HOST:PORT, not {self.address!r}"
            )


def _host_and_port(address: str | None) -> tuple[str, int] | None:
    """Return host and port of a cluster's address; None for another form."""
    match = _ADDRESS.fullmatch(address or "")
    return None if match is None else (match[1].strip("[]"), int(match[2]))


class RayRun:
    """A run on a Ray cluster. The constructor checks everything that needs no connection.

    Args:
        plan: The episodes.
        agent: The agent. The actors run the episodes of a `ConcurrentAgent` concurrently.
        world: The world, which is sent to machines that do not have it.
        tracker: The budget.
        cluster: The cluster.
        concurrency: Number of concurrent episodes of a `ConcurrentAgent` in each actor.

    Raises:
        MissingExtraError: Ray is not installed.
        FhirGymError: The agent cannot be sent to other processes.
    """

    def __init__(
        self,
        plan: RunPlan,
        agent: Agent | ConcurrentAgent,
        world: World,
        tracker: BudgetTracker,
        cluster: RayCluster,
        concurrency: int,
    ) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError as error:
            raise MissingExtraError("a run on a Ray cluster needs: pip install 'fhir-gym[ray]'") from error
        self._plan, self._world, self._tracker, self._cluster = plan, world, tracker, cluster
        self._concurrent = isinstance(agent, ConcurrentAgent)
        self._slots = concurrency if self._concurrent else 1
        shipment = Shipment.of(plan, agent, world, self._ray.cloudpickle.dumps)
        try:
            self._packed: bytes = self._ray.cloudpickle.dumps(shipment)
        except Exception as error:
            raise FhirGymError(f"agent {agent.name} cannot be sent to Ray actors: {in_one_line(error)}") from error

    def rollouts(self) -> Iterator[Rollout]:
        """Run the episodes, and yield the records of an `Agent` in order, and of a `ConcurrentAgent` as they finish."""
        if not self._plan.episodes:
            return
        with self._connected() as cpus:
            wanted = self._cluster.actors or max(1, int(cpus / self._cluster.cpus))
            pool = ActorPool(self._ray, self._actor_class(), wanted, self._slots)
            scheduler = _Scheduler(self._plan, self._tracker, pool, ordered=not self._concurrent)
            try:
                pool.send(self._packed, self._world)
                yield from scheduler.rollouts()
                if self._concurrent:
                    pool.close_agents()
            finally:
                pool.kill()

    def _actor_class(self) -> Any:
        settings: dict[str, Any] = {"num_cpus": self._cluster.cpus, "max_restarts": 0, "max_task_retries": 0}
        if self._concurrent:
            return self._ray.remote(**settings, max_concurrency=self._slots + 1)(ConversationActor)
        return self._ray.remote(**settings)(EpisodeActor)

    @contextmanager
    def _connected(self) -> Iterator[float]:
        """Connect to the cluster for a `with` block, and yield its number of CPUs."""
        ray, address = self._ray, self._cluster.address
        mine = not ray.is_initialized()
        if not mine and address is not None:
            raise FhirGymError(f"this process is already connected to a Ray cluster: name no address, not {address}")
        if mine:
            settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            if address == LOCAL:
                needed = (self._cluster.actors or 0) * self._cluster.cpus
                settings |= {"num_cpus": max(os.cpu_count() or 1, math.ceil(needed)), "include_dashboard": False}
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # without this, Ray reports its use to its makers
            try:
                if (place := _host_and_port(address)) is not None:
                    socket.create_connection(place, _FIRST_ANSWER_TIMEOUT).close()
                ray.init(address=address, **settings)
            except (ConnectionError, RuntimeError, OSError, ValueError) as error:
                where = "Ray cluster" if address is None else f"Ray cluster {address}"
                raise InfraError(f"the {where} does not answer: {in_one_line(error)}") from error
        try:
            yield ray.cluster_resources().get("CPU", 1.0)
        finally:
            if mine:
                ray.shutdown()


class _Scheduler:
    """Gives the episodes of a plan to actors, and yields their records."""

    def __init__(self, plan: RunPlan, tracker: BudgetTracker, pool: ActorPool, *, ordered: bool) -> None:
        self._episodes, self._tracker, self._pool, self._ordered = plan.episodes, tracker, pool, ordered
        self._unstarted = deque(range(len(plan.episodes)))
        self._lost: deque[int] = deque()
        self._running = 0
        self._losses: Counter[int] = Counter()

    def rollouts(self) -> Iterator[Rollout]:
        """Run the episodes until they are over or the budget is used up."""
        done: dict[int, Rollout] = {}
        following = 0
        while self._go_on(following):
            done |= self._finished()
            while done and (not self._ordered or following in done):
                rollout = done.pop(following if self._ordered else next(iter(done)))
                following += 1
                self._go_on(following)  # the actors work while the caller handles the record
                yield rollout

    def _go_on(self, following: int) -> bool:
        """Give episodes to free actors, and return whether episodes remain.

        Args:
            following: Number of the next episode in order.
        """
        self._pool.fill(self._running + len(self._lost) + len(self._unstarted))
        while self._pool.has_free_actor and (number := self._next(following)) is not None:
            self._pool.submit(number, self._episodes[number])
            self._running += 1
        return bool(self._running or self._lost or self._unstarted)

    def _next(self, following: int) -> int | None:
        """Return the number of an episode to start. A lost episode comes first; the budget has counted it before."""
        if self._lost:
            return self._lost.popleft()
        if not self._unstarted or (self._ordered and self._unstarted[0] >= following + _AHEAD * self._pool.wanted):
            return None
        if not self._tracker.try_begin():
            self._unstarted.clear()
            return None
        return self._unstarted.popleft()

    def _finished(self) -> dict[int, Rollout]:
        """Wait for calls to end, and return the records of finished episodes by number."""
        found = {}
        for number, result in self._pool.wait():
            self._running -= 1
            if isinstance(result, Rollout):
                found[number] = result
                if result.usage is not None:
                    self._tracker.spend(result.usage)
                continue
            self._lost.append(number)
            self._losses[number] += 1
            if self._losses[number] >= _MAX_ATTEMPTS:
                task, variation, _ = self._episodes[number]
                raise InfraError(
                    f"{_MAX_ATTEMPTS} Ray actors died in task {task}, variation {variation}: {cause_of(result)}"
                ) from result
        return found
