"""Run many episodes concurrently on one event loop, which runs in a thread of its own.

Callers may therefore run another event loop.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from copy import deepcopy
from functools import partial
from queue import SimpleQueue

from fhir_gym.agents import Agent, ConcurrentAgent
from fhir_gym.concurrency import call_in_thread, finished, gather_or_cancel
from fhir_gym.errors import FhirGymError, FhirServerError, InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.running_server import RunningServer
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.episode_runner import Attempt, attempt_episode, run_at_once
from fhir_gym.rollouts.plan import EpisodeSpec, RunPlan
from fhir_gym.rollouts.record import Rollout

OnRetired = Callable[[str, str], None]
"""Function that is called with the base URL of a retired server and the reason."""


def warn_of_retired(url: str, reason: str) -> None:
    """Warn that a server is used no more."""
    warnings.warn(f"{url} is used no more in this run: {reason}", stacklevel=2)


class EpisodePool:
    """Distributes episodes over workers as these become free. The caller's thread receives the rollouts.

    If there are several servers, a server that fails is retired, and its episode starts again on another server, unless
    the episode has a verdict. Each of several servers has one thread, in which everything happens that waits for the
    server. A `ConcurrentAgent` acts on the event loop; an `Agent` acts in the threads, and each server has its own copy
    of the agent.

    Args:
        plan: The episodes.
        agent: The agent; an `Agent` needs servers.
        world: The world.
        tracker: The budget.
        servers: The server of each worker; None for the embedded server.
        on_retired: Function to call for each retired server.

    Raises:
        FhirGymError: The agent cannot be copied.
    """

    def __init__(
        self,
        plan: RunPlan,
        agent: Agent | ConcurrentAgent,
        world: World,
        tracker: BudgetTracker,
        servers: Sequence[RunningServer | None],
        on_retired: OnRetired = warn_of_retired,
    ) -> None:
        self._plan, self._agent, self._world, self._tracker = plan, agent, world, tracker
        self._agents = [agent if isinstance(agent, ConcurrentAgent) else _copy(agent) for _ in servers]
        self._servers, self._on_retired = servers, on_retired
        self._failures: list[FhirServerError] = []
        self._waiting = deque(plan.episodes)
        self._begun: set[EpisodeSpec] = set()
        self._running = 0
        self._changed = asyncio.Condition()
        self._stopped = threading.Event()
        self._done: SimpleQueue[Rollout | Callable[[], None] | BaseException | None] = SimpleQueue()
        """What the caller's thread receives: rollouts, calls to make there, an exception, and None at the end."""
        self._thread = threading.Thread(target=self._run, name="fhir-gym-rollouts", daemon=True)
        self._started = threading.Event()
        self._cancelled = False
        self._work: asyncio.Task[list[None]] | None = None

    # in the caller's thread

    def in_order(self) -> Iterator[Rollout]:
        """Run the episodes, and yield the rollouts in the order of the plan.

        After an exception, the rollouts that are left are yielded before it is raised.
        """
        held: dict[EpisodeSpec, Rollout] = {}
        waiting = deque(self._plan.episodes)
        failure: BaseException | None = None
        try:
            with closing(self.run()) as rollouts:
                for rollout in rollouts:
                    held[EpisodeSpec(rollout.task.key, rollout.task.variation, rollout.repeat)] = rollout
                    while waiting and waiting[0] in held:
                        yield held.pop(waiting.popleft())
        except (Exception, KeyboardInterrupt) as error:
            failure = error
        yield from (held[episode] for episode in waiting if episode in held)
        if failure is not None:
            raise failure

    def run(self) -> Generator[Rollout]:
        """Run the episodes, and yield each rollout when its episode ends.

        Raises:
            InfraError: All servers have failed.
        """
        try:
            try:
                self.start()
                yield from self.rollouts()
            except KeyboardInterrupt:
                self.cancel()
                yield from self.rollouts()  # the interrupted episodes
                raise
        finally:
            self.stop()

    def start(self) -> None:
        """Start the thread and wait until its event loop runs."""
        self._thread.start()
        self._started.wait()

    def rollouts(self) -> Iterator[Rollout]:
        """Yield rollouts until all episodes are over; raise an exception of the workers, if there is one."""
        while (item := self._done.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, Rollout):
                yield item
            else:
                item()

    def cancel(self) -> None:
        """Interrupt the running episodes."""
        self._stopped.set()
        self._cancelled = True
        if self._work is not None:
            with suppress(RuntimeError):  # the loop is closed, so there is nothing to cancel
                self._work.get_loop().call_soon_threadsafe(self._work.cancel)

    def stop(self) -> None:
        """Cancel the remaining work and wait for the thread."""
        if self._thread.is_alive():
            self.cancel()
            self._thread.join()

    # in the thread of the event loop

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass  # `cancel` was called; all running episodes have returned their records
        except BaseException as error:  # `rollouts` raises it in the caller's thread
            self._done.put(error)
        finally:
            self._started.set()
            self._done.put(None)

    async def _main(self) -> None:
        pairs = zip(self._servers, self._agents, strict=True)
        self._work = asyncio.create_task(gather_or_cancel(self._serve(server, agent) for server, agent in pairs))
        if self._cancelled:  # `cancel` was called before the task existed
            self._work.cancel()
        self._started.set()
        try:
            await self._work
        finally:
            if isinstance(self._agent, ConcurrentAgent):
                await self._agent.aclose()

    async def _serve(self, server: RunningServer | None, agent: Agent | ConcurrentAgent) -> None:
        """Run episodes until no episode is left or the server is retired."""
        try:
            with ThreadPoolExecutor(1, "fhir-gym-server") as thread:  # which starts at the first call
                while (episode := await self._next()) is not None:
                    attempt = await self._attempt(episode, server, agent, thread)
                    rollout = attempt.rollout
                    if rollout.stop_reason == "interrupted" or self._stopped.is_set():
                        if self._cancelled or rollout.graded:  # otherwise another episode's failure ends the run
                            self._done.put(rollout)
                        raise asyncio.CancelledError
                    failure = attempt.server_failure if self._has_several_servers else None
                    await self._finish(episode, rollout, failure)
                    if server is not None and failure is not None:
                        await self._retire(server, failure)
                        return
        except BaseException:
            self._stopped.set()  # threads end their episodes before the next action
            raise

    @property
    def _has_several_servers(self) -> bool:
        return len(self._servers) > 1 and self._servers[0] is not None

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
        self,
        episode: EpisodeSpec,
        server: RunningServer | None,
        agent: Agent | ConcurrentAgent,
        thread: ThreadPoolExecutor,
    ) -> Attempt:
        attempt = partial(attempt_episode, self._plan, episode, agent, self._world, self._tracker, server)
        if not self._has_several_servers:
            return await attempt()
        if isinstance(agent, ConcurrentAgent):
            return await attempt(partial(call_in_thread, thread))
        alone = attempt(stopped=self._stopped)
        future = asyncio.get_running_loop().run_in_executor(thread, run_at_once, alone)
        with suppress(asyncio.CancelledError):  # the record says that the episode was interrupted
            await finished(future)
        return future.result()

    async def _finish(self, episode: EpisodeSpec, rollout: Rollout, failure: FhirServerError | None) -> None:
        """Hand over the record of an episode, or let the episode start again if its server failed."""
        async with self._changed:
            self._running -= 1
            if failure is None or rollout.graded:
                self._done.put(rollout)
            else:
                self._waiting.appendleft(episode)
            self._changed.notify_all()

    async def _retire(self, server: RunningServer, failure: FhirServerError) -> None:
        """Use a server no more.

        Raises:
            InfraError: No server is left for the remaining episodes.
        """
        self._failures.append(failure)
        self._done.put(partial(self._on_retired, server.url, str(failure)))
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
