"""The environments in the rollouts of tinker-cookbook, with a scripted policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook")

import tinker
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers.base import Message, ParseTermination, RenderContext, RenderedMessage, Renderer
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import TrajectoryGroup
from typing_extensions import override

import fhir_gym
from fhir_gym.errors import InfraError
from fhir_gym.integrations.tinker import FHIRDataset, FHIRGroupBuilder
from tests.integrations.characters import EOS, CharacterTokenizer, reply_to
from tests.integrations.contract import APPOINTMENT, Outcome, Policy, TrainerContract, looking, row_of


class CharacterRenderer(Renderer):
    """Renders messages as `CharacterTokenizer` does."""

    @override
    def get_stop_sequences(self) -> list[int]:
        return [ord(EOS)]

    @override
    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        header, output = f"\x02{message['role']}\n", f"{message['content']}{EOS}\n"
        chunks = [tinker.types.EncodedTextChunk(tokens=[*map(ord, text)]) for text in (header, output)]
        return RenderedMessage(header=chunks[0], output=[chunks[1]])

    @override
    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        text = "".join(map(chr, response))
        clean = ParseTermination.STOP_SEQUENCE if text.endswith(EOS) else ParseTermination.MALFORMED
        return Message(role="assistant", content=text.removesuffix(EOS)), clean


class ScriptedCompleter(TokenCompleter):
    """A policy of tinker-cookbook that writes what a scripted policy says."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @override
    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> TokensWithLogprobs:
        tokens = [*map(ord, reply_to(self._policy, model_input.to_ints()) + EOS)]
        return TokensWithLogprobs(tokens, [-0.5] * len(tokens))


def roll_out(row: Mapping[str, Any], policy: Policy, group_size: int = 1, **settings: Any) -> TrajectoryGroup:
    builder = FHIRGroupBuilder(row, CharacterRenderer(CharacterTokenizer()), group_size, settings)
    return asyncio.run(do_group_rollout(builder, ScriptedCompleter(policy)))


class TestTinker(TrainerContract):
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        try:
            group = roll_out(row, policy, **settings)
        except InfraError:
            return Outcome(None, False)
        (trajectory,) = group.trajectories_G
        truncated = bool(trajectory.transitions[-1].metrics["truncated"])
        assert truncated == (trajectory.stop_reason == "max_turns")
        return Outcome(group.get_total_rewards()[0], truncated)


def test_the_members_of_a_group_read_the_same() -> None:
    group = roll_out(row_of(APPOINTMENT), looking, group_size=3, max_steps=2)
    assert len({str(trajectory.final_ob.to_ints()) for trajectory in group.trajectories_G}) == 1


def test_the_dataset_has_a_group_for_each_row() -> None:
    rows = fhir_gym.rows(APPOINTMENT.env_id, ["01", "02a"], variations="0-2")
    dataset = FHIRDataset(rows, 4, renderer=CharacterRenderer(CharacterTokenizer()), group_size=2)
    batches = [dataset.get_batch(number) for number in range(len(dataset))]
    assert [len(batch) for batch in batches] == [4, 2]
    assert [builder.logging_tags() for builder in batches[1]] == [[APPOINTMENT.env_id, "02a"]] * 2
