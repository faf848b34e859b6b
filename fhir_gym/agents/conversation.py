"""One episode as a chat: the messages to the model, and the order of its actions and lookups."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fhir_gym.agents.chat_messages import ChatProtocol, Completion, Lookup, Message, Opening
from fhir_gym.agents.completions import LookupCall, as_text, parse_completion
from fhir_gym.agents.context_window import ContextWindow, shorten
from fhir_gym.agents.prompts import system_prompt
from fhir_gym.agents.protocol import ContextWindowExceeded, EpisodeContext, Reply, StepLimitReached, Unfinished
from fhir_gym.agents.tool_sources import ERROR, error_text
from fhir_gym.agents.tool_sources.toolbox import Toolbox
from fhir_gym.errors import InfraError
from fhir_gym.printable import encodable

Completer = Callable[[Sequence[Message], Opening], Awaitable[Completion]]
"""Function that requests a completion for messages. The opening decides which tools the request offers."""

_MAX_RESULT = 100_000
"""Maximum number of characters of a lookup's result."""
_LESS = "ask for less at a time"


@dataclass(frozen=True, slots=True)
class LookupRules:
    """The tool sources that a model may use in an episode, and how often.

    Attributes:
        toolbox: The tools.
        count_lookups: Whether lookups count towards the step limit.
        max_lookups: Maximum number of lookups of an episode; None means the episode's step limit.
    """

    toolbox: Toolbox
    count_lookups: bool = True
    max_lookups: int | None = None

    def limit(self, context: EpisodeContext) -> int:
        """Return the maximum number of lookups of an episode."""
        return context.max_steps if self.max_lookups is None else self.max_lookups

    def note(self, protocol: ChatProtocol, context: EpisodeContext) -> str:
        """Return the text that follows the step limit in the first message."""
        limit, tools = self.limit(context), ", ".join(self.toolbox.names)
        if protocol == "text":
            counted = "A tool call counts as an action" if self.count_lookups else "Tool calls do not count as actions"
            free = self.count_lookups and self.max_lookups is None
            return f"\n{counted}." if free else f"\n{counted}; you have at most {limit} tool calls."
        if not self.count_lookups:
            return f" Calls of {tools} do not count, but you have at most {limit} of them."
        return "" if self.max_lookups is None else f" At most {limit} of them may be calls of {tools}."


def make_opening(
    protocol: ChatProtocol,
    observation: str,
    context: EpisodeContext,
    *,
    system: str | None = None,
    action_format: bool = True,
    host: str | None = None,
    seed: int | None = None,
    lookups: LookupRules | None = None,
) -> Opening:
    """Return the messages before a model's first reply.

    Args:
        protocol: ``text`` or ``tools``.
        observation: The first observation.
        context: The episode.
        system: System prompt; None for the default system prompt, an empty text for no system prompt.
        action_format: Whether the prompt of the protocol ``text`` explains how to write actions.
        host: Host of the model's endpoint.
        seed: Sampling seed.
        lookups: The tool sources; None without tool sources.
    """
    if system is None:
        system = system_prompt(protocol, [source.name for source in lookups.toolbox.sources] if lookups else ())
    task = observation if action_format else context.prompt
    if protocol == "tools":
        task = f"{context.prompt}\n\nYou have at most {context.max_steps} tool calls."
    if lookups:
        task += lookups.note(protocol, context)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": task})
    tools = lookups.toolbox.schemas if lookups else ()
    return Opening(protocol=protocol, messages=tuple(messages), host=host, seed=seed, tools=tools)


