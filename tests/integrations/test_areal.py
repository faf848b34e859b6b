"""The agent in AReaL's proxy workflow: its server of sessions, its client of a model, and a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("areal")

from areal.api.io_struct import ModelRequest, ModelResponse
from areal.experimental.openai.client import ArealOpenAI
from areal.experimental.openai.proxy import proxy_rollout_server
from areal.experimental.openai.proxy.workflow import OpenAIProxyWorkflow
from areal.infra import workflow_context
from areal.utils import stats_tracker

import fhir_gym
from fhir_gym.errors import InfraError
from fhir_gym.integrations.areal import FHIRWorkflow
from fhir_gym.testing.servers import AppServer
from tests.integrations.characters import EOS, CharacterTokenizer, reply_to
from tests.integrations.contract import APPOINTMENT, Outcome, Policy, TrainerContract, idle, looking, row_of

KEY = "admin"


class ScriptedEngine:
    """The method of an inference engine that AReaL's client calls."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        output = [*map(ord, reply_to(self._policy, request.input_ids) + EOS)]
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=output,
            output_logprobs=[-0.5] * len(output),
            output_versions=[0] * len(output),
            tokenizer=CharacterTokenizer(),
        )


def run(row: Mapping[str, Any], policy: Policy, *, is_eval: bool = False, **settings: Any) -> dict[str, Any]:
    """Run the workflow as AReaL's executor does, and return the interactions with their rewards."""
    client = ArealOpenAI(engine=ScriptedEngine(policy), tokenizer=CharacterTokenizer())
    with pytest.MonkeyPatch.context() as patch, AppServer(proxy_rollout_server.app, lifespan="off") as server:
        patch.setattr(proxy_rollout_server, "_openai_client", client)
        patch.setattr(proxy_rollout_server, "_admin_api_key", KEY)
        agent = FHIRWorkflow(retries=0, **settings)
        workflow = OpenAIProxyWorkflow("inline", agent, proxy_addr=server.url, admin_api_key=KEY)

        async def episode() -> Any:
            workflow_context.set(workflow_context.WorkflowContext(is_eval=is_eval, task_id=1))
            return await workflow.arun_episode(SimpleNamespace(), dict(row))

        interactions: dict[str, Any] = asyncio.run(episode())
    return interactions


class TestAReaL(TrainerContract):
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        try:
            interactions = run(row, policy, **settings)
        except InfraError:
            return Outcome(None, False)
        metrics = stats_tracker.get("rollout").export(reset=True)
        return Outcome([*interactions.values()][-1].reward, bool(metrics["rollout/truncated"]))


def test_the_model_is_trained_on_what_it_wrote() -> None:
    interactions = run(row_of(APPOINTMENT), looking, max_steps=2)
    for interaction in interactions.values():
        tensors = interaction.to_tensor_dict()
        trained = tensors["input_ids"][tensors["loss_mask"].bool()]
        assert "".join(map(chr, trained.tolist())) == f"GET /Patient?_count=1{EOS}"
    assert len(interactions) == 2


def test_an_evaluation_admits_test_variations() -> None:
    (row,) = fhir_gym.rows(APPOINTMENT.env_id, "01", split="test", variations=1000)
    assert [interaction.reward for interaction in run(row, idle, is_eval=True).values()] == [0.0]
