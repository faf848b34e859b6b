"""Run episodes on several FHIR servers at the same time: one episode per server."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from copy import deepcopy
from functools import partial

from typing_extensions import override

from fhir_gym.agents import Agent, ConcurrentAgent
from fhir_gym.concurrency import call_in_thread, finished, gather_or_cancel
from fhir_gym.errors import FhirGymError, FhirServerError, InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.running_server import RunningServer
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.episode_runner import Attempt, attempt_conversation, attempt_episode
from fhir_gym.rollouts.plan import EpisodeSpec, RunPlan
from fhir_gym.rollouts.record import Rollout
from fhir_gym.rollouts.worker_pool import BackgroundWorkers

OnRetired = Callable[[str, str], None]
"""Function that is called with the base URL of a retired server and the reason."""


def run_on_servers(
    plan: RunPlan,
    agent: Agent | ConcurrentAgent,
    world: World,
    tracker: BudgetTracker,
    servers: Sequence[RunningServer],
    on_retired: OnRetired | None = None,
) -> Iterator[Rollout]:
    """Run the episodes of a plan on several servers.

    The rollouts of an `Agent` are yielded in the order of the plan; those of a `ConcurrentAgent` when they end.

    Raises:
        FhirGymError: The agent cannot be copied (at once).
        InfraError: All servers have failed (during iteration).
    """
    pool = ServerPool(plan, agent, world, tracker, servers, on_retired or warn_of_retired)
    return pool.run() if isinstance(agent, ConcurrentAgent) else _in_order(pool, plan.episodes)


def warn_of_retired(url: str, reason: str) -> None:
    """Warn that a server is used no more."""
    warnings.warn(f"{url} is used no more in this run: {reason}", stacklevel=2)


class ServerPool(BackgroundWorkers):
    """Distributes episodes over servers as these become free.

    A server that fails is retired, and its episode starts again on another server, unless it has a verdict. Each server
    has one thread, in which everything happens that waits for the server. A `ConcurrentAgent` acts on the event loop;
    an `Agent` acts in the threads, and each server has its own copy of the agent.
    """

    def __init__(
        self,
        plan: RunPlan,
        agent: Agent | ConcurrentAgent,
        world: World,
        tracker: BudgetTracker,
        servers: Sequence[RunningServer],
        on_retired: OnRetired,
    ) -> None:
        super().__init__()
        self._plan, self._agent, self._world, self._tracker = plan, agent, world, tracker
        self._agents = [agent if isinstance(agent, ConcurrentAgent) else _copy(agent) for _ in servers]
        self._servers, self._on_retired = servers, on_retired
        self._failures: list[FhirServerError] = []
        self._waiting = deque(plan.episodes)
        self._begun: set[EpisodeSpec] = set()
        self._running = 0
        self._changed = asyncio.Condition()
        self._stopped = threading.Event()

    @override
    def cancel(self) -> None:
        self._stopped.set()
        super().cancel()

    @override
    async def _close(self) -> None:
        if isinstance(self._agent, ConcurrentAgent):
            await self._agent.aclose()

    @override
    async def _all(self) -> None:
        pairs = zip(self._servers, self._agents, strict=True)
        await gather_or_cancel(self._serve(server, agent) for server, agent in pairs)

    async def _serve(self, server: RunningServer, agent: Agent | ConcurrentAgent) -> None:
        """Run episodes on a server until no episode is left or the server fails."""
        try:
            with ThreadPoolExecutor(1, "fhir-gym-server") as thread:
                while (episode := await self._next()) is not None:
                    attempt = await self._attempt(episode, server, agent, thread)
                    if attempt.rollout.stop_reason == "interrupted" or self._stopped.is_set():
                        if (
                            self._cancelled or attempt.rollout.graded
                        ):  # otherwise another episode's failure ends the run
                            self._done.put(attempt.rollout)
                        raise asyncio.CancelledError
                    await self._finish(episode, attempt, server)
                    if attempt.server_failure is not None:
                        return
        except BaseException:
            self._stopped.set()  # threads end their episodes before the next action
            raise

    async def _next(self) -> EpisodeSpec | None:
        """Return the next episode; None if all are over. Wait while a running episode may have to start again."""
        async with self._changed:
            while True:
                if self._waiting:
                    episode = self._waiting[0]
                    if episode in self._begun or self._tracker.try_begin():
                        self._begun.add(episode)
                        self._running += 1
                        return self._waiting.popleft()
                    self._waiting.clear()
                if not self._running:
                    return None
                await self._changed.wait()

    async def _attempt(
        self, episode: EpisodeSpec, server: RunningServer, agent: Agent | ConcurrentAgent, thread: ThreadPoolExecutor
    ) -> Attempt:
        plan, world, tracker = self._plan, self._world, self._tracker
        if isinstance(agent, ConcurrentAgent):
            call = partial(call_in_thread, thread)
            return await attempt_conversation(plan, episode, agent, world, tracker, server, call)
        future = asyncio.get_running_loop().run_in_executor(
            thread, attempt_episode, plan, episode, agent, world, tracker, server, self._stopped
        )
        with suppress(asyncio.CancelledError):  # the record says that the episode was interrupted
            await finished(future)
        return future.result()

    async def _finish(self, episode: EpisodeSpec, attempt: Attempt, server: RunningServer) -> None:
        """Hand over the record of an episode, or let the episode start again if its server failed.

        Raises:
            InfraError: No server is left for the remaining episodes.
        """
        failure = attempt.server_failure
        async with self._changed:
            self._running -= 1
            if failure is None or attempt.rollout.graded:
                self._done.put(attempt.rollout)
            else:
                self._waiting.appendleft(episode)
            if failure is not None:
                self._failures.append(failure)
                self._done.put(partial(self._on_retired, server.url, str(failure)))
            self._changed.notify_all()
            if len(self._failures) == len(self._servers) and self._has_work():
                raise InfraError(f"no FHIR server is left: {'; '.join(map(str, self._failures))}")

    def _has_work(self) -> bool:
        return bool(self._waiting) and (self._waiting[0] in self._begun or not self._tracker.exhausted)


def _copy(agent: Agent) -> Agent:
    try:
        return deepcopy(agent)
    except Exception as error:
        raise FhirGymError(
            f"agent {agent.name} cannot be copied for each FHIR server ({type(error).__name__}: {error}): "
            "use one server, or give the agent a method __deepcopy__"
        ) from error


def _in_order(pool: ServerPool, episodes: Sequence[EpisodeSpec]) -> Iterator[Rollout]:
    """Yield rollouts in the order of episodes. After an exception, yield those that are left before raising it."""
    held: dict[EpisodeSpec, Rollout] = {}
    waiting = deque(episodes)
    failure: BaseException | None = None
    try:
        with closing(pool.run()) as rollouts:
            for rollout in rollouts:
                held[EpisodeSpec(rollout.task.key, rollout.task.variation, rollout.repeat)] = rollout
                while waiting and waiting[0] in held:
                    yield held.pop(waiting.popleft())
    except (Exception, KeyboardInterrupt) as error:
        failure = error
    yield from (held[episode] for episode in waiting if episode in held)
    if failure is not None:
        raise failure
