"""The protocols that agents implement, and the values that agents and `run` exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

from fhir_gym.actions import Action, Invalid
from fhir_gym.agents.chat_messages import Lookup, ModelReply, Opening
from fhir_gym.errors import WrongTypeError, describe_type
from fhir_gym.fhir import World
from fhir_gym.tasks import Task
from fhir_gym.types import Json

if TYPE_CHECKING:
    from fhir_gym.episode import Episode


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """The episode that an agent is about to start.

    Only reference agents may read attributes other than `seed`, `max_steps` and `prompt`, because the task and the
    world reveal the answers.

    Attributes:
        env_id: Env id of the pack.
        task: Key of the task.
        variation: Number of the variation.
        seed: Seed of the agent's own randomness; each episode has another seed.
        max_steps: Step limit of the episode.
        prompt: The first observation without the action format, for agents that act by tool calls.
        source: The task as an object, for reference agents; None means the registered task with the key `task`.
    """

    env_id: str
    task: str
    variation: int
    world: World
    seed: int
    max_steps: int
    prompt: str
    source: Task[Any] | None = None

    @classmethod
    def of(cls, episode: Episode, seed: int = 0) -> Self:
        """Return the context of an episode."""
        return cls(
            episode.config.env_id,
            episode.task.key,
            episode.variation.number,
            episode.world,
            seed,
            episode.step_limit,
            episode.prompt,
            episode.task,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """An action, with details that the record contains.

    Attributes:
        action: The action's text, or the result of `GRAMMAR.from_tool_call` for a tool call.
        text: The agent's original text; None if it equals the action.
        tool: Name of the called tool; None without a tool call.
        notes: Further plain data for the record.
        model: The model's reply that contains this action; None for all actions of a reply except the first.
        call_id: Id of the tool call.
        shown: The shortened form in which the agent read the previous observation; None if it was not shortened.
        retries: Number of failed requests to the provider.
        lookups: The calls to tool sources since the previous action, in order.
    """

    action: str | Action | Invalid
    text: str | None = None
    tool: str | None = None
    notes: Mapping[str, Json] = field(default_factory=dict)
    model: ModelReply | None = None
    call_id: str | None = None
    shown: str | None = None
    retries: int = 0
    lookups: tuple[Lookup, ...] = ()


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a conversation has done since its latest action.

    Attributes:
        lookups: The calls to tool sources, in order.
        shown: The shortened form in which the agent read the latest observation; None if it was not shortened.
        retries: Number of failed requests to the provider.
    """

    lookups: tuple[Lookup, ...] = ()
    shown: str | None = None
    retries: int = 0


class EpisodeTruncated(Exception):
    """The agent cannot act any more. The episode is then truncated and graded.

    Attributes:
        stop_reason: Why the episode ends.
    """

    stop_reason: Literal["context_limit", "step_limit"]


class ContextWindowExceeded(EpisodeTruncated):
    """The agent's context window is full."""

    stop_reason = "context_limit"


class StepLimitReached(EpisodeTruncated):
    """The agent has used up the steps of the episode. The episode itself does not know this if lookups are steps."""

    stop_reason = "step_limit"


@runtime_checkable
class Agent(Protocol):
    """An agent that acts in one episode at a time.

    For worker processes, an agent must be picklable; each worker has its own copy.

    Attributes:
        name: Name of the agent in records.
        settings: The agent's settings as plain data for records; they must not contain secrets.
    """

    name: str
    settings: Mapping[str, Json]

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Start an episode.

        Args:
            observation: The first observation. The first call of `act` gets the same observation.
            context: The episode.
        """

    def act(self, observation: str) -> str | Reply:
        """Return the next action.

        Args:
            observation: The latest observation.

        Raises:
            InfraError: The agent's provider failed. The record of the episode then has no reward.
            EpisodeTruncated: The agent cannot act any more, for example because its context window is full.
        """


class AsyncConversation(Protocol):
    """One episode of a `ConcurrentAgent`.

    A conversation with lookups also has the attribute ``unfinished``, an `Unfinished` that the record contains if the
    episode ends without a further action.

    Attributes:
        opening: The start of the conversation with the model.
    """

    opening: Opening

    async def act(self, observation: str) -> Reply:
        """Return the next action. The method raises the same exceptions as `Agent.act`."""
        ...


@runtime_checkable
class ConcurrentAgent(Protocol):
    """An agent that acts in several episodes concurrently, on one event loop.

    With a remote model, many episodes can wait for responses at the same time. A local model can complete the requests
    of many episodes as one batch.

    Attributes:
        name: Name of the agent in records.
        settings: The agent's settings as plain data for records; they must not contain secrets.
    """

    name: str
    settings: Mapping[str, Json]

    def converse(self, observation: str, context: EpisodeContext) -> AsyncConversation:
        """Start an episode that runs concurrently with others.

        Args:
            observation: The first observation. The first call of `AsyncConversation.act` gets the same observation.
            context: The episode.
        """
        ...

    async def aclose(self) -> None:
        """Close what the agent opened on this event loop. The agent may be used again on another event loop."""
        ...


def require_agent(value: object) -> Agent | ConcurrentAgent:
    """Return the value if it is an agent.

    Raises:
        WrongTypeError: The value is a class, or lacks attributes of an agent. The message names these attributes.
    """
    if isinstance(value, type):
        name = value.__name__
        raise WrongTypeError(f"an agent is an object, not a class: pass {name}(...) in place of {name}")
    if isinstance(value, Agent | ConcurrentAgent):
        return value
    needed = ("name", "settings", "converse", "aclose") if hasattr(value, "converse") else _AGENT_ATTRIBUTES
    lacking = ", ".join(name for name in needed if not hasattr(value, name))
    if callable(value):
        lacking += "; fhir_gym.agents.ScriptedAgent turns a function of observation and step into an agent"
    raise WrongTypeError(f"{describe_type(value)} is not an agent: it lacks {lacking}")


_AGENT_ATTRIBUTES = ("name", "settings", "reset", "act")
