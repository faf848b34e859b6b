"""Shared helpers: a calling client, and the reference solution played through tool calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fhir_gym.actions import GRAMMAR, Action
from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.fhir import World
from fhir_gym.mcp_servers import McpClient, TaskTools, ToolResult

APPOINTMENT = "FHIRAgent/Appointment-v0"
CLIENT = McpClient("tester", "1.2")

Caller = Callable[[str, dict[str, Any]], Awaitable[tuple[str, Mapping[str, Any] | None]]]
"""Function that calls a tool and returns the text and the data of its result."""


def start(tools: TaskTools, task: str = "01", variation: int = 0, env_id: str = APPOINTMENT, **more: Any) -> str:
    """Start an episode and return its id."""
    arguments = {"env_id": env_id, "task": task, "variation": variation, **more}
    result = tools.call_now("start_task", arguments, CLIENT)
    assert result.data is not None, result.text
    return str(result.data["episode_id"])


def act(tools: TaskTools, name: str, **arguments: Any) -> ToolResult:
    """Call a tool in this thread."""
    return tools.call_now(name, arguments, CLIENT)


async def play_gold(call: Caller, env_id: str, task: str, variation: int, world: World) -> Mapping[str, Any]:
    """Play the reference solution of a task and return what `finish` returned."""
    text, data = await call("start_task", {"env_id": env_id, "task": task, "variation": variation})
    assert data is not None, text
    id = data["episode_id"]
    agent = GoldAgent()
    agent.reset(text, EpisodeContext(env_id, task, variation, world, seed=0, max_steps=15, prompt=text))
    while True:
        action = GRAMMAR.parse(agent.act(text))
        assert isinstance(action, Action)
        tool = GRAMMAR.to_tool_call(action)
        assert tool is not None, f"no tool can express {action.text()}"
        name, arguments = tool
        text, data = await call(name, {"episode_id": id, **arguments})
        if name == "finish":
            assert data is not None, text
            return data
