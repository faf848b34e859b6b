"""What every adapter of a trainer must do. The test of an adapter inherits these tests and plays one episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

import fhir_gym
from fhir_gym.fhir import World
from fhir_gym.testing import GoldOverChat
from tests.integrations.gold import GoldEpisode, one_task_of_each_pack

OwnWorld = Callable[[str], World]
Policy = Callable[[Mapping[str, Any]], Any]
"""A policy of `ChatServer`: it maps a request with ``messages`` to a reply."""


class Outcome(NamedTuple):
    """What a trainer learns about an episode.

    Attributes:
        reward: The reward; None if the trainer leaves the episode out.
        truncated: Whether the trainer can tell that the episode did not end with ``FINISH``.
    """

    reward: float | None
    truncated: bool


def idle(_: Mapping[str, Any]) -> str:
    """Finish at once."""
    return "FINISH([])"


def looking(_: Mapping[str, Any]) -> str:
    """Never finish."""
    return "GET /Patient?_count=1"


class TrainerContract(ABC):
    """The tests of an adapter, in the loop of its framework."""

    @abstractmethod
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        """Play an episode in the framework's loop with the adapter's own default split."""

    @pytest.mark.parametrize("episode", one_task_of_each_pack(), ids=lambda gold: gold.env_id.partition("/")[2])
    def test_gold_is_rewarded_in_all_packs(self, own_world: OwnWorld, episode: GoldEpisode) -> None:
        policy = GoldOverChat(own_world(episode.env_id), [episode])
        assert self.play(row_of(episode), policy) == Outcome(1.0, False)

    def test_idle_is_not_rewarded(self) -> None:
        assert self.play(row_of(APPOINTMENT), idle) == Outcome(0.0, False)

    def test_a_failing_server_is_no_reward(self, server_is_down: None) -> None:
        assert self.play(row_of(APPOINTMENT), looking).reward is None

    def test_the_step_limit_is_told_apart(self) -> None:
        assert self.play(row_of(APPOINTMENT), looking, max_steps=2) == Outcome(0.0, True)

    def test_a_test_variation_is_refused_in_training(self) -> None:
        (row,) = fhir_gym.rows(APPOINTMENT.env_id, APPOINTMENT.task, split="test", variations=1000)
        with pytest.raises(Exception, match="test variations are never trained on"):
            self.play(row, idle)

    def test_a_dial_in_the_key_of_the_task_reaches_the_episode(self) -> None:
        (row,) = fhir_gym.rows("FHIRAgent/Shift-v0", "day-3", variations=0, minutes=60)
        assert self.play(row, idle) == Outcome(0.0, False)


APPOINTMENT = GoldEpisode("FHIRAgent/Appointment-v0", "01")


def row_of(episode: GoldEpisode) -> fhir_gym.EpisodeRow:
    """The row that names an episode."""
    (row,) = fhir_gym.rows(episode.env_id, episode.task, variations=episode.variation)
    return row
