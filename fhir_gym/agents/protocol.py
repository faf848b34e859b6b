"""What an agent is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from fhir_gym.actions import Action, Invalid
from fhir_gym.fhir import World
from fhir_gym.tasks import Task
from fhir_gym.types import Json

__all__ = ["Agent", "Context", "Reply"]


@dataclass(frozen=True, slots=True)
class Context:
    """Which episode an agent is asked to do.

    Only reference agents may look at more than `seed` and `max_steps`: from task and world all answers follow.

    Attributes:
        env_id: The pack.
        task: Key of the task.
        variation: Number of the variation.
        world: The world.
        seed: Where the agent's own randomness starts; another one for each episode.
        max_steps: Actions the episode allows.
        prompt: The first observation without the action format, for agents that act by tool calls.
        source: The task itself, where it is not one that the pack registers; for reference agents.
    """

    env_id: str
    task: str
    variation: int
    world: World
    seed: int
    max_steps: int
    prompt: str
    source: Task[Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An action with what should be remembered of how it came about.

    Attributes:
        action: The action's text, or what `GRAMMAR.from_tool_call` made of a tool call.
        text: What the agent wrote, if that is not the action itself.
        tool: Name of the tool it called, if any.
        notes: Anything else for the record (tokens used, the model's own message), as plain data.
    """

    action: str | Action | Invalid
    text: str | None = None
    tool: str | None = None
    notes: Mapping[str, Json] = field(default_factory=dict)


@runtime_checkable
class Agent(Protocol):
    """Something that acts.

    To run in worker processes an agent must be picklable; then every worker has its own copy.

    Attributes:
        name: Its name in records.
        settings: What it was made with, as plain data for the record: never a secret.
    """

    name: str
    settings: Mapping[str, Json]

    def reset(self, observation: str, context: Context) -> None:
        """Begin an episode.

        Args:
            observation: The first observation; `act` gets it too.
            context: Which episode this is.
        """

    def act(self, observation: str) -> str | Reply:
        """The next action.

        Args:
            observation: The latest observation.

        Raises:
            InfraError: The agent's own provider failed: the episode is recorded as such, without a reward.
        """
