"""The tools over MCP: in process, over stdio and over streamable HTTP, with the SDK's client and with fastmcp's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import mcp
import pytest
from mcp_types import CallToolResult, TextContent

from fhir_gym import Episode, EpisodeConfig, read_rollouts
from fhir_gym.actions import GRAMMAR
from fhir_gym.agents.memory import Memory, Reflection
from fhir_gym.agents.tool_sources.memory import MemoryTools
from fhir_gym.agents.tool_sources.specification import SpecificationTools
from fhir_gym.errors import MissingExtraError
from fhir_gym.fhir import World
from fhir_gym.mcp_servers import SourceTools, TaskTools, ToolSet, WorldTools, make_app, make_server, require_sdk
from fhir_gym.tasks import get_task, pack_ids, task_keys
from fhir_gym.testing.servers import AppServer
from tests.mcp_servers.clients import APPOINTMENT, Caller, play_gold

FHIR = [sys.executable, "-m", "fhir_gym", "mcp", "fhir"]
FEW = ("01", "02a", "14a")


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def caller(client: mcp.Client) -> Caller:
    async def call(name: str, arguments: dict[str, Any]) -> tuple[str, Mapping[str, Any] | None]:
        result = await client.call_tool(name, arguments)
        return text_of(result), result.structured_content

    return call


async def gold(client: mcp.Client, world: World, tasks: tuple[str, ...] = FEW, env_id: str = APPOINTMENT) -> None:
    for task in tasks:
        verdict = await play_gold(caller(client), env_id, task, 1_000, world)
        assert verdict["success"] is True, (task, verdict)


def in_process(tools: ToolSet, name: str, arguments: dict[str, Any]) -> CallToolResult:
    async def go() -> CallToolResult:
        async with mcp.Client(make_server(tools)) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(go())


# in process


def test_the_served_schemas_are_those_of_the_tool_set(hospital: World) -> None:
    async def listed() -> None:
        async with mcp.Client(make_server(tools)) as client:
            assert client.instructions == tools.instructions
            found = {tool.name: tool for tool in (await client.list_tools()).tools}
            for schema in tools.schemas():
                function = schema["function"]
                tool = found.pop(function["name"])
                assert (tool.description, tool.input_schema) == (function["description"], function["parameters"])
                assert tool.annotations is not None
                assert tool.annotations.read_only_hint == (tool.name in ("searchResources", "getResourceById"))
            assert not found

    with TaskTools([EpisodeConfig(APPOINTMENT, world=hospital)]) as tools:
        grammar = {schema["function"]["name"] for schema in GRAMMAR.tools()}
        assert {schema["function"]["name"] for schema in tools.schemas()} == grammar | {"start_task"}
        asyncio.run(listed())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_gold_in_process(hospital: World, tmp_path: Path, mode: Literal["auto", "legacy"]) -> None:
    out = tmp_path / "rollouts.jsonl"

    async def play() -> None:
        me = mcp.types.Implementation(name="my-agent", version="3")
        async with mcp.Client(make_server(tools), mode=mode, client_info=me) as client:
            await gold(client, hospital, FEW[:2])

    with TaskTools([EpisodeConfig(APPOINTMENT, world=hospital)], out=out) as tools:
        asyncio.run(play())
    for rollout in read_rollouts(out):
        assert rollout.success and rollout.agent.settings == {"client": "my-agent", "client_version": "3"}


def test_errors_are_results(tiny_world: World, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    with WorldTools(tiny_world) as tools:
        absent = in_process(
            tools, "getResourceById", {"session_id": "1-x", "resourceType": "Patient", "resourceId": "1"}
        )
        assert absent.is_error and text_of(absent) == "Error: there is no session '1-x'"
        surrogate = in_process(tools, "getResourceById", {"resourceType": "\ud800", "resourceId": "1"})
        assert surrogate.is_error and "is not valid" in text_of(surrogate)

        def crash(*_: object) -> None:
            raise ValueError("secret detail")

        monkeypatch.setattr(tools, "call_now", crash)
        crashed = in_process(tools, "getResourceById", {})
        assert crashed.is_error and "secret" not in text_of(crashed) and "secret detail" in caplog.text


def test_look_up_tools_are_served() -> None:
    spec = SourceTools(SpecificationTools(), "Look up FHIR.")
    result = in_process(spec, "getSearchParams", {"resourceType": "Slot"})
    assert not result.is_error and "schedule" in text_of(result)
    missing = in_process(spec, "getSearchParams", {"resourceType": "Slots"})
    assert missing.is_error and "Slot" in text_of(missing)
    tip = Reflection(kind="micro", text="Slots have no patient.", resource_type="Slot", operation="search")
    memory = SourceTools(MemoryTools(Memory([tip])), "Lessons.")
    lesson = in_process(memory, "getMicroReflections", {"resourceType": "Slot", "operation": "search"})
    assert text_of(lesson) == "1. Slots have no patient."


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[mcp\]'"):
        require_sdk()


# over HTTP


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_gold_over_http(hospital: World, mode: Literal["auto", "legacy"]) -> None:
    async def play() -> None:
        async with mcp.Client(f"{server.url}/mcp", mode=mode) as client:
            await gold(client, hospital, FEW[:1])

    with TaskTools([EpisodeConfig(APPOINTMENT, world=hospital)]) as tools, AppServer(make_app(tools)) as server:
        asyncio.run(play())


def test_foreign_hosts_are_refused_on_loopback(tiny_world: World) -> None:
    """A web page must not reach the server by DNS rebinding."""
    import httpx

    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    with WorldTools(tiny_world) as tools, AppServer(make_app(tools)) as server:
        for header in ({"Host": "evil.test"}, {"Origin": "http://evil.test"}):
            answer = httpx.post(f"{server.url}/mcp", json=call, headers=header)
            assert answer.status_code in (403, 421)


@pytest.mark.slow
def test_fastmcp_clients(hospital: World) -> None:
    import fastmcp

    async def play() -> None:
        async with fastmcp.Client(f"{server.url}/mcp") as client:

            async def call(name: str, arguments: dict[str, Any]) -> tuple[str, Mapping[str, Any] | None]:
                result = await client.call_tool(name, arguments, raise_on_error=False)
                (content,) = result.content
                return content.text, result.structured_content

            verdict = await play_gold(call, APPOINTMENT, "01", 0, hospital)
            assert verdict["success"] is True

    with TaskTools([EpisodeConfig(APPOINTMENT, world=hospital)]) as tools, AppServer(make_app(tools)) as server:
        asyncio.run(play())


@pytest.mark.slow
def test_64_clients_at_once_do_not_see_each_other(hospital: World) -> None:
    async def play(number: int) -> None:
        async with mcp.Client(f"{server.url}/mcp") as client:
            call = caller(client)
            _, started = await call("start_task", {"env_id": APPOINTMENT, "task": "01", "variation": 0})
            assert started is not None
            id, patient = started["episode_id"], {"resourceType": "Patient", "name": [{"family": f"Only{number}"}]}
            create = {"episode_id": id, "resourceType": "Patient", "body_json": patient}
            await call("createResource", create)
            search = {"episode_id": id, "resourceType": "Patient", "params_json": {"family": "Only"}}
            text, _ = await call("searchResources", search)
            (entry,) = json.loads(text.partition("\n")[2])["entry"]
            assert entry["resource"]["name"][0]["family"] == f"Only{number}"
            await call("finish", {"episode_id": id, "answer": []})

    async def everybody() -> None:
        await asyncio.gather(*(play(number) for number in range(64)))

    with TaskTools([EpisodeConfig(APPOINTMENT, world=hospital)]) as tools, AppServer(make_app(tools)) as server:
        asyncio.run(everybody())
        assert len(tools.sessions) == 0


@pytest.mark.parametrize(
    "long", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("env_id", pack_ids())
def test_gold_succeeds_in_all_tasks(own_world: Callable[[str], World], env_id: str, long: bool) -> None:
    world = own_world(env_id)
    keys = tuple(key for key in task_keys(env_id) if ((get_task(env_id, key).level or 1) > 1) == long)

    async def play() -> None:
        async with mcp.Client(make_server(tools)) as client:
            await gold(client, world, keys, env_id)

    with TaskTools([EpisodeConfig(env_id, world=world)]) as tools:
        asyncio.run(play())


# over stdio


def started_by(command: list[str]) -> mcp.StdioServerParameters:
    """Return the parameters of a server that this client starts; it shares the cache of worlds with the tests."""
    return mcp.StdioServerParameters(command=command[0], args=command[1:], cwd=Path.cwd(), env=dict(os.environ))


@pytest.mark.slow
def test_gold_over_stdio(hospital: World, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    server = started_by([*FHIR, APPOINTMENT, "--out", str(out)])
    started = {"env_id": APPOINTMENT, "task": "03", "variation": 0}

    async def play() -> None:
        async with mcp.Client(server) as client:
            await gold(client, hospital)
            await client.call_tool("start_task", started)

    asyncio.run(play())
    assert [rollout.stop_reason for rollout in read_rollouts(out)] == ["finished"] * len(FEW) + ["unfinished"]


@pytest.mark.slow
def test_look_up_tools_over_stdio(tmp_path: Path) -> None:
    memory = tmp_path / "plain.memory"
    tip = Reflection(kind="micro", text="Slots have no patient.", resource_type="Slot", operation="search")
    Memory([tip]).save(memory)
    calls = {
        ("spec",): ("getSearchParams", {"resourceType": "Slot"}, "schedule"),
        ("memory", str(memory)): ("getMicroReflections", {"resourceType": "Slot", "operation": "search"}, "no patient"),
    }

    async def play(arguments: tuple[str, ...], name: str, given: dict[str, Any], expected: str) -> None:
        async with mcp.Client(started_by([*FHIR[:-1], *arguments])) as client:
            assert expected in text_of(await client.call_tool(name, given))

    for arguments, (name, given, expected) in calls.items():
        asyncio.run(play(arguments, name, given, expected))


@pytest.mark.slow
@pytest.mark.usefixtures("sigint_interrupts")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_stdio_server_keeps_the_records(tmp_path: Path, stop: signal.Signals) -> None:
    out = tmp_path / "rollouts.jsonl"
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    arguments = {"env_id": APPOINTMENT, "task": "01", "variation": 0}
    params = {"name": "start_task", "arguments": arguments, "_meta": meta}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    command, pipe = [*FHIR, APPOINTMENT, "--out", str(out)], subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as server:
        assert server.stdin is not None and server.stdout is not None and server.stderr is not None
        server.stdin.write(json.dumps(call) + "\n")
        server.stdin.flush()
        assert "episode_id" in server.stdout.readline()
        server.send_signal(stop)
        assert server.wait(timeout=20) == 130
        assert server.stderr.read().strip() == "interrupted"
    assert [rollout.stop_reason for rollout in read_rollouts(out)] == ["unfinished"]


@pytest.mark.slow
@pytest.mark.usefixtures("sigint_interrupts")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_http_server_keeps_the_records(tmp_path: Path, stop: signal.Signals) -> None:
    out, port = tmp_path / "rollouts.jsonl", free_port()

    async def start() -> None:
        async with mcp.Client(f"http://127.0.0.1:{port}/mcp") as client:
            await client.call_tool("start_task", {"env_id": APPOINTMENT, "task": "01", "variation": 0})

    command = [*FHIR, APPOINTMENT, "--http", str(port), "--out", str(out)]
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        assert server.stderr.readline() == f"fhir-gym-fhir at http://127.0.0.1:{port}/mcp (stop with Ctrl-C)\n"
        asyncio.run(start())
        server.send_signal(stop)
        assert server.wait(timeout=20) == 130
        assert server.stderr.read().strip() == "interrupted"
    assert [rollout.stop_reason for rollout in read_rollouts(out)] == ["unfinished"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


# clients beside each other


class HeldGrading:
    """Holds up the grading of episodes until it is released; then every later grading is normal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.released, self.in_time = threading.Event(), threading.Event(), list[bool]()
        grade = Episode.verdict

        def held(episode: Episode) -> Any:
            self.started.set()
            self.in_time.append(self.released.wait(5))  # a server that waits for the grading cannot answer
            return grade(episode)

        monkeypatch.setattr(Episode, "verdict", held)


