"""Tools of MCP servers for a chat agent; servers that die, hang or send garbage give one clear error."""

from __future__ import annotations

import asyncio
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fhir_gym import run
from fhir_gym.agents import ChatAgent
from fhir_gym.agents.memory import Memory, Reflection
from fhir_gym.agents.tool_sources import ERROR, ToolSource
from fhir_gym.agents.tool_sources.mcp import McpTools
from fhir_gym.agents.tool_sources.memory import MemoryTools
from fhir_gym.agents.tool_sources.specification import SpecificationTools
from fhir_gym.agents.tool_sources.toolbox import make_tool_sources
from fhir_gym.errors import FhirGymError, InfraError, MissingExtraError
from fhir_gym.fhir import World
from fhir_gym.mcp_servers import SourceTools, make_app
from fhir_gym.testing import ChatServer, ScriptedReply
from fhir_gym.testing.servers import AppServer

SLOT = {"resourceType": "Slot"}

SERVER = '''
import os, sys, time
from mcp.server.mcpserver import MCPServer
server = MCPServer("flaky", version="7", log_level="CRITICAL")

@server.tool(structured_output=False)
def echo(text: str) -> str:
    """Repeat a text."""
    return text

@server.tool()
def die() -> str:
    """End the process."""
    os._exit(3)

@server.tool()
def hang() -> str:
    """Never answer."""
    time.sleep(60)

@server.tool()
def refuse() -> str:
    """Raise an error."""
    raise ValueError("secret")

server.run()
'''


@pytest.fixture(scope="module")
def spec_url() -> Iterator[str]:
    with AppServer(make_app(SourceTools(SpecificationTools(), ""))) as server:
        yield f"{server.url}/mcp"


def call(tools: McpTools, *calls: tuple[str, Any]) -> list[str]:
    async def go() -> list[str]:
        try:
            return [await tools.call(name, arguments, None) for name, arguments in calls]
        finally:
            await tools.aclose()

    return asyncio.run(go())


def test_the_tools_are_those_of_the_server(spec_url: str) -> None:
    tools, direct = McpTools(spec_url), SpecificationTools()
    assert isinstance(tools, ToolSource)
    assert tools.schemas() == direct.schemas()
    assert tools.name == "mcp:fhir-gym-spec"
    assert tools.settings["server"] == spec_url and len(str(tools.settings["hash"])) == 32
    expected = asyncio.run(direct.call("getSearchParams", SLOT))
    assert call(tools, ("getSearchParams", SLOT), ("getSearchParams", '{"resourceType": "Slot"}')) == [expected] * 2


def test_mistakes_of_the_model_are_results(spec_url: str) -> None:
    tools = McpTools(spec_url)
    results = call(
        tools,
        ("getSearchParam", SLOT),
        ("getSearchParams", "{"),
        ("getSearchParams", {"resourceType": "Slots"}),
        ("getSearchParams", {}),
    )
    assert all(result.startswith(ERROR) and "\n" not in result for result in results)
    assert "did you mean 'getSearchParams'" in results[0]


def test_a_source_works_on_several_event_loops_and_in_copies(spec_url: str) -> None:
    tools = McpTools(spec_url)
    first = call(tools, ("getSearchParams", SLOT))
    assert call(tools, ("getSearchParams", SLOT)) == first
    assert call(pickle.loads(pickle.dumps(tools)), ("getSearchParams", SLOT)) == first


def test_concurrent_calls_share_a_connection(spec_url: str) -> None:
    tools = McpTools(spec_url)

    async def go() -> list[str]:
        found = await asyncio.gather(*(tools.call("getSearchParams", SLOT) for _ in range(16)))
        assert len(tools._connections) == 1
        await tools.aclose()
        return found

    assert len(set(asyncio.run(go()))) == 1


def test_the_setting_tools_accepts_a_server(spec_url: str) -> None:
    (source,) = make_tool_sources(["fhir", f"mcp:{spec_url}"])
    assert isinstance(source, McpTools)


