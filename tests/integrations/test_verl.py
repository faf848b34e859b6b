"""The agent loop on verl's base class and token builder, with a scripted server. verl's trainer needs a GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("verl")

import hydra
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from fhir_gym.errors import InfraError
from tests.integrations.characters import EOS, CharacterTokenizer, reply_to
from tests.integrations.contract import APPOINTMENT, Outcome, Policy, TrainerContract, looking, row_of


class ScriptedServer:
    """The method of verl's client of its model servers that an agent loop calls."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: Any) -> TokenOutput:
        ids = [*map(ord, reply_to(self._policy, prompt_ids) + EOS)]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids))


def run(row: Mapping[str, Any], policy: Policy, response_length: int = 10_000_000, **settings: Any) -> AgentLoopOutput:
    """Make the agent loop from the entry of ``agent_loop_config_path``, as verl's worker does, and run it."""
    rollout = {"prompt_length": 1_000_000, "response_length": response_length}
    entry = {"_target_": "fhir_gym.integrations.verl.FHIRAgentLoop", "settings": settings}

    async def play() -> AgentLoopOutput:
        loop = hydra.utils.instantiate(
            OmegaConf.create(entry),
            trainer_config=DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})),
            server_manager=ScriptedServer(policy),
            tokenizer=CharacterTokenizer(),
            processor=None,
            hf_model_type=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(OmegaConf.create({})),
            tools=None,
        )
        output: AgentLoopOutput = await loop.run({}, raw_prompt=[], **row)
        return output

    return asyncio.run(play())


class TestVerl(TrainerContract):
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        try:
            output = run(row, policy, **settings)
        except InfraError:
            return Outcome(None, False)
        assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs or ())
        return Outcome(output.reward_score, bool(output.extra_fields["reward_extra_info"]["truncated"]))


def test_the_model_is_trained_on_what_it_wrote() -> None:
    output = run(row_of(APPOINTMENT), looking, max_steps=2)
    pairs = zip(output.response_ids, output.response_mask, strict=True)
    assert "".join(chr(token) for token, trained in pairs if trained) == 2 * f"GET /Patient?_count=1{EOS}"
    assert "HTTP 200 OK" in "".join(map(chr, output.response_ids))
    logprobs = zip(output.response_logprobs or (), output.response_mask, strict=True)
    assert all(value == (-0.5 if trained else 0.0) for value, trained in logprobs)


def test_an_observation_that_does_not_fit_ends_and_grades_the_episode() -> None:
    output = run(row_of(APPOINTMENT), looking, response_length=60)
    assert (output.reward_score, output.extra_fields["reward_extra_info"]["truncated"]) == (0.0, 1.0)
    assert "".join(map(chr, output.response_ids)) == f"GET /Patient?_count=1{EOS}"