def test_other_clients_do_not_wait_for_grading(hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if one client repeats its call more often than the server has threads."""
    grading = HeldGrading(monkeypatch)

    async def start(client: mcp.Client) -> str:
        task = {"env_id": APPOINTMENT, "task": "01", "variation": 0}
        return str((await client.call_tool("start_task", task)).structured_content["episode_id"])

    async def both(server: Any) -> None:
        async with mcp.Client(server) as slow, mcp.Client(server) as other:
            graded, id = await start(slow), await start(other)
            finish = {"episode_id": graded, "answer": []}
            finished = [asyncio.create_task(slow.call_tool("finish", finish)) for _ in range(80)]
            await asyncio.to_thread(grading.started.wait, 20)
            search = {"episode_id": id, "resourceType": "Patient", "params_json": {"_count": 1}}
            assert "200" in text_of(await other.call_tool("searchResources", search))
            assert (await other.list_tools()).tools
            assert not any(call.done() for call in finished)
            grading.released.set()
            results = await asyncio.gather(*finished)
            assert len({result.structured_content["success"] for result in results if result.structured_content}) == 1

    with TaskTools([EpisodeConfig(APPOINTMENT, world=hospital)]) as tools:
        asyncio.run(both(make_server(tools)))
    assert grading.in_time and all(grading.in_time)
