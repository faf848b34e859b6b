"""The rollout function in the gather loop of ART, with a scripted endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("art")

import art
from openai.types.chat.chat_completion import Choice

import fhir_gym
from fhir_gym.integrations.art import rollout
from fhir_gym.testing import ChatServer, GoldOverChat, ScriptedReply
from tests.integrations.contract import APPOINTMENT, Outcome, OwnWorld, Policy, TrainerContract, row_of


def gather(row: Mapping[str, Any], policy: Policy, group: int = 1, **settings: Any) -> art.TrajectoryGroup:
    """Play the episodes of a group as a training script does."""

    async def run(url: str) -> art.TrajectoryGroup:
        model = art.Model(
            name="policy",
            project="fhir",
            inference_base_url=url,
            inference_api_key="none",
            inference_model_name="scripted",
        )
        played = (rollout(model, row, **settings) for _ in range(group))
        (found,) = await art.gather_trajectory_groups([art.TrajectoryGroup(played)], max_exceptions=group)
        return found

    with ChatServer(policy) as server:
        return asyncio.run(run(server.base_url))


class TestArt(TrainerContract):
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        group = gather(row, policy, **settings)
        if group.exceptions:
            (exception,) = group.exceptions
            if "InfraError" not in exception.type:
                raise RuntimeError(exception.message)
            return Outcome(None, False)
        (trajectory,) = group.trajectories
        assert bool(trajectory.metrics["truncated"]) == (trajectory.metadata["stop_reason"] != "finished")
        return Outcome(trajectory.reward, bool(trajectory.metrics["truncated"]))


@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_the_messages_of_the_model_are_choices_with_log_probabilities(own_world: OwnWorld, protocol: str) -> None:
    class WithLogprobs(ScriptedReply):
        def body(self, request: Any, number: int) -> dict[str, Any]:
            body: dict[str, Any] = super().body(request, number)
            token = {"token": "x", "logprob": -0.5, "bytes": None, "top_logprobs": []}
            body["choices"][0]["logprobs"] = {"content": [token], "refusal": None} if request["logprobs"] else None
            return body

    gold = GoldOverChat(own_world(APPOINTMENT.env_id), [APPOINTMENT])

    def policy(request: Mapping[str, Any]) -> ScriptedReply:
        reply = gold(request)
        return WithLogprobs(reply) if isinstance(reply, str) else WithLogprobs(calls=reply.calls)

    group = gather(row_of(APPOINTMENT), policy, group=4, protocol=protocol)
    assert [trajectory.reward for trajectory in group] == [1.0] * 4
    conversation = group.trajectories[0].messages_and_choices
    choices = [part for part in conversation if isinstance(part, Choice)]
    assert all(choice.logprobs and choice.logprobs.content for choice in choices)
    roles = [part["role"] for part in conversation if not isinstance(part, Choice)]
    assert roles == ["system", "user", *["user" if protocol == "text" else "tool"] * (len(choices) - 1)]
    assert bool(group.trajectories[0].tools) == (protocol == "tools")


def test_a_test_row_is_evaluated_when_the_settings_say_so(own_world: OwnWorld) -> None:
    (row,) = fhir_gym.rows(APPOINTMENT.env_id, "01", split="test", variations=1000)
    policy = GoldOverChat(own_world(APPOINTMENT.env_id), [(APPOINTMENT.env_id, "01", 1000)])
    assert [trajectory.reward for trajectory in gather(row, policy, split="test")] == [1.0]
