"""Messages to and from a language model, as plain data for records."""

from __future__ import annotations

import json
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from fhir_gym.types import Json

Message = dict[str, Json]
"""A chat message in the form of the chat completions API."""

ChatProtocol = Literal["text", "tools"]
ReplyKind = Literal["action", "no_call", "empty", "length", "refusal", "filtered", "unreadable"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Usage(_Data):
    """Token counts that a provider reports.

    Attributes:
        prompt: Number of input tokens.
        completion: Number of output tokens, including reasoning.
        cached: Number of input tokens that came from the provider's cache.
        reasoning: Number of output tokens that were reasoning.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """Input plus output tokens."""
        return self.prompt + self.completion

    def __add__(self, other: Self) -> Usage:
        """Add two counts."""
        return Usage(
            prompt=self.prompt + other.prompt,
            completion=self.completion + other.completion,
            cached=self.cached + other.cached,
            reasoning=self.reasoning + other.reasoning,
        )


class Opening(_Data):
    """The start of a conversation with a model.

    Attributes:
        protocol: ``text`` (the model writes actions) or ``tools`` (the model calls the functions of `GRAMMAR.tools`).
        messages: The messages before the model's first reply.
        host: Host of the model's endpoint; None for a model in this process.
        seed: Sampling seed; None if no seed was sent.
        tools: The function schemas of tool sources, which the model may call beside the protocol's own tools.
    """

    protocol: ChatProtocol
    messages: tuple[Message, ...]
    host: str | None = None
    seed: int | None = None
    tools: tuple[Message, ...] = ()


class Completion(_Data):
    """A reply of a model before it is parsed.

    Attributes:
        content: The text; None for a reply without text.
        tool_calls: The tool calls, unchanged.
        finish_reason: The provider's reason why the reply ended; ``unreadable`` if the provider could not parse it.
        reasoning: The reasoning; None if the provider does not report reasoning separately.
        refusal: The refusal; None if the provider does not report a refusal separately.
        usage: Token counts; None if the provider reports none.
        model: The model's name as reported by the provider.
        fingerprint: The provider's fingerprint of the model.
        extra: Further data for the record, such as token ids and log-probabilities.
        retries: Number of failed requests before this reply.
    """

    content: str | None = None
    tool_calls: tuple[Message, ...] = ()
    finish_reason: str = "stop"
    reasoning: str | None = None
    refusal: str | None = None
    usage: Usage | None = None
    model: str | None = None
    fingerprint: str | None = None
    extra: dict[str, Json] = {}
    retries: int = 0


class Dropped(_Data):
    """What an agent dropped from the conversation before a request; this and all later requests lack it.

    Attributes:
        contents: Positions of the messages whose contents were replaced by a short form, counted from the start of the
            conversation.
        messages: Number of messages after the opening that were removed completely, oldest first.
    """

    contents: tuple[int, ...] = ()
    messages: int = 0


class ModelReply(_Data):
    """The record of one reply of a model. A reply may contain several actions.

    Attributes:
        kind: ``action`` for a reply with an action, even an invalid one. Otherwise why the reply has no action:
            ``no_call`` (text instead of a tool call), ``empty``, ``length`` (truncated by the token limit),
            ``refusal``, ``filtered`` (withheld by the provider), or ``unreadable`` (the provider could not parse it).
        message: The assistant message that later requests contain.
        finish_reason: The provider's reason why the reply ended.
        reasoning: The reasoning; None if the reply has none.
        raw: The original content; None if `message` contains it unchanged.
        usage: Token counts; None if the provider reports none.
        model: The model's name as reported by the provider.
        fingerprint: The provider's fingerprint of the model.
        extra: Further data, such as token ids and log-probabilities.
        dropped: What was dropped from the conversation before this reply; None if nothing was dropped.
    """

    kind: ReplyKind
    message: Message
    finish_reason: str
    reasoning: str | None = None
    raw: Json = None
    usage: Usage | None = None
    model: str | None = None
    fingerprint: str | None = None
    extra: dict[str, Json] = {}
    dropped: Dropped | None = None


class Lookup(_Data):
    """The record of one call to a tool source, such as the FHIR specification; see `fhir_gym.agents.tool_sources`.

    Attributes:
        reply: The model's reply that contains this call; None for all calls of a reply except the first.
        source: Name of the tool source; empty if the tool does not exist.
        tool: Name of the tool.
        arguments: The arguments as JSON text, as the model wrote them.
        result: The result as the model read it.
        error: Whether the call failed because of a mistake of the model.
    """

    reply: ModelReply | None = None
    source: str
    tool: str
    arguments: str
    result: str
    call_id: str | None = None
    error: bool = False


def result_message(observation: str, call_id: str | None) -> Message:
    """Return the message with the result of an action."""
    if call_id is None:
        return {"role": "user", "content": observation}
    return {"role": "tool", "tool_call_id": call_id, "content": observation}


def with_decoded_calls(message: Message) -> Message:
    """Decode the arguments of a message's tool calls, because chat templates expect objects."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    decoded = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in calls
    ]
    return {**message, "tool_calls": decoded}
