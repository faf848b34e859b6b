"""Gold episodes of all packs, for the loops of frameworks."""

from __future__ import annotations

from typing import NamedTuple

from fhir_gym.actions import GRAMMAR, Action
from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.fhir import World
from fhir_gym.tasks import pack_ids, task_keys


class GoldEpisode(NamedTuple):
    """An episode that the reference solution plays."""

    env_id: str
    task: str
    variation: int = 0

    def policy(self, world: World) -> GoldPolicy:
        """Return the policy that solves this episode in a world."""
        return GoldPolicy(self, world)


class GoldPolicy:
    """A policy from observations to the actions of the reference solution."""

    def __init__(self, episode: GoldEpisode, world: World) -> None:
        self._agent = GoldAgent()
        context = EpisodeContext(*episode, world=world, seed=0, max_steps=0, prompt="")
        self._agent.reset("", context)

    def __call__(self, observation: str) -> str:
        """Return the next action as text. The first observation is not read."""
        return self._agent.act(observation)

    def tool_call(self, observation: str) -> tuple[str, dict[str, object]]:
        """Return the next action as the name and the arguments of a tool."""
        action = GRAMMAR.parse(self(observation))
        assert isinstance(action, Action)
        call = GRAMMAR.to_tool_call(action)
        assert call is not None, f"no tool can express {action.text()}"
        return call


def one_task_of_each_pack() -> list[GoldEpisode]:
    """The first task of each pack."""
    return [GoldEpisode(env_id, task_keys(env_id)[0]) for env_id in pack_ids() if env_id.startswith("FHIRAgent/")]


def all_tasks() -> list[GoldEpisode]:
    """Every task of every pack."""
    return [
        GoldEpisode(episode.env_id, task) for episode in one_task_of_each_pack() for task in task_keys(episode.env_id)
    ]
