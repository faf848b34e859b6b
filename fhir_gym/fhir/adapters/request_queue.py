"""The order of requests from several clients to one session."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from fhir_gym.fhir.messages import Response

_CLIENTS = 4_096
"""Maximum number of clients in the usage record; the least recent client is dropped first."""

_ROUNDS = 12
"""Number of event loop rounds that a request needs to get from its socket into this queue."""

_HALF_LIFE = 10.0
"""Time in seconds after which a client's recorded use is halved."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A waiting request.

    `number` is the request's number in order of arrival; `wanted` returns whether the client is still connected.
    """

    client: Hashable
    expected: float
    work: Callable[[], Response]
    wanted: Callable[[], Awaitable[bool]]
    number: int
    answer: asyncio.Future[Response | None]


@dataclass(slots=True)
class RequestQueue:
    """Runs requests one after another. The client that has used the server least goes first.

    Between two requests, the event loop reads new requests. So a client waits only for the running request, and not for
    all earlier requests of another client.
    """

    clock: Callable[[], float] = time.perf_counter
    executor: Executor | None = None
    """Runs the requests; None for the event loop's thread, in which a short request takes least time."""
    _waiting: list[_Waiting] = field(default_factory=list)
    _used: OrderedDict[Hashable, tuple[float, float]] = field(default_factory=OrderedDict)
    _arrived: int = 0
    _task: asyncio.Task[None] | None = None

    async def run(
        self, client: Hashable, work: Callable[[], Response], *, expected: float, wanted: Callable[[], Awaitable[bool]]
    ) -> Response | None:
        """Wait for the request's turn and run it.

        Args:
            client: The client's address and port.
            work: Function that answers the request without waiting.
            expected: The expected duration in seconds. If clients have equal use, the shortest request goes first.
            wanted: Function that returns whether the client is still connected; called if the request had to wait.

        Returns:
            The response; None if the client is gone.
        """
        answer: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
        self._arrived += 1
        self._waiting.append(_Waiting(client, expected, work, wanted, self._arrived, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        try:
            waited = False
            while self._waiting:
                chosen = min(self._waiting, key=lambda one: (self.used(one.client) + one.expected, one.number))
                self._waiting.remove(chosen)
                if not chosen.answer.done():  # the answer to a cancelled request is already done
                    await self._answer(chosen, waited=waited)
                waited = True
                for _ in range(_ROUNDS if self._waiting else 0):  # the loop sends the answer and reads new requests
                    await asyncio.sleep(0)
        finally:
            self._task = None

    async def _answer(self, chosen: _Waiting, *, waited: bool) -> None:
        response: Response | None = None
        failure: Exception | None = None
        if not waited or await chosen.wanted():
            start = self.clock()
            try:
                if self.executor is None:
                    response = chosen.work()
                else:
                    response = await asyncio.get_running_loop().run_in_executor(self.executor, chosen.work)
            except Exception as error:
                failure = error
            self._use(chosen.client, self.clock() - start)
        if chosen.answer.done():
            return  # cancelled meanwhile
        if failure is None:
            chosen.answer.set_result(response)
        else:
            chosen.answer.set_exception(failure)

    def used(self, client: Hashable) -> float:
        """Return how much of the server's time a client has used recently, in seconds."""
        seconds, at = self._used.get(client, (0.0, 0.0))
        return seconds * 0.5 ** ((self.clock() - at) / _HALF_LIFE) if seconds else 0.0

    def _use(self, client: Hashable, seconds: float) -> None:
        self._used[client] = (self.used(client) + seconds, self.clock())
        self._used.move_to_end(client)
        if len(self._used) > _CLIENTS:
            self._used.popitem(last=False)
