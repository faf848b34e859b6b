"""Gives the episodes of a run to the places where they run: this process, worker processes, servers, Ray actors."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from fhir_gym.concurrency import LoopThread, gather_or_cancel
from fhir_gym.errors import InfraError
from fhir_gym.rollouts.budget import BudgetTracker
from fhir_gym.rollouts.episode_runner import Attempt
from fhir_gym.rollouts.plan import EpisodeSpec
from fhir_gym.rollouts.record import Rollout

OnRetired = Callable[[str, str], None]
"""Function that is called with the base URL of a retired server and the reason."""

_AHEAD = 4
"""Number of episodes per slot that may be running or finished before the caller takes their rollouts."""


class PlaceLostError(Exception):
    """A place cannot run episodes any more; its running episodes have to start again."""


class _NothingLeftError(Exception):
    """Every episode is over, or the budget is used up."""


async def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class Place:
    """Where episodes run.

    Attributes:
        attempt: Runs an episode.
        slots: Number of episodes that run at the same time.
        url: Base URL of the place's FHIR server; empty for the embedded server.
        close: Closes what the agent opened, at the end of the run.
    """

    attempt: Callable[[EpisodeSpec], Awaitable[Attempt]]
    slots: int = 1
    url: str = ""
    close: Callable[[], Awaitable[None]] = _nothing

    async def start(self) -> None:
        """Prepare the place; called again if it was lost and restarts."""

    def restarts(self, lost: PlaceLostError) -> bool:
        """Whether the place, which is lost, can start again."""
        return False


class Scheduler:
    """Runs episodes in places, and hands their rollouts over to the caller.

    The episodes of a lost place start again in another place, unless they have a verdict. Before an exception ends the
    run, the rollouts that are left are handed over.

    Args:
        episodes: The episodes in order.
        tracker: The budget.
        ordered: Whether the rollouts keep the order of the episodes; otherwise each is handed over when it ends.
        on_retired: Function to call, in the caller's thread, for each server that is lost.

    Attributes:
        caller: The connection with the thread that iterates.
    """

    def __init__(
        self, episodes: Sequence[EpisodeSpec], tracker: BudgetTracker, *, ordered: bool, on_retired: OnRetired
    ) -> None:
        self.caller = LoopThread[Rollout]()
        self._episodes, self._tracker, self._ordered, self._on_retired = episodes, tracker, ordered, on_retired
        self._unstarted = deque(range(len(episodes)))
        self._begun: deque[int] = deque()
        """Episodes that the budget has counted and that do not run, because their place was lost."""
        self._running = self._not_taken = self._following = 0
        self._held: dict[int, Rollout] = {}
        self._retired: list[str] = []
        self._changed = asyncio.Event()

    def rollouts(self, places: AbstractContextManager[Sequence[Place]]) -> Iterator[Rollout]:
        """Run the episodes until they are over or the budget is used up, and yield their rollouts.

        Args:
            places: The places, which are open as long as the episodes run.

        Raises:
            InfraError: All servers are lost.
        """
        if self._episodes:
            with places as self._places:
                yield from self.caller.values(self._run())

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        self._ahead = _AHEAD * sum(place.slots for place in self._places)
        try:
            await gather_or_cancel(self._serve(place) for place in self._places)
        except _NothingLeftError:
            pass
        finally:
            for number in sorted(self._held):
                self._hand_over(number)
            await asyncio.gather(*(place.close() for place in self._places))

    async def _serve(self, place: Place) -> None:
        """Run episodes in a place until it is lost."""
        while True:
            try:
                await place.start()
                await gather_or_cancel(self._work(place) for _ in range(place.slots))
            except PlaceLostError as lost:
                if not place.restarts(lost):
                    return self._retire(place, str(lost))

    def _retire(self, place: Place, reason: str) -> None:
        self._retired.append(reason)
        self.caller.call_in_caller(partial(self._on_retired, place.url, reason))
        if len(self._retired) == len(self._places):
            if self._begun or (self._unstarted and not self._tracker.exhausted):
                raise InfraError(f"no FHIR server is left: {'; '.join(self._retired)}")
            raise _NothingLeftError

    async def _work(self, place: Place) -> None:
        """Run one episode after another in a place."""
        while True:
            number = await self._next()
            rollout, failure = await self._attempt(place, number)
            lost = failure is not None and len(self._places) > 1
            if lost and not rollout.graded:
                self._begun.append(number)
            else:
                self._finish(number, rollout)
            if lost:
                raise PlaceLostError(str(failure))
            if rollout.stop_reason == "interrupted":
                self.caller.call_in_caller(_interrupt)
                raise _NothingLeftError

    async def _next(self) -> int:
        """Return the number of an episode to start. Wait while a running episode may have to start again."""
        while not self._begun and not self._begin():
            if not self._running and not self._unstarted:
                raise _NothingLeftError
            self._changed.clear()
            await self._changed.wait()
        self._running += 1
        return self._begun.popleft()

    def _begin(self) -> bool:
        """Return whether the budget and the caller allow a further episode; if so, it is begun."""
        if not self._unstarted or self._not_taken >= self._ahead:
            return False
        if not self._tracker.try_begin():
            self._unstarted.clear()
            return False
        self._begun.append(self._unstarted.popleft())
        self._not_taken += 1
        return True

    async def _attempt(self, place: Place, number: int) -> Attempt:
        try:
            attempt = await place.attempt(self._episodes[number])
        except (PlaceLostError, asyncio.CancelledError):
            self._begun.append(number)
            self._ended()
            raise
        self._ended()  # not after another exception, as no episode should start any more
        if _is_cancelled(asyncio.current_task()):  # the attempt caught the cancellation
            if attempt.rollout.graded or _is_cancelled(self._task):  # otherwise the failure of another episode counts
                self._finish(number, attempt.rollout)
            raise asyncio.CancelledError
        return attempt

    def _ended(self) -> None:
        self._running -= 1
        self._changed.set()

    def _finish(self, number: int, rollout: Rollout) -> None:
        self._held[number] = rollout
        if not self._ordered:
            self._hand_over(number)
        while self._ordered and self._following in self._held:
            self._hand_over(self._following)
            self._following += 1

    def _hand_over(self, number: int) -> None:
        self.caller.hand_over(self._held.pop(number))
        self.caller.call_in_caller(partial(self.caller.call_on_loop, self._taken))

    def _taken(self) -> None:
        self._not_taken -= 1
        self._changed.set()


def _is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    return task is not None and task.cancelling() > 0


def _interrupt() -> None:
    raise KeyboardInterrupt
