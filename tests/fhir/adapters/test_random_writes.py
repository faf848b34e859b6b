"""Whatever an agent sends, and whenever its process is killed: after close or restore, the server is as before."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from random import Random

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from fhir_gym import worlds
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from tests.fhir.adapters.hostile_agent import play, play_in_children
from tests.fhir.remote_writes import state
from tests.worlds.serving import served


class Moment:
    """A request before or after which something happens: the nth of all requests, or of those that are no GET."""

    def __init__(self, rng: Random) -> None:
        self.all = rng.random() < 0.5
        self.left = rng.randrange(4, 26) if self.all else rng.randrange(2, 9)
        self.after = rng.random() < 0.5

    def has_come(self, method: str) -> bool:
        """Count a request."""
        self.left -= self.all or method != "GET"
        return self.left == 0 and (self.all or method != "GET")


class Killer:
    """An ASGI application that kills a client at one of its requests, before or after carrying it out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.client = 0
        self.moment = Moment(Random(0))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not (self.client and scope["type"] == "http" and self.moment.has_come(scope["method"])):
            return await self.app(scope, receive, send)
        client, self.client = self.client, 0
        if self.moment.after:
            await self.app(scope, receive, _nowhere)
        os.kill(client, signal.SIGKILL)


async def _nowhere(_: Message) -> None:
    """Send nothing."""


@pytest.fixture(scope="module")
def killer(world: World) -> Killer:
    return Killer(create_app(world))


@pytest.fixture(scope="module")
def server(killer: Killer) -> Iterator[str]:
    with served(killer) as url:
        yield url


@contextmanager
def children(world: World, url: str) -> Iterator[Connection]:
    """Start a process that plays episodes in children of its own."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, world.path, url, os.environ["FHIR_GYM_STATE"])
    process = context.Process(target=play_in_children, args=arguments)
    process.start()
    try:
        yield ours
        ours.send(None)
        process.join(30)
    finally:
        process.kill()


def killed(server: str, world: World, killer: Killer, seeds: range) -> int:
    """Play episodes whose processes are killed at some request; return how many were killed."""
    before, number = state(server), 0
    with children(world, server) as pipe:
        for seed in seeds:
            pipe.send((seed, 6))
            killer.client, killer.moment = pipe.recv(), Moment(Random(seed))
            pipe.send("go")
            number += pipe.recv() == signal.SIGKILL
            killer.client = 0
            worlds.restore(world, server)
            assert state(server) == before, seed
    assert worlds.compare(world, server).equal
    return number


class Crash(BaseException):
    """The end of a process."""


class Crashes(httpx.HTTPTransport):
    """Ends at one of its requests, before or after sending it."""

    def __init__(self, moment: Moment) -> None:
        super().__init__(verify=False)
        self.moment = moment
        self.ended = False

    @override
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.ended:
            raise Crash
        self.ended = self.moment.has_come(request.method)
        if not self.ended:
            return super().handle_request(request)
        if self.moment.after:
            super().handle_request(request).close()
        raise Crash


def crashed(server: str, world: World, seeds: range) -> None:
    """Play episodes; half of them end at some request, as by the end of their process."""
    before = state(server)
    for seed in seeds:
        transport = Crashes(Moment(Random(seed)))
        try:
            play(world, server, seed, 6, client=httpx.Client(transport=transport))
        except Crash:
            worlds.restore(world, server)
        assert state(server) == before, seed
    assert worlds.compare(world, server).equal


def test_after_a_crash_everything_is_as_before(server: str, world: World) -> None:
    crashed(server, world, range(15))


def test_after_kill_9_everything_is_as_before(server: str, world: World, killer: Killer) -> None:
    assert killed(server, world, killer, range(6)) >= 3


@pytest.mark.parametrize(
    "number", [pytest.param(60, marks=pytest.mark.slow), pytest.param(400, marks=pytest.mark.exhaustive)]
)
def test_after_many_crashes_everything_is_as_before(server: str, world: World, number: int) -> None:
    crashed(server, world, range(1_000, 1_000 + number))


@pytest.mark.parametrize(
    "number", [pytest.param(24, marks=pytest.mark.slow), pytest.param(160, marks=pytest.mark.exhaustive)]
)
def test_after_many_kills_everything_is_as_before(server: str, world: World, killer: Killer, number: int) -> None:
    assert killed(server, world, killer, range(2_000, 2_000 + number)) >= number / 2
