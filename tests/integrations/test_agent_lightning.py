"""The agent on Agent Lightning's server and local controller, with a scripted endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("agentlightning")

from agentlightning.client import AgentLightningAsyncClient
from agentlightning.controller.local_reconciler import LocalReconciler
from agentlightning.server.app import create_app
from omegaconf import OmegaConf
from typing_extensions import override

import fhir_gym
from fhir_gym.testing import ChatServer
from fhir_gym.testing.servers import AppServer
from tests.integrations.contract import APPOINTMENT, Outcome, Policy, TrainerContract, idle, looking, row_of

AGENT = "fhir_gym.integrations.agent_lightning:FHIRAgent"
PROXY = {"model_name": "scripted", "train": {"temperature": 1}, "val": {"temperature": 0}}


def run(row: Mapping[str, Any], policy: Policy, *, is_train: bool = True, **settings: Any) -> dict[str, Any]:
    """Run a rollout in a process, as the controller does; return its state, and the data of its events by type."""
    with ChatServer(policy) as model, AppServer(create_app({"key": "", "default_proxy": PROXY})) as server:
        return asyncio.run(_run(server.url, model.base_url, row, is_train, settings))


async def _run(
    url: str, model: str, row: Mapping[str, Any], is_train: bool, settings: Mapping[str, Any]
) -> dict[str, Any]:
    env_map = {"FHIR_GYM_ROW": "input", "FHIR_GYM_SETTINGS": json.dumps({"retries": 0, **settings})}
    request = {
        "input": dict(row),
        "is_train": is_train,
        "config": {"local": {"agent_class": AGENT, "env_map": env_map}},
    }
    options = {"runner_type": "local", "agl_server": {"url": url, "key": ""}}
    options["local_runner"] = {"maximum_size": 4, "poll_interval": 0.05}
    async with AgentLightningAsyncClient(base_url=url) as client:
        await client.delete("/api/models")  # those of earlier tests
        await client.post("/api/models", json=[{"model": "scripted", "endpoint": model}])
        (rollout,) = (await client.post("/api/rollouts", json=[request])).json()
        controller = LocalReconciler(client, OmegaConf.create(options))
        running = asyncio.create_task(controller.run())
        address = f"/api/rollouts/{rollout['rollout_id']}"
        while (state := (await client.get(address)).json()["rollout"]["status"]["state"]) not in (
            "succeeded",
            "failed",
        ):
            await asyncio.sleep(0.05)
        events = (await client.get(f"{address}/events")).json()
        controller.stop()
        await running
    return {"state": state} | {event["event_type"]: event["data"] for event in events}


class TestAgentLightning(TrainerContract):
    @override
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        result = run(row, policy, **settings)
        if "reward" not in result:
            assert result["state"] == "failed"
            return Outcome(None, False)
        assert result["state"] == "succeeded" and result["reward"]["message"]
        return Outcome(result["reward"]["value"], bool(result["fhir_gym"]["truncated"]))

    @override
    def test_a_failing_server_is_no_reward(self, server_is_down: None) -> None:
        """The agent has a process of its own, so its server is one that does not answer."""
        outcome = self.play(row_of(APPOINTMENT), looking, fhir_server="http://127.0.0.1:9/fhir")
        assert outcome.reward is None

    @override
    def test_a_test_variation_is_refused_in_training(self) -> None:
        (row,) = fhir_gym.rows(APPOINTMENT.env_id, APPOINTMENT.task, split="test", variations=1000)
        assert run(row, idle) == {"state": "failed"}
        assert run(row, idle, is_train=False)["reward"]["value"] == 0.0