class Conversation:
    """One episode of a model, as an `AsyncConversation`.

    Messages are only appended, so the provider's cache stays valid, except when the window drops old contents. If a
    reply has several tool calls, each call is an action or a lookup, and they are performed in order. ``finish`` ends
    the episode even if further calls follow.

    Args:
        opening: The messages before the first reply.
        complete: Function that requests a completion.
        window: The model's context window.
        lookups: The tool sources; None without tool sources.
        context: The episode; required with tool sources.

    Attributes:
        unfinished: What happened since the latest action.
    """

    def __init__(
        self,
        opening: Opening,
        complete: Completer,
        window: ContextWindow,
        lookups: LookupRules | None = None,
        context: EpisodeContext | None = None,
    ) -> None:
        if lookups is not None and context is None:
            raise ValueError("a conversation with lookups needs its context")
        self.opening = opening
        self.unfinished = Unfinished()
        self._complete = complete
        self._window = window
        self._rules, self._context = lookups, context
        self._waiting: deque[Reply | LookupCall] = deque()
        self._call_id: str | None = None
        self._steps = self._lookups = 0

    async def act(self, observation: str) -> Reply:
        """Return the next action, after the lookups before it.

        Raises:
            InfraError: The provider or a tool source failed.
            ContextWindowExceeded: The observation or the result of a lookup does not fit.
            StepLimitReached: The lookups have used up the steps of the episode.
        """
        self._require_step()
        if self._window.added:
            shown = self._window.add_result(observation, self._call_id, later=len(self._waiting))
            self.unfinished = Unfinished(shown=None if shown == observation else shown)
        else:
            self._window.add_opening(self.opening.messages)
        while isinstance(part := await self._next(), LookupCall):
            await self._look_up(part)
            self._require_step()
        self._call_id = part.call_id
        self._steps += 1
        done, self.unfinished = self.unfinished, Unfinished()
        return replace(part, lookups=done.lookups, shown=done.shown, retries=part.retries + done.retries)

    async def _next(self) -> Reply | LookupCall:
        """Return the next action or lookup; request a completion if all earlier ones are done."""
        if not self._waiting:
            completion = await self._request()
            tools = self._rules.toolbox.names if self._rules else ()
            parts = parse_completion(completion, self.opening.protocol, self._window.added, tools)
            first = parts[0].model
            if first is None:
                raise RuntimeError("the first part of a reply has no model reply")
            if (dropped := self._window.take_dropped()) is not None:
                parts[0] = replace(parts[0], model=first.model_copy(update={"dropped": dropped}))
            self._window.add_reply(completion.usage, first.message)
            self._waiting.extend(parts)
        return self._waiting.popleft()

    async def _request(self) -> Completion:
        """Request a completion. If the provider finds the messages too long, repeat the request with fewer of them."""
        while True:
            try:
                return await self._complete(self._window.messages, self.opening)
            except ContextWindowExceeded as refusal:
                if not self._window.shrink():
                    raise ContextWindowExceeded(f"{refusal}{self._window.remedy}") from refusal

    async def _look_up(self, call: LookupCall) -> None:
        """Answer a call to a tool source, and record it whatever happens."""
        result, answered = "", False
        try:
            result = shorten(encodable(await self._answer(call)), _MAX_RESULT, _LESS)
            answered = True
            result = self._window.add_result(result, call.call_id, advice=_LESS, later=len(self._waiting))
        except InfraError as failure:
            result = encodable(str(failure))
            raise
        finally:
            self._record(call, result, error=not answered or result.startswith(ERROR))

    async def _answer(self, call: LookupCall) -> str:
        """Count a lookup and return its result."""
        assert self._rules is not None and self._context is not None
        toolbox, limit = self._rules.toolbox, self._rules.limit(self._context)
        if self._lookups >= limit:
            self._steps += 1  # so that an agent that only looks up does not act for ever
            return error_text(f"you have used all {limit} calls of {', '.join(toolbox.names)}; act without them")
        self._lookups += 1
        self._steps += self._rules.count_lookups
        return await toolbox.call(call.tool, call.arguments, self._context)

    def _record(self, call: LookupCall, result: str, *, error: bool) -> None:
        lookup = Lookup(
            reply=call.model,
            source=self._rules.toolbox.source_of(call.tool) if self._rules else "",
            tool=call.tool,
            arguments=as_text(call.arguments),
            result=result,
            call_id=call.call_id,
            error=error,
        )
        before = self.unfinished
        self.unfinished = replace(before, lookups=(*before.lookups, lookup), retries=before.retries + call.retries)

    def _require_step(self) -> None:
        if self._context is not None and self._rules is not None and self._steps >= self._context.max_steps:
            raise StepLimitReached


class SyncAdapter(ABC):
    """Implements `Agent` for a `ConcurrentAgent`. Conversations run one at a time on an event loop of their own."""

    _running: tuple[asyncio.Runner, Conversation] | None = None

    @abstractmethod
    def converse(self, observation: str, context: EpisodeContext) -> Conversation:
        """Start an episode that runs concurrently with others."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close what the agent opened on the current event loop. The agent may be used again."""

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Start an episode for `act`."""
        self.close()
        self._running = (asyncio.Runner(), self.converse(observation, context))

    def act(self, observation: str) -> Reply:
        """Return the next action of the episode that `reset` started. Inside an event loop, use `converse` instead."""
        if self._running is None:
            raise RuntimeError("act() before reset()")
        runner, conversation = self._running
        return runner.run(conversation.act(observation))

    def close(self) -> None:
        """Close the event loop and the conversation that `reset` opened."""
        if self._running is not None:
            runner, self._running = self._running[0], None
            runner.run(self.aclose())
            runner.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the agent without a running episode."""
        return self.__dict__ | {"_running": None}
