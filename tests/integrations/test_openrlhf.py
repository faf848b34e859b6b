"""The agent in OpenRLHF's multi-turn executor, with a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openrlhf")

import torch

from fhir_gym.errors import InfraError
from fhir_gym.integrations.openrlhf import make_executor
from tests.integrations.characters import EOS, CharacterTokenizer, reply_to
from tests.integrations.contract import APPOINTMENT, Outcome, Policy, TrainerContract, looking, row_of


class Tokenizer(CharacterTokenizer):
    """Encodes to tensors, as a Hugging Face tokenizer does when it is called."""

    def __call__(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([self.encode(text)], dtype=torch.int64)}


class ScriptedEngine:
    """The method of OpenRLHF's engine that the executor calls, with vLLM's output."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def generate(self, ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        text = reply_to(self._policy, ids)
        output = SimpleNamespace(token_ids=[*map(ord, text + EOS)], text=text, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[output])


def execute(row: Mapping[str, Any], policy: Policy, **settings: Any) -> dict[str, Any]:
    executor = make_executor(Tokenizer(), **settings)()
    sampling = SimpleNamespace(max_tokens=1_000, logprobs=None)
    result: dict[str, Any] = asyncio.run(
        executor.execute("", json.dumps(row), sampling, 10_000_000, Tokenizer(), ScriptedEngine(policy))
    )
    return result


class TestOpenRLHF(TrainerContract):
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        try:
            result = execute(row, policy, **settings)
        except InfraError:
            return Outcome(None, False)
        assert result["scores"].item() == result["reward"]
        return Outcome(result["reward"], bool(result["extra_logs"]["truncated"].item()))


def test_the_actions_are_what_the_model_wrote_and_the_template_is_kept() -> None:
    result = execute(row_of(APPOINTMENT), looking, max_steps=2)
    tokens = result["observation_tokens"]
    written = ["".join(map(chr, tokens[start:end])) for start, end in result["action_ranges"]]
    assert written == [f"GET /Patient?_count=1{EOS}"] * 2
    start, end = result["action_ranges"][0][1], result["action_ranges"][1][0]
    read = "".join(map(chr, tokens[start:end]))
    assert read.startswith("\n\x02user\nHTTP 200 OK") and read.endswith(f"{EOS}\n\x02assistant\n")
