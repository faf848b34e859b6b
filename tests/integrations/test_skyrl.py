"""The environment in SkyRL's generator, with a scripted engine."""

from __future__ import annotations

import asyncio
import sys
import typing
from collections.abc import Mapping
from typing import Any

import pytest
import typing_extensions

pytest.importorskip("skyrl_gym")

if sys.version_info < (3, 12):  # SkyRL gives Pydantic a TypedDict, which needs Python 3.12
    typing.TypedDict = typing_extensions.TypedDict

from skyrl.train.config import GeneratorConfig, SamplingParams, SkyRLGymConfig
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl_gym.envs.registration import registry

import fhir_gym
from fhir_gym.errors import InfraError
from fhir_gym.integrations.skyrl import register
from tests.integrations.characters import EOS, CharacterTokenizer, reply_to
from tests.integrations.contract import Outcome, Policy, TrainerContract, idle, looking


@pytest.fixture(autouse=True)
def _no_environment_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry, "fhir", raising=False)


class ScriptedEngine:
    """The part of `InferenceEngineInterface` that the generator calls."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def generate(self, batch: Mapping[str, Any], model: str | None = None) -> dict[str, Any]:
        texts = [reply_to(self._policy, ids) for ids in batch["prompt_token_ids"]]
        return {
            "responses": texts,
            "response_ids": [[*map(ord, text + EOS)] for text in texts],
            "stop_reasons": ["stop"] * len(texts),
            "response_logprobs": None,
        }

    async def finish_session(self, session_id: str) -> None:
        pass

    def get_weight_version(self) -> int:
        return 0


def generate(rows: list[Mapping[str, Any]], policy: Policy, max_turns: int = 60) -> dict[str, Any]:
    config = GeneratorConfig(
        max_turns=max_turns,
        max_input_length=10_000_000,
        use_cache_salt=False,
        sampling_params=SamplingParams(max_generate_length=100_000, logprobs=None),
    )
    generator = SkyRLGymGenerator(config, SkyRLGymConfig(), ScriptedEngine(policy), CharacterTokenizer())
    batch = {
        "prompts": [[{"role": "user", "content": ""}] for _ in rows],
        "env_classes": ["fhir" for _ in rows],
        "env_extras": [dict(row) for row in rows],
        "sampling_params": None,
        "trajectory_ids": None,
    }
    return asyncio.run(generator.generate(batch, disable_tqdm=True))


class TestSkyRL(TrainerContract):
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        register(**settings)
        try:
            output = generate([row], policy)
        except InfraError:
            return Outcome(None, False)
        (rewards,), (metrics,) = output["rewards"], output["env_metrics"]
        return Outcome(sum(rewards), bool(metrics["truncated"]))


def test_the_model_is_trained_on_what_it_wrote_and_on_nothing_that_it_read() -> None:
    register()
    (row,) = fhir_gym.rows("FHIRAgent/Appointment-v0", "01", variations=0)
    output = generate([row], looking, max_turns=2)
    (ids,), (mask,) = output["response_ids"], output["loss_masks"]
    written = "".join(chr(token) for token, trained in zip(ids, mask, strict=True) if trained)
    assert written == 2 * f"GET /Patient?_count=1{EOS}"
    assert "HTTP 200 OK" in "".join(map(chr, ids))


def test_episodes_of_a_batch_do_not_see_each_other() -> None:
    register()
    rows = fhir_gym.rows("FHIRAgent/Appointment-v0", ["01", "02a"], variations="0-3")
    output = generate([row for row in rows for _ in range(2)], looking, max_turns=3)
    assert [metrics["steps"] for metrics in output["env_metrics"]] == [3.0] * 16
    assert output["response_ids"][::2] == output["response_ids"][1::2]


def test_another_name_evaluates_test_variations() -> None:
    register("fhir", split="test")
    (row,) = fhir_gym.rows("FHIRAgent/Appointment-v0", "01", split="test", variations=1000)
    assert generate([row], idle)["env_metrics"][0]["success"] == 0.0
