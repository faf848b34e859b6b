"""The order in which a server answers waiting clients."""

from __future__ import annotations

import asyncio

import pytest

from fhir_gym.fhir.adapters.http import RequestQueue
from fhir_gym.fhir.messages import Response


class Clock:
    """A fake clock; only the work of a request advances it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Records the order of responses and each client's waiting time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.queue = RequestQueue(self.clock)
        self.order: list[str] = []
        self.waits: dict[str, float] = {}

    async def ask(self, client: str, seconds: float, expected: float = 0.0, *, gone: bool = False) -> Response | None:
        start = self.clock.now

        def work() -> Response:
            self.order.append(client)
            self.clock.now += seconds
            return Response(200)

        async def wanted() -> bool:
            return not gone

        answer = await self.queue.run(client, work, expected=expected, is_wanted=wanted)
        self.waits[client] = max(self.waits.get(client, 0.0), self.clock.now - start)
        return answer


@pytest.fixture
def server() -> Server:
    return Server()


def test_equals_go_in_order_of_arrival(server: Server) -> None:
    async def go() -> None:
        await asyncio.gather(*(server.ask(name, 0.1) for name in "abc"))

    asyncio.run(go())
    assert server.order == ["a", "b", "c"]


def test_a_client_waits_for_one_request_of_another_only(server: Server) -> None:
    async def flood() -> None:
        await asyncio.gather(*(server.ask("greedy", 0.5) for _ in range(20)))

    async def modest() -> None:
        for _ in range(10):
            await asyncio.sleep(0)
            await server.ask("modest", 0.001)

    async def go() -> None:
        await asyncio.gather(flood(), modest())

    asyncio.run(go())
    assert server.waits["modest"] < 0.6
    assert server.order.count("greedy") == 20


def test_many_connections_do_not_help_the_greedy(server: Server) -> None:
    async def flood(number: int) -> None:
        for _ in range(5):
            await server.ask(f"greedy-{number}", 0.5, 0.5)

    async def modest() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
            await server.ask("modest", 0.001)

    async def go() -> None:
        await asyncio.gather(*map(flood, range(20)), modest())

    asyncio.run(go())
    assert server.waits["modest"] < 0.6


def test_old_usage_is_forgiven(server: Server) -> None:
    asyncio.run(_once(server))
    used = server.queue.used("a")
    server.clock.now += 10
    assert server.queue.used("a") == pytest.approx(used / 2)


async def _once(server: Server) -> None:
    await server.ask("a", 1.0)


def test_requests_of_disconnected_clients_are_dropped(server: Server) -> None:
    async def go() -> list[Response | None]:
        return [*await asyncio.gather(server.ask("a", 0.1), server.ask("b", 0.1, gone=True), server.ask("c", 0.1))]

    answers = asyncio.run(go())
    assert [answer is None for answer in answers] == [False, True, False]
    assert server.order == ["a", "c"]


def test_an_error_reaches_its_requester(server: Server) -> None:
    async def wanted() -> bool:
        return True

    def fail() -> Response:
        raise RuntimeError("broken")

    async def go() -> Response | None:
        with pytest.raises(RuntimeError):
            await server.queue.run("a", fail, expected=0, is_wanted=wanted)
        return await server.ask("b", 0.1)

    assert asyncio.run(go()) == Response(200)
