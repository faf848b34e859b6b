"""Run many conversations concurrently on one event loop.

The event loop runs in a thread of its own, so callers may run another event loop.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from queue import SimpleQueue

from typing_extensions import override

from fhir_gym.agents import ConcurrentAgent
from fhir_gym.concurrency import gather_or_cancel
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.running_server import RunningServer
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.episode_runner import run_conversation
from fhir_gym.rollouts.plan import RunPlan
from fhir_gym.rollouts.record import Rollout


class BackgroundWorkers(ABC):
    """Asynchronous workers in a background thread; the caller's thread receives their rollouts."""

    def __init__(self) -> None:
        self._done: SimpleQueue[Rollout | Callable[[], None] | BaseException | None] = SimpleQueue()
        """What the caller's thread receives: rollouts, calls to make there, an exception, and None at the end."""
        self._thread = threading.Thread(target=self._run, name="fhir-gym-rollouts", daemon=True)
        self._started = threading.Event()
        self._cancelled = False
        self._work: asyncio.Task[None] | None = None

    def run(self) -> Generator[Rollout]:
        """Run the workers, and yield each rollout when its episode ends."""
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
        self._cancelled = True
        if self._work is not None:
            with suppress(RuntimeError):  # the loop is closed, so there is nothing to cancel
                self._work.get_loop().call_soon_threadsafe(self._work.cancel)

    def stop(self) -> None:
        """Cancel the remaining work and wait for the thread."""
        if self._thread.is_alive():
            self.cancel()
            self._thread.join()

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
        self._work = asyncio.create_task(self._all())
        if self._cancelled:  # `cancel` was called before the task existed
            self._work.cancel()
        self._started.set()
        try:
            await self._work
        finally:
            await self._close()

    @abstractmethod
    async def _all(self) -> None:
        """Run all workers."""

    @abstractmethod
    async def _close(self) -> None:
        """Close what the workers opened on the event loop."""


class AsyncWorkerPool(BackgroundWorkers):
    """Runs up to `concurrency` episodes of a plan at the same time."""

    def __init__(
        self,
        plan: RunPlan,
        agent: ConcurrentAgent,
        world: World,
        tracker: BudgetTracker,
        concurrency: int,
        server: RunningServer | None = None,
    ) -> None:
        super().__init__()
        self._plan, self._agent, self._world, self._tracker = plan, agent, world, tracker
        self._server = server
        self._concurrency = concurrency
        self._episodes = iter(plan.episodes)

    @override
    async def _close(self) -> None:
        await self._agent.aclose()

    @override
    async def _all(self) -> None:
        await gather_or_cancel(self._worker() for _ in range(self._concurrency))

    async def _worker(self) -> None:
        for episode in self._episodes:
            if not self._tracker.try_begin():
                return
            rollout = await run_conversation(self._plan, episode, self._agent, self._world, self._tracker, self._server)
            if rollout.stop_reason != "interrupted":
                self._done.put(rollout)
                continue
            if self._cancelled:  # otherwise the failure of another episode ends the run, and this record is dropped
                self._done.put(rollout)
            raise asyncio.CancelledError
