"""The actors that run episodes in the processes of a Ray cluster."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fhir_gym import processes
from fhir_gym.agents import Agent, ConcurrentAgent
from fhir_gym.errors import FhirGymError, InfraError, in_one_line
from fhir_gym.fhir import World
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.episode_runner import attempt_episode, run_at_once
from fhir_gym.rollouts.plan import EpisodeSpec, RunPlan
from fhir_gym.rollouts.record import Rollout
from fhir_gym.tasks.core.registry import pickle_packs, unpickle_packs
from fhir_gym.worlds.cache import find_copy, store_copy

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
