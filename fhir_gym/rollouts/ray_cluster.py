"""Run the episodes of a plan on a Ray cluster.

Each actor runs its episodes like a worker process. If an actor or its node dies, other actors repeat its episodes.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import re
import socket
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fhir_gym import processes
from fhir_gym.agents import Agent, ConcurrentAgent
from fhir_gym.arguments import require_whole
from fhir_gym.errors import FhirGymError, InfraError, MissingExtraError, in_one_line
from fhir_gym.fhir import World
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.episode_runner import attempt_episode, run_at_once
from fhir_gym.rollouts.plan import EpisodeSpec, RunPlan
from fhir_gym.rollouts.record import Rollout
from fhir_gym.tasks.core.registry import pickle_packs, unpickle_packs
from fhir_gym.worlds.cache import find_copy, store_copy

_MAX_FAILED_STARTS = 4
"""Number of actors that may die in a row before they are ready, until the run fails."""
_PATIENCE = 30.0
"""Number of seconds without a ready actor after which the user is told that the cluster has no free CPU."""
_PART = 64 * 2**20
"""Size in bytes of the parts in which a world file is sent to other machines."""
_CLOSING = 10.0
"""Maximum number of seconds that the agents have for closing."""


def cause_of(error: Exception) -> str:
    """Return the last line of one of Ray's errors, which names the cause; the lines before it are a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


@dataclass(slots=True, eq=False)
class _Actor:
    """An actor, and its number of running episodes."""

    handle: Any
    ready: bool = False
    running: int = 0


