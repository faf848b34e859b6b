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
from tests.property.scene import build_world
from tests.worlds.serving import served


class Killer:
    """An ASGI application that kills a client at one of its requests, before or after carrying it out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.client = self.left = 0
        self.after = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.left -= scope["type"] == "http"
        if self.left or scope["type"] != "http" or not self.client:
            return await self.app(scope, receive, send)
        client, self.client = self.client, 0
        if self.after:
            await self.app(scope, receive, _nowhere)
        os.kill(client, signal.SIGKILL)


async def _nowhere(_: Message) -> None:
    """Send nothing."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with build_world(tmp_path_factory.mktemp("random")) as world:
        yield world


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
            rng = Random(seed)
            pipe.send((seed, 6))
            killer.client, killer.left, killer.after = pipe.recv(), rng.randrange(4, 30), rng.random() < 0.5
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

    def __init__(self, left: int, *, after: bool) -> None:
        super().__init__(verify=False)
        self.left, self.after = left, after

    @override
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.left -= 1
        if self.left <= 0:
            if self.after and not self.left:
                super().handle_request(request).close()
            raise Crash
        return super().handle_request(request)


def crashed(server: str, world: World, seeds: range) -> None:
    """Play episodes; half of them end at some request, as by the end of their process."""
    before = state(server)
    for seed in seeds:
        rng = Random(seed)
        transport = Crashes(rng.randrange(4, 60), after=rng.random() < 0.5)
        try:
            play(world, server, seed, 6, client=httpx.Client(transport=transport))
        except Crash:
            worlds.restore(world, server)
        assert state(server) == before, seed
    assert worlds.compare(world, server).equal


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.fhir.adapters.remote.sleep", lambda _: None)


def test_after_a_crash_everything_is_as_before(server: str, world: World) -> None:
    crashed(server, world, range(25))


def test_after_kill_9_everything_is_as_before(server: str, world: World, killer: Killer) -> None:
    assert killed(server, world, killer, range(12)) >= 6


@pytest.mark.slow
def test_after_many_crashes_everything_is_as_before(server: str, world: World) -> None:
    crashed(server, world, range(1_000, 1_200))


@pytest.mark.slow
def test_after_many_kills_everything_is_as_before(server: str, world: World, killer: Killer) -> None:
    assert killed(server, world, killer, range(2_000, 2_080)) >= 40
