"""Run the episodes of a plan on a Ray cluster.

Each actor runs its episodes like a worker process. If an actor or its node dies, other actors repeat its episodes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pickle
import re
import socket
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from typing_extensions import override

from fhir_gym import processes
from fhir_gym.agents import Agent, ConcurrentAgent
from fhir_gym.arguments import require_whole
from fhir_gym.errors import ArgumentError, FhirGymError, InfraError, in_one_line, missing_extra, pip_install
from fhir_gym.fhir import World
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.episode_runner import Attempt, attempt_episode, run_alone
from fhir_gym.rollouts.plan import EpisodeSpec, RunPlan
from fhir_gym.rollouts.record import Rollout
from fhir_gym.rollouts.scheduler import Place, PlaceLostError
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


_FILES = ("task_file", "funcs_file")


@dataclass(frozen=True, slots=True)
class Shipment:
    """Everything except the world file that an actor needs to run the episodes of a plan.

    Attributes:
        plan: The plan without episodes and without its world.
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
        return run_alone(self.plan, spec, self.agent, self.world)

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
        ArgumentError: A value is invalid.
    """

    address: str | None = None
    actors: int | None = None
    cpus: float = 1.0

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.actors is not None:
            require_whole("actors", self.actors, 1)
        if not 0 < self.cpus < float("inf"):
            raise ArgumentError(f"cpus of a Ray actor must be a positive number, not {self.cpus}")
        if self.address not in (None, LOCAL, _AUTO) and _host_and_port(self.address) is None:
            raise ArgumentError(
                f"the address of a Ray cluster is auto, local, HOST:PORT or ray://HOST:PORT, not {self.address!r}"
            )


def _host_and_port(address: str | None) -> tuple[str, int] | None:
    """Return host and port of a cluster's address; None for another form."""
    match = _ADDRESS.fullmatch(address or "")
    return None if match is None else (match[1].strip("[]"), int(match[2]))


@dataclass
class RayRun:
    """A run on a Ray cluster. The constructor checks everything that needs no connection.

    Attributes:
        plan: The episodes.
        agent: The agent. The actors run the episodes of a `ConcurrentAgent` concurrently.
        world: The world, which is sent to machines that do not have it.
        tracker: The budget.
        concurrency: Number of concurrent episodes of a `ConcurrentAgent` in each actor.

    Raises:
        MissingExtraError: Ray is not installed.
        ArgumentError: The agent cannot be sent to other processes.
    """

    plan: RunPlan
    agent: Agent | ConcurrentAgent
    world: World
    tracker: BudgetTracker
    cluster: RayCluster
    concurrency: int
    failed_starts: int = field(default=0, init=False)
    deaths: Counter[EpisodeSpec] = field(default_factory=Counter, init=False)
    _world_parts: list[Any] = field(default_factory=list, init=False)
    _told: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Pack what the actors need."""
        with missing_extra(f"a run on a Ray cluster needs: {pip_install('ray')}"):
            self.ray: Any = import_module("ray")
        self.is_concurrent = isinstance(self.agent, ConcurrentAgent)
        shipment = Shipment.of(self.plan, self.agent, self.world, self.ray.cloudpickle.dumps)
        try:
            self._packed: bytes = self.ray.cloudpickle.dumps(shipment)
        except Exception as error:
            raise FhirGymError(f"agent {self.agent.name} cannot be sent to Ray actors: {in_one_line(error)}") from error

    @contextmanager
    def places(self) -> Iterator[Sequence[RayPlace]]:
        """Connect to the cluster for a `with` block, and yield the actors, which run the episodes."""
        settings: dict[str, Any] = {"num_cpus": self.cluster.cpus, "max_restarts": 0, "max_task_retries": 0}
        if self.is_concurrent:
            settings["max_concurrency"] = self.concurrency + 1  # one for closing the agent
        with self._connected() as cpus:
            self.shipment = self.ray.put(self._packed)
            self.actor_class = self.ray.remote(**settings)(ConversationActor if self.is_concurrent else EpisodeActor)
            actors = self.cluster.actors or max(1, int(cpus / self.cluster.cpus))
            places = [RayPlace(self) for _ in range(min(actors, len(self.plan.episodes)))]
            try:
                yield places
            finally:
                for place in places:
                    place.kill()

    def world_parts(self) -> list[Any]:
        """Return references to the parts of the world file, for a machine that does not have it."""
        if not self._world_parts:
            with self.world.path.open("rb") as file:
                while part := file.read(_PART):
                    self._world_parts.append(self.ray.put(part))
        return self._world_parts

    def started(self) -> None:
        """Note that an actor is ready."""
        self._told, self.failed_starts = True, 0

    def warn_of_wait(self) -> None:
        """Warn once, unless an actor has been ready."""
        if not self._told:
            self._told = True
            warnings.warn("the Ray cluster has no free CPU for an actor; the run waits for one", stacklevel=2)

    @contextmanager
    def _connected(self) -> Iterator[float]:
        """Connect to the cluster for a `with` block, and yield its number of CPUs."""
        ray, address = self.ray, self.cluster.address
        mine = not ray.is_initialized()
        if not mine and address is not None:
            raise ArgumentError(f"this process is already connected to a Ray cluster: name no address, not {address}")
        if mine:
            settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            if address == LOCAL:
                needed = (self.cluster.actors or 0) * self.cluster.cpus
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


class RayPlace(Place):
    """An actor that runs episodes. If it dies or is unreachable, another actor takes its place."""

    def __init__(self, run: RayRun) -> None:
        super().__init__(self._attempt, run.concurrency if run.is_concurrent else 1, close=self._close)
        self._run, self._ready = run, False
        self._actor: Any = None

    @override
    async def start(self) -> None:
        self._actor = self._run.actor_class.remote()
        parts: list[Any] = []
        warning = asyncio.get_running_loop().call_later(_PATIENCE, self._run.warn_of_wait)
        try:
            while not await self._call("prepare", version("fhir-gym"), self._run.shipment, parts):
                parts = self._run.world_parts()
        finally:
            warning.cancel()
        self._ready = True
        self._run.started()

    @override
    def restarts(self, lost: PlaceLostError) -> bool:
        self.kill()
        if not self._ready:
            self._run.failed_starts += 1
            if self._run.failed_starts >= _MAX_FAILED_STARTS:
                raise InfraError(f"no Ray actor could start: {lost}") from lost
        self._ready = False
        return True

    def kill(self) -> None:
        """End the actor at once."""
        if self._actor is not None:
            self._run.ray.kill(self._actor)

    async def _attempt(self, spec: EpisodeSpec) -> Attempt:
        try:
            return Attempt.elsewhere(await self._call("work", spec), self._run.tracker)
        except PlaceLostError as lost:
            self._run.deaths[spec] += 1
            if self._run.deaths[spec] < _MAX_ATTEMPTS:
                raise
            raise InfraError(
                f"{_MAX_ATTEMPTS} Ray actors died in task {spec.task}, variation {spec.variation}: {lost}"
            ) from lost

    async def _close(self) -> None:
        if self._run.is_concurrent and self._ready:
            with suppress(PlaceLostError, TimeoutError):
                await asyncio.wait_for(self._call("close"), _CLOSING)

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor; raise an exception of its code.

        Raises:
            PlaceLostError: The actor died or is unreachable.
        """
        errors = self._run.ray.exceptions
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except errors.RayError as error:
            cause = error.cause if isinstance(error, errors.RayTaskError) else None
            if isinstance(cause, Exception) and not isinstance(cause, errors.RayError):
                raise cause from error
            raise PlaceLostError(cause_of(error)) from error
