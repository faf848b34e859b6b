"""The resources server with NeMo Gym's Gymnasium agent; requests between servers are calls in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest

pytest.importorskip("nemo_gym")

from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.server_utils import ServerClient
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent, GymnasiumAgentConfig, GymnasiumAgentRunRequest

from fhir_gym.errors import InfraError
from fhir_gym.integrations.nemo_gym import FHIRResourcesServer, FHIRResourcesServerConfig, dataset_lines
from tests.integrations.contract import APPOINTMENT, Outcome, Policy, TrainerContract, looking, row_of

ADDRESS = {"host": "", "port": 0, "entrypoint": "app.py"}


class Reply:
    """A response in the form of aiohttp, which NeMo Gym's servers use."""

    status, ok = 200, True

    def __init__(self, body: bytes, cookies: Mapping[str, str]) -> None:
        self._body, self.cookies = body, dict(cookies)

    async def read(self) -> bytes:
        return self._body


def model_response(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
    response = {"id": "r", "created_at": 0.0, "model": "scripted", "object": "response", "output": [message]}
    return response | {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def run(
    row: Mapping[str, Any], policy: Policy, agent_steps: int = 100, **settings: Any
) -> tuple[Any, FHIRResourcesServer]:
    """Run the agent on the line of a dataset; return its result, and the server."""
    client = MagicMock(spec=ServerClient)
    client.global_config_dict = {"observability_enabled": False}
    config = FHIRResourcesServerConfig(name="fhir", settings=settings, domain="agent", **ADDRESS)
    server = FHIRResourcesServer(config=config, server_client=client)

    async def post(server_name: str, url_path: str, json: Any, cookies: Any = None) -> Reply:
        body = json if isinstance(json, dict) else json.model_dump(mode="json")
        if server_name == "policy":
            messages = [{"role": item["role"], "content": content_of(item)} for item in body["input"]]
            made = httpx.Response(200, json=model_response(policy({"messages": messages})))
            return Reply(made.content, {})
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://server", cookies=cookies
        ) as web:
            made = await web.post(url_path, json=body)
        return Reply(made.raise_for_status().content, made.cookies)

    app = server.setup_webserver()
    client.post = post
    agent = GymnasiumAgent(
        config=GymnasiumAgentConfig(
            name="agent",
            resources_server=ResourcesServerRef(type="resources_servers", name="fhir"),
            model_server=ModelServerRef(type="responses_api_models", name="policy"),
            max_steps=agent_steps,
            **ADDRESS,
        ),
        server_client=client,
    )
    (line,) = dataset_lines([row])
    request = MagicMock(cookies={})
    return asyncio.run(agent.run(request, GymnasiumAgentRunRequest.model_validate(line))), server


def content_of(item: Mapping[str, Any]) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class TestNeMoGym(TrainerContract):
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        try:
            result, server = run(row, policy, **settings)
        except InfraError:
            return Outcome(None, False)
        assert not server.session_state
        return Outcome(result.reward, result.truncated)


def test_the_limit_of_the_agent_is_a_truncation() -> None:
    result, server = run(row_of(APPOINTMENT), looking, agent_steps=2)
    assert (result.reward, result.truncated, server.session_state) == (0.0, True, {})
