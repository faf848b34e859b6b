"""The FHIR tools on a world: writes are allowed, kept in memory, and private in a session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fhir_gym.actions import GRAMMAR
from fhir_gym.fhir import World
from fhir_gym.mcp_servers import McpClient, SessionError, ToolResult, WorldTools
from fhir_gym.mcp_servers.fhir_tools import FHIR_TOOLS

LEE = {"resourceType": "Patient", "name": [{"family": "Lee"}]}


@pytest.fixture
def tools(tiny_world: World) -> Iterator[WorldTools]:
    with WorldTools(tiny_world, max_sessions=3) as opened:
        yield opened


def call(tools: WorldTools, name: str, **arguments: Any) -> ToolResult:
    return tools.call_now(name, arguments, McpClient())


def new_session(tools: WorldTools) -> str:
    data = call(tools, "start_session").data
    assert data is not None
    return str(data["session_id"])


def patients(tools: WorldTools, **session: str) -> int:
    result = call(tools, "searchResources", resourceType="Patient", params_json={"_summary": "count"}, **session)
    return int(json.loads(result.text.partition("\n")[2])["total"])


def test_the_tools_are_those_of_the_grammar_with_a_session_id(tools: WorldTools) -> None:
    own = {schema["function"]["name"]: schema["function"] for schema in tools.schemas()}
    assert set(own) == {*FHIR_TOOLS, "start_session", "end_session"}
    for schema in GRAMMAR.tools():
        function = schema["function"]
        if function["name"] in FHIR_TOOLS:
            properties = own[function["name"]]["parameters"]["properties"]
            assert "session_id" in properties
            del properties["session_id"]
            assert own[function["name"]] == function


def test_a_request_is_answered_as_in_an_episode(tools: WorldTools) -> None:
    result = call(tools, "getResourceById", resourceType="Patient", resourceId="S1")
    assert not result.error
    assert result.text.startswith('HTTP 200 OK\n{"resourceType":"Patient","id":"S1"')
    missing = call(tools, "getResourceById", resourceType="Patient", resourceId="S9")
    assert missing.text.startswith("HTTP 404 Not Found\n") and not missing.error


def test_writes_without_a_session_are_shared(tools: WorldTools) -> None:
    assert call(tools, "createResource", resourceType="Patient", body_json=LEE).text.startswith("HTTP 201")
    assert patients(tools) == 3
    assert patients(tools, session_id=new_session(tools)) == 2


def test_sessions_do_not_see_each_other(tools: WorldTools) -> None:
    first, second = new_session(tools), new_session(tools)
    call(tools, "createResource", resourceType="Patient", body_json=LEE, session_id=first)
    call(tools, "deleteResource", resourceType="Patient", resourceId="S1", session_id=second)
    assert [patients(tools, session_id=first), patients(tools, session_id=second), patients(tools)] == [3, 1, 2]


def test_a_session_ends(tools: WorldTools) -> None:
    id = new_session(tools)
    assert not call(tools, "end_session", session_id=id).error
    with pytest.raises(SessionError, match="has ended"):
        patients(tools, session_id=id)
    with pytest.raises(SessionError, match="has ended"):
        call(tools, "end_session", session_id=id)


def test_the_number_of_sessions_is_bounded(tools: WorldTools) -> None:
    for _ in range(3):
        new_session(tools)
    with pytest.raises(SessionError, match="all 3 sessions of this server are in use"):
        new_session(tools)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("getResourceById", {"resourceType": "Patient"}, "argument 'resourceId' is missing"),
        (
            "getResourceById",
            {"resourceType": "Patient", "resourceId": "1", "session_id": 3},
            "must have the type string",
        ),
        ("searchResources", {"pageUrl": "http://other.test/Patient"}, "only the server at"),
        ("finish", {"answer": []}, "unknown tool 'finish'"),
        ("start_session", {"world": "x"}, "unknown argument 'world'"),
    ],
)
def test_invalid_calls_are_explained(tools: WorldTools, name: str, arguments: dict[str, Any], message: str) -> None:
    result = tools.call_now(name, arguments, McpClient())
    assert result.error and message in result.text
