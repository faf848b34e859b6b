"""A pool of Ray actors that replaces actors that die."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fhir_gym.errors import InfraError
from fhir_gym.fhir import World
from fhir_gym.rollouts.plan import EpisodeSpec
from fhir_gym.rollouts.record import Rollout

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
        kind: Ray's class of the actors; see `fhir_gym.rollouts.ray_actors`.
        wanted: Number of actors.
        slots: Number of episodes that an actor runs concurrently.
    """

    def __init__(self, ray: Any, kind: Any, wanted: int, slots: int) -> None:
        self._ray, self._kind, self.wanted, self._slots = ray, kind, wanted, slots
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
        actor = min((one for one in self._actors if one.ready), key=lambda one: one.running)
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
