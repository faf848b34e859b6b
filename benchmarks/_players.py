"""Players of the benchmark of integrations: each plays episodes through one framework."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import httpx
from typing_extensions import override

from fhir_gym import Episode, EpisodeConfig
from fhir_gym.actions import GRAMMAR, Action, to_request
from fhir_gym.fhir import DEFAULT_BASE_URL, Request, World

__all__ = ["ENV_ID", "FRAMEWORKS", "Framework", "GoldActions", "Player"]

ENV_ID = "FHIRAgent/Appointment-v0"


@dataclass(frozen=True)
class GoldActions:
    """The actions of the reference solution of one episode.

    Attributes:
        task: Key of the task.
        variation: Number of the variation.
        actions: The actions; the last one is ``FINISH``.
    """

    task: str
    variation: int
    actions: Sequence[Action]


class Player(ABC):
    """Plays episodes through a framework. A framework without async functions does its work without awaiting."""

    @abstractmethod
    async def start(self, gold: GoldActions) -> None:
        """Start an episode."""

    @abstractmethod
    async def step(self, action: Action) -> None:
        """Perform one action through the framework."""


@dataclass(frozen=True)
class Framework:
    """A framework to measure.

    Attributes:
        package: Import name of the package that it needs.
        open: Makes a player on a world. The player is closed at the end of the context.
        limit_us: The overhead per step in microseconds that must not be exceeded.
    """

    package: str
    open: Callable[[World], AbstractAsyncContextManager[Player]]
    limit_us: int


def tool_call(action: Action) -> tuple[str, dict[str, Any]]:
    """Return an action as the name and the arguments of a tool."""
    call = GRAMMAR.to_tool_call(action)
    if call is None:
        raise ValueError(f"no tool can express {action.text()}")
    return call


class _EnvPlayer(Player):
    """The Gymnasium environment."""

    def __init__(self, world: World) -> None:
        self._env = gym.make(ENV_ID, world=world, disable_env_checker=True)

    @override
    async def start(self, gold: GoldActions) -> None:
        self._env.reset(options={"task": gold.task, "variation": gold.variation})

    @override
    async def step(self, action: Action) -> None:
        self._env.step(action.text())


@asynccontextmanager
async def gymnasium(world: World) -> AsyncIterator[Player]:
    """Play through `gymnasium.make`."""
    yield _EnvPlayer(world)


class _ToolEnvPlayer(Player):
    """The tools of TRL's ``environment_factory``, called as TRL's trainer calls them."""

    def __init__(self, world: World) -> None:
        from fhir_gym.integrations.trl import FHIRToolEnv

        self._env = FHIRToolEnv(world=world)

    @override
    async def start(self, gold: GoldActions) -> None:
        self._env.reset(ENV_ID, gold.task, gold.variation)

    @override
    async def step(self, action: Action) -> None:
        name, arguments = tool_call(action)
        getattr(self._env, name)(**arguments)


@asynccontextmanager
async def trl(world: World) -> AsyncIterator[Player]:
    """Play through `FHIRToolEnv`."""
    yield _ToolEnvPlayer(world)


class _TextPlayer(Player):
    """The episode of the trainers that call an environment step by step, in a thread as their adapters call it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._resources = ExitStack()

    @override
    async def start(self, gold: GoldActions) -> None:
        from fhir_gym.text_episode import TextEpisode

        self.close()
        row = {"env_id": ENV_ID, "task": gold.task, "variation": gold.variation}
        self._episode = self._resources.enter_context(TextEpisode(row, {"world": self._world}))
        self._episode.start()

    @override
    async def step(self, action: Action) -> None:
        await asyncio.to_thread(self._episode.step, action.text())

    def close(self) -> None:
        """Close the episode."""
        self._resources.close()


@asynccontextmanager
async def trainers(world: World) -> AsyncIterator[Player]:
    """Play through `TextEpisode`, without what a trainer adds."""
    player = _TextPlayer(world)
    yield player
    player.close()


class _McpPlayer(Player):
    """An MCP client of the FHIR tools."""

    def __init__(self, client: Any) -> None:
        self._client, self._episode = client, ""

    @override
    async def start(self, gold: GoldActions) -> None:
        task = {"env_id": ENV_ID, "task": gold.task, "variation": gold.variation}
        started = await self._client.call_tool("start_task", task)
        self._episode = started.structured_content["episode_id"]

    @override
    async def step(self, action: Action) -> None:
        name, arguments = tool_call(action)
        result = await self._client.call_tool(name, {"episode_id": self._episode, **arguments})
        if result.is_error:
            raise RuntimeError(f"{name} failed: {result.content}")


@asynccontextmanager
async def mcp(world: World) -> AsyncIterator[Player]:
    """Play over streamable HTTP on a server process of its own, which serves the same world."""
    from mcp import Client

    from benchmarks.mcp import serving

    with serving(max_steps=100) as (url, _):
        async with Client(url) as client:
            yield _McpPlayer(client)