def test_a_chat_agent_looks_things_up(spec_url: str, hospital: World) -> None:
    script = [ScriptedReply(calls=[("getSearchParams", SLOT)]), ScriptedReply(calls=[("finish", {"answer": []})])]
    with ChatServer(script) as chat:
        agent = ChatAgent("scripted", base_url=chat.base_url, tools=f"fhir,mcp:{spec_url}")
        (rollout,) = run("FHIRAgent/Appointment-v0", agent, tasks="01", variations=0, world=hospital)
    (lookup,) = rollout.lookups
    assert (lookup.source, lookup.tool, lookup.error) == ("mcp:fhir-gym-spec", "getSearchParams", False)
    assert lookup.result == asyncio.run(SpecificationTools().call("getSearchParams", SLOT))
    assert rollout.stop_reason == "finished" and len(rollout.turns) == 1


def test_an_episode_ends_when_the_server_dies(hospital: World) -> None:
    script = [ScriptedReply(calls=[("getSearchParams", SLOT)])]
    with AppServer(make_app(SourceTools(SpecificationTools(), ""))) as server:
        tools = McpTools(f"{server.url}/mcp", timeout=10)
    with ChatServer(script) as chat:
        agent = ChatAgent("scripted", base_url=chat.base_url, tools=["fhir", tools])
        (rollout,) = run("FHIRAgent/Appointment-v0", agent, tasks="01", variations=0, world=hospital)
    assert rollout.stop_reason == "infra_error" and rollout.reward is None
    assert rollout.error is not None and rollout.error.startswith("the MCP server http://127.0.0.1:")
    assert rollout.error.count("\n") == 0 and " failed: " in rollout.error


def test_secrets_are_not_recorded(spec_url: str) -> None:
    secret = spec_url.replace("http://", "http://user:word@") + "?token=abc"
    recorded = str(McpTools(secret).settings)
    assert "word" not in recorded and "abc" not in recorded


@pytest.mark.parametrize("server", ["", "  ", [], "'", "http://[::1", "http://"])
def test_an_unreadable_server_is_refused(server: str | list[str]) -> None:
    with pytest.raises(FhirGymError, match=r"command|must be a base URL"):
        McpTools(server)


@pytest.mark.parametrize("server", ["http://127.0.0.1:9/mcp", "no-such-program-here --flag", f"{sys.executable} -c ''"])
def test_a_server_that_does_not_start_is_reported(server: str) -> None:
    with pytest.raises(InfraError, match="the MCP server ") as caught:
        McpTools(server, timeout=10)
    assert "\n" not in str(caught.value) and "--flag" not in str(caught.value).partition(":")[0]


def test_a_server_that_stops_answering_is_reported_and_found_again() -> None:
    tip = Reflection(kind="micro", text="Slots have no patient.", resource_type="Slot", operation="search")
    served = SourceTools(MemoryTools(Memory([tip])), "")
    lookup = ("getMicroReflections", {"resourceType": "Slot", "operation": "search"})
    with AppServer(make_app(served)) as server:
        tools = McpTools(f"{server.url}/mcp", timeout=5)
        port = int(server.url.rpartition(":")[2])
        assert call(tools, lookup) == ["1. Slots have no patient."]
    with pytest.raises(InfraError, match="the MCP server http://127"):
        call(tools, lookup)
    with AppServer(make_app(served), port):
        assert call(tools, lookup) == ["1. Slots have no patient."]


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[mcp\]'"):
        McpTools("http://127.0.0.1:9/mcp")


@pytest.mark.slow
def test_a_command_that_dies_or_hangs(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER, "utf-8")
    tools = McpTools([sys.executable, str(script)], timeout=20)
    assert (tools.name, tools.settings["server_version"]) == ("mcp:flaky", "7")
    assert str(tmp_path) not in str(tools.settings)

    async def go() -> None:
        assert await tools.call("echo", {"text": "hello"}) == "hello"
        assert (await tools.call("echo", {"text": 5})).startswith(ERROR)
        assert (await tools.call("refuse", {})).startswith(ERROR)
        with pytest.raises(InfraError, match=r"the MCP server python.* failed"):
            await tools.call("die", {})
        assert await tools.call("echo", {"text": "again"}) == "again"  # a new process
        tools._timeout = 2
        hanging = asyncio.create_task(tools.call("hang", {}))
        start = time.monotonic()
        with pytest.raises(InfraError, match="did not answer within 2 seconds"):
            await hanging
        assert time.monotonic() - start < 15
        connections = tools._connections
        await tools.aclose()
        assert len(connections) >= 1 and all(connection.closed for connection in connections)

    asyncio.run(go())
