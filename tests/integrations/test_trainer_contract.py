"""The contract of trainers for what their adapters share: episodes step by step, and episodes against an endpoint."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import fhir_gym
from fhir_gym import trainer_api
from fhir_gym.errors import InfraError
from fhir_gym.testing import ChatServer
from fhir_gym.text_episode import TextEpisode, episode_metrics
from tests.integrations.contract import APPOINTMENT, Outcome, Policy, TrainerContract, row_of


class TestTextEpisode(TrainerContract):
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        try:
            with TextEpisode(row, {"split": "train", **settings}) as episode:
                messages = episode.start()
                while True:
                    reply = policy({"messages": messages})
                    step = episode.step(reply)
                    if step.done:
                        return Outcome(step.reward, bool(episode_metrics(step)["truncated"]))
                    user = {"role": "user", "content": step.observation}
                    messages = [*messages, {"role": "assistant", "content": reply}, user]
        except InfraError:
            return Outcome(None, False)


class TestPlay(TrainerContract):
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        with ChatServer(policy) as server:
            try:
                rollout = fhir_gym.play(row, model="scripted", base_url=server.base_url, split="train", **settings)
            except InfraError:
                return Outcome(None, False)
        return Outcome(rollout.reward, rollout.stop_reason != "finished")


def test_an_episode_that_is_only_dropped_closes_its_world() -> None:
    episode = TextEpisode(row_of(APPOINTMENT), {})
    episode.start()
    assert len(trainer_api._worlds._values) == 1
    del episode
    gc.collect()
    assert trainer_api._worlds._values == {}