class ActorPool:
    """Actors that run episodes.

    Args:
        ray: The module `ray`, connected to a cluster.
        kind: Ray's class of the actors; see `fhir_gym.rollouts.ray_cluster`.
        wanted: Number of actors.
        slots: Number of episodes that an actor runs concurrently.
    """

    def __init__(self, ray: Any, kind: Any, count: int, slots: int) -> None:
        self._ray, self._kind, self.wanted, self._slots = ray, kind, count, slots
        self._actors: list[_Actor] = []
        self._calls: dict[Any, tuple[_Actor, int | None]] = {}
        self._failed_starts = 0
        self._warned = False
        self._world_parts: list[Any] = []

    def send(self, packed: bytes, world: World) -> None:
        """Set what new actors receive: a pickled `Shipment`, and the world if their machine does not have it."""
        self._packed, self._world = self._ray.put(packed), world

    def fill(self, needed: int) -> None:
        """Start actors until there is the wanted number, but at most `needed` actors."""
        while len(self._actors) < min(self.wanted, needed):
            actor = _Actor(self._kind.remote())
            self._actors.append(actor)
            self._prepare(actor)

    @property
    def has_free_actor(self) -> bool:
        """Whether an actor can start an episode."""
        return any(actor.ready and actor.running < self._slots for actor in self._actors)

    def submit(self, number: int, episode: EpisodeSpec) -> None:
        """Start an episode on the actor with the fewest running episodes."""
        actor = min((actor for actor in self._actors if actor.ready), key=lambda actor: actor.running)
        actor.running += 1
        self._calls[actor.handle.work.remote(episode)] = actor, number

    def wait(self) -> Iterator[tuple[int, Rollout | Exception]]:
        """Wait until calls end, and yield the number and the record of each ended episode.

        If the actor of an episode died, yield Ray's error in place of the record.

        Raises:
            InfraError: Several actors in a row could not start.
            Exception: The exception that an episode raised.
        """
        waiting = not self._warned and not any(actor.ready for actor in self._actors)
        ended, _ = self._ray.wait([*self._calls], timeout=_PATIENCE if waiting else None)
        if not ended:
            self._warned = True
            warnings.warn("the Ray cluster has no free CPU for an actor; the run waits for one", stacklevel=2)
        for call in ended:
            actor, number = self._calls.pop(call)
            result = self._result(call)
            if number is not None:
                actor.running -= 1
                yield number, result
            if isinstance(result, Exception):
                self._remove(actor, result)
            elif number is None:
                self._prepared(actor, has_world=result)

    def close_agents(self) -> None:
        """Let the agents of all actors close what they opened."""
        calls = [actor.handle.close.remote() for actor in self._actors if actor.ready]
        if calls:
            self._ray.wait(calls, num_returns=len(calls), timeout=_CLOSING)

    def kill(self) -> None:
        """End all actors at once."""
        for actor in self._actors:
            self._ray.kill(actor.handle)

    def _prepare(self, actor: _Actor) -> None:
        call = actor.handle.prepare.remote(version("fhir-gym"), self._packed, self._world_parts)
        self._calls[call] = actor, None

    def _prepared(self, actor: _Actor, *, has_world: bool) -> None:
        if has_world:
            actor.ready, self._failed_starts = True, 0
            return
        if not self._world_parts:
            with self._world.path.open("rb") as file:
                while part := file.read(_PART):
                    self._world_parts.append(self._ray.put(part))
        self._prepare(actor)

    def _remove(self, actor: _Actor, reason: Exception) -> None:
        """Remove a dead or unreachable actor; its other calls end with errors too."""
        if actor not in self._actors:
            return
        self._actors.remove(actor)
        self._ray.kill(actor.handle)
        if not actor.ready:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise InfraError(f"no Ray actor could start: {cause_of(reason)}") from reason

    def _result(self, call: Any) -> Any:
        """Return the result of a call, or Ray's error if the actor died; raise an exception of the actor's code."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.RayTaskError as error:
            if isinstance(error.cause, Exception) and not isinstance(error.cause, errors.RayError):
                raise error.cause from error
            return error
        except errors.RayError as error:
            return error


_FILES = ("task_file", "funcs_file")


@dataclass(frozen=True, slots=True)
class Shipment:
    """Everything except the world file that an actor needs to run the episodes of a plan.

    Attributes:
        plan: The plan without episodes and without its world.
        agent: The agent.
        packs: The pickled packs.
        world_path: Path of the world file on the driver's machine.
        world_hash: Content hash of the world.
        files: Name and content of the files that the plan's config names, by field.
    """

    plan: RunPlan
    agent: Agent | ConcurrentAgent
    packs: bytes
    world_path: Path
    world_hash: str
    files: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: RunPlan, agent: Agent | ConcurrentAgent, world: World, dumps: Callable[[Any], bytes]) -> Shipment:
        """Collect what the actors need; `dumps` pickles the packs."""
        files = {name: Path(path).expanduser() for name in _FILES if (path := getattr(plan.config, name)) is not None}
        return cls(
            replace(plan, episodes=(), config=replace(plan.config, world=None)),
            agent,
            pickle_packs([plan.config.env_id], dumps),
            world.path,
            world.manifest.content_hash,
            {name: (path.name, path.read_bytes()) for name, path in files.items()},
        )


class EpisodeActor:
    """Runs episodes one at a time. Ray calls the methods in a process of the cluster."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def prepare(self, package_version: str, packed: bytes, world_parts: Sequence[Any] = ()) -> bool:
        """Receive what the actor needs. Return False if this machine does not have the world.

        Args:
            package_version: Version of fhir_gym on the driver's machine.
            packed: The pickled `Shipment`.
            world_parts: References to the parts of the world file; empty if the driver has not sent the file.

        Raises:
            InfraError: This machine has another version of fhir_gym, or lacks a package.
            WorldError: The world cannot be stored.
        """
        if package_version != (mine := version("fhir-gym")):
            raise InfraError(f"a Ray node has fhir_gym {mine}: install version {package_version}, which the run uses")
        try:
            shipment: Shipment = pickle.loads(packed)
            unpickle_packs(shipment.packs)
        except FhirGymError:
            raise
        except Exception as error:
            raise InfraError(
                f"a Ray node cannot load the agent or the tasks ({in_one_line(error)}): install the same packages on "
                "every node, or connect with ray.init(runtime_env=…) before the run"
            ) from error
        world = find_copy(shipment.world_path, shipment.world_hash)
        if world is None and world_parts:
            world = store_copy(shipment.world_hash, map(import_module("ray").get, world_parts))
        if world is None:
            return False
        config = replace(shipment.plan.config, world=world, **self._write_files(shipment))
        self.plan, self.world = replace(shipment.plan, config=config), world
        self.agent: Any = shipment.agent
        return True

    def work(self, spec: EpisodeSpec) -> Any:
        """Run an episode and return its record."""
        return run_at_once(attempt_episode(self.plan, spec, self.agent, self.world, BudgetTracker())).rollout

    def _write_files(self, shipment: Shipment) -> dict[str, Any]:
        if not shipment.files:
            return {}
        folder = self._stack.enter_context(processes.temporary_folder())
        paths = {}
        for name, (file_name, content) in shipment.files.items():
            paths[name] = folder / name / file_name
            paths[name].parent.mkdir()
            paths[name].write_bytes(content)
        return paths


class ConversationActor(EpisodeActor):
    """Runs episodes of a `ConcurrentAgent` concurrently, on the event loop of the actor."""

    async def work(self, spec: EpisodeSpec) -> Rollout:
        """Run an episode and return its record."""
        return (await attempt_episode(self.plan, spec, self.agent, self.world, BudgetTracker())).rollout

    async def close(self) -> None:
        """Close what the agent opened."""
        await self.agent.aclose()


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
            actor_count = self._cluster.actors or max(1, int(cpus / self._cluster.cpus))
            pool = ActorPool(self._ray, self._actor_class(), actor_count, self._slots)
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
        finished = {}
        for number, result in self._pool.wait():
            self._running -= 1
            if isinstance(result, Rollout):
                finished[number] = result
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
        return finished