class _OpenEnvPlayer(Player):
    """A client with a session on an OpenEnv server."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @override
    async def start(self, gold: GoldActions) -> None:
        await self._client.reset(task=gold.task, variation=gold.variation)

    @override
    async def step(self, action: Action) -> None:
        from fhir_gym.integrations.openenv import FHIRAction

        await self._client.step(FHIRAction(text=action.text()))


@asynccontextmanager
async def openenv(world: World) -> AsyncIterator[Player]:
    """Play over a WebSocket on a server process of its own, which serves the same world."""
    from fhir_gym.integrations.openenv import FHIREnvClient

    command = [sys.executable, "-m", "fhir_gym", "openenv", "serve", ENV_ID, "--port", str(free_port())]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            url = server.stderr.readline().split()[3]  # "OpenEnv server at URL": the server is ready
            async with FHIREnvClient(base_url=url) as client:
                yield _OpenEnvPlayer(client)
        finally:
            server.terminate()


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class _InspectPlayer(Player):
    """The tools of an Inspect task, called with arguments that Inspect has checked."""

    def __init__(self, world: World) -> None:
        from inspect_ai.tool import ToolDef

        from fhir_gym.integrations.inspect import appointment, fhir_tools

        self._task = appointment(split="train", variations="0-4", world=world)
        self._samples = {sample.id: sample for sample in self._task.dataset}
        self._tools = {ToolDef(tool).name: tool for tool in fhir_tools()}
        self._state: Any = None

    @override
    async def start(self, gold: GoldActions) -> None:
        from inspect_ai.solver import TaskState
        from inspect_ai.util._store import init_subtask_store

        await self.close()
        sample = self._samples[f"{gold.task}/{gold.variation}"]
        self._state = TaskState("model", sample.id, 1, sample.input, [], metadata=sample.metadata)
        init_subtask_store(self._state.store)
        await self._task.setup(self._state, None)

    @override
    async def step(self, action: Action) -> None:
        name, arguments = tool_call(action)
        await self._tools[name](**arguments)

    async def close(self) -> None:
        """Close the episode."""
        if self._state is not None:
            await self._task.cleanup(self._state)


@asynccontextmanager
async def inspect(world: World) -> AsyncIterator[Player]:
    """Play through the tools for Inspect, without Inspect's own work for a call (checks, transcript)."""
    player = _InspectPlayer(world)
    yield player
    await player.close()


class _VerifiersPlayer(Player):
    """The environment for verifiers, with an agent that replies at once."""

    def __init__(self, world: World) -> None:
        from fhir_gym.integrations.verifiers import FHIREnv

        self._world = world
        self._env = FHIREnv.__new__(FHIREnv)  # its constructor loads the taskset and the harness
        self._env._config = EpisodeConfig(ENV_ID, world=world)
        self._replies: asyncio.Queue[str] = asyncio.Queue()
        self._asked = asyncio.Event()
        self._episode: Episode | None = None
        self._running: asyncio.Task[Any] | None = None
        self.trace = SimpleNamespace(stop=lambda _: self._asked.set())

    @override
    async def start(self, gold: GoldActions) -> None:
        self.close()
        self._episode = Episode(ENV_ID, task=gold.task, variation=gold.variation, world=self._world)
        self._asked.clear()
        self._running = asyncio.create_task(self._env._play(self._episode, self))
        await self._asked.wait()

    @override
    async def step(self, action: Action) -> None:
        self._asked.clear()
        self._replies.put_nowait(action.text())
        await self._asked.wait()

    async def turn(self, observation: str) -> Any:
        """Return the next reply of the agent, as an interaction of verifiers does."""
        self._asked.set()
        return SimpleNamespace(terminated=False, last_reply=await self._replies.get())

    def close(self) -> None:
        """Close the episode."""
        if self._episode is not None:
            self._episode.close()


@asynccontextmanager
async def verifiers(world: World) -> AsyncIterator[Player]:
    """Play through the environment for verifiers, without the requests of verifiers to a model."""
    player = _VerifiersPlayer(world)
    yield player
    player.close()


class _HarborPlayer(Player):
    """An HTTP client of the servers of one episode that run beside agents in Harbor."""

    def __init__(self, world: World, client: httpx.Client, stack: ExitStack) -> None:
        self._world, self._client, self._servers = world, client, stack

    @override
    async def start(self, gold: GoldActions) -> None:
        from fhir_gym.integrations.harbor import ServedEpisode, make_episode_app, open_recorder
        from fhir_gym.testing.servers import AppServer

        self._servers.close()
        config = EpisodeConfig(ENV_ID, max_steps=100)
        episode = ServedEpisode(open_recorder(config, gold.task, gold.variation, self._world))
        self._servers.callback(episode.close)
        self._origin = self._servers.enter_context(AppServer(make_episode_app(episode, "127.0.0.1"))).url

    @override
    async def step(self, action: Action) -> None:
        if action.kind == "FINISH":
            self._client.post(f"{self._origin}/finish", json=action.answer).raise_for_status()
            return
        request = to_request(action, DEFAULT_BASE_URL)
        assert isinstance(request, Request)
        url = f"{self._origin}/fhir{request.path}?{request.query}".rstrip("?")
        self._client.request(request.method, url, headers=dict(request.headers), content=request.body)


@asynccontextmanager
async def harbor(world: World) -> AsyncIterator[Player]:
    """Play over HTTP, on a server in a thread of this process."""
    with httpx.Client() as client, ExitStack() as stack:
        yield _HarborPlayer(world, client, stack)


FRAMEWORKS = {
    "gymnasium": Framework("gymnasium", gymnasium, 200),
    "harbor": Framework("mcp_types", harbor, 3_000),  # the server needs the MCP SDK, and not Harbor itself
    "inspect": Framework("inspect_ai", inspect, 200),
    "mcp": Framework("mcp_types", mcp, 5_000),  # version 1 of the SDK does not have this package
    "openenv": Framework("openenv", openenv, 3_000),
    "trainers": Framework("fhir_gym", trainers, 1_000),
    "trl": Framework("trl", trl, 200),
    "verifiers": Framework("verifiers", verifiers, 200),
}
"""The frameworks by name; a new integration adds a line."""
