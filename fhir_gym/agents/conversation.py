"""One episode as a chat: the messages to the model, and its replies parsed into actions."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from fhir_gym.actions import GRAMMAR, Action, Invalid
from fhir_gym.agents.chat_messages import (
    ChatProtocol,
    Completion,
    Message,
    ModelReply,
    Opening,
    ReplyKind,
    result_message,
)
from fhir_gym.agents.context_window import ContextWindow
from fhir_gym.agents.prompts import SYSTEM_PROMPT, TOOLS_NOTE
from fhir_gym.agents.protocol import EpisodeContext, Reply
from fhir_gym.types import Json

Completer = Callable[[Sequence[Message], Opening], Awaitable[Completion]]
"""Function that requests a completion for messages. The opening's protocol decides whether it offers tools."""

_THINK_START, _THINK_END = "<think>", "</think>"


def make_opening(
    protocol: ChatProtocol,
    observation: str,
    context: EpisodeContext,
    *,
    system: str | None = None,
    host: str | None = None,
    seed: int | None = None,
) -> Opening:
    """Return the messages before a model's first reply.

    Args:
        protocol: ``text`` or ``tools``.
        observation: The first observation.
        context: The episode.
        system: System prompt; None for the default system prompt, an empty text for no system prompt.
        host: Host of the model's endpoint.
        seed: Sampling seed.
    """
    if system is None:
        system = SYSTEM_PROMPT + (TOOLS_NOTE if protocol == "tools" else "")
    task = observation
    if protocol == "tools":
        task = f"{context.prompt}\n\nYou have at most {context.max_steps} tool calls."
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": task})
    return Opening(protocol=protocol, messages=tuple(messages), host=host, seed=seed)


class Conversation:
    """One episode of a model, as an `AsyncConversation`.

    Messages are only appended, so the provider's cache stays valid. If a reply has several tool calls, each call is an
    action, and the actions are performed in order. ``finish`` ends the episode even if further calls follow.

    Args:
        opening: The messages before the first reply.
        complete: Function that requests a completion.
        window: The model's context window.
    """

    def __init__(self, opening: Opening, complete: Completer, window: ContextWindow) -> None:
        self.opening = opening
        self._complete = complete
        self._window = window
        self._messages: list[Message] = []
        self._waiting: deque[Reply] = deque()
        self._call_id: str | None = None

    async def act(self, observation: str) -> Reply:
        """Return the next action.

        Raises:
            InfraError: The provider failed.
            ContextWindowExceeded: The observation does not fit.
        """
        shown = None
        if self._messages:
            shown = self._window.fit(observation)
            self._messages.append(result_message(shown, self._call_id))
        else:
            self._messages.extend(self.opening.messages)
            self._window.add_opening(self._messages)
        if not self._waiting:
            completion = await self._complete(self._messages, self.opening)
            replies = parse_completion(completion, self.opening.protocol, len(self._messages))
            first = replies[0].model
            if first is None:
                raise RuntimeError("the first reply has no model reply")
            self._messages.append(first.message)
            self._window.add_reply(completion.usage, first.message)
            self._waiting.extend(replies)
        reply = self._waiting.popleft()
        self._call_id = reply.call_id
        return reply if shown is None or shown == observation else replace(reply, shown=shown)


def parse_completion(completion: Completion, protocol: ChatProtocol, number: int = 0) -> list[Reply]:
    """Parse a completion into one or more actions. The first `Reply` contains the record of the model's reply.

    Args:
        completion: The completion.
        protocol: ``text`` or ``tools``.
        number: Number that differs between completions; it makes ids for tool calls without ids.
    """
    content, thought = _split_thought(completion.content or "")
    reasoning = completion.reasoning if thought is None else f"{completion.reasoning or ''}{thought}"
    raw: Json = completion.content if thought is not None else None
    message: Message = {"role": "assistant", "content": content}
    calls = [_with_id(call, f"call_{number}_{at}") for at, call in enumerate(completion.tool_calls)]
    if protocol == "text" and calls:
        calls, raw = [], list(completion.tool_calls)  # no tools were offered, so the text is the action
    if calls:
        message["tool_calls"] = [sendable for _, sendable in calls]
        raw = [call for call, _ in calls] if any(call != sendable for call, sendable in calls) else raw
        replies = list(_parse_calls([call for call, _ in calls], completion))
        kind: ReplyKind = "action"
    else:
        kind, action = _parse_text(content, completion, protocol)
        replies = [Reply(action, None if action == content else content)]
        if not content:  # providers refuse an empty assistant message
            message["content"] = completion.refusal or "(no answer)"
    model = ModelReply(
        kind=kind,
        message=message,
        finish_reason=completion.finish_reason,
        reasoning=reasoning,
        raw=raw,
        usage=completion.usage,
        model=completion.model,
        fingerprint=completion.fingerprint,
        extra=completion.extra,
    )
    replies[0] = replace(replies[0], model=model, retries=completion.retries)
    return replies


def _split_thought(content: str) -> tuple[str, str | None]:
    """Split a text into the reply and the preceding ``<think>`` block; None without such a block."""
    thought, ended, reply = content.partition(_THINK_END)
    if not ended and not thought.lstrip().startswith(_THINK_START):
        return content, None
    return reply.lstrip(), thought.lstrip().removeprefix(_THINK_START)


def _parse_text(content: str, completion: Completion, protocol: ChatProtocol) -> tuple[ReplyKind, str | Invalid]:
    """Return the kind of a reply without tool calls, and its action."""
    example = GRAMMAR.example("GET") if protocol == "text" else _call_example()
    if completion.refusal:
        return "refusal", Invalid("you refused; an action is required", example)
    if completion.finish_reason == "content_filter":
        return "filtered", Invalid("your answer was withheld by the provider's content filter", example)
    if completion.finish_reason == "length":
        return "length", Invalid("your answer was cut off because it is too long; write only the action", example)
    if completion.finish_reason == "unreadable":
        return "unreadable", Invalid("your answer could not be parsed as a tool call", example)
    if not content.strip():
        return "empty", Invalid("your answer is empty", example)
    if protocol == "tools":
        return "no_call", Invalid("you called no tool; call finish to end the task", example)
    return "action", content


def _call_example() -> str:
    return 'searchResources({"resourceType": "Patient", "params_json": {"family": "Lee"}})'


def _with_id(call: Message, id: str) -> tuple[Message, Message]:
    """Return a tool call with an id, and a variant of the call that servers accept in later requests.

    Servers decode the arguments of earlier calls for the chat template, and fail if they are not a JSON object.
    """
    call = {**call, "id": call.get("id") or id, "type": call.get("type") or "function"}
    given = call.get("function")
    function = given if isinstance(given, dict) else {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not _is_object(text):
        text = json.dumps({"unreadable": text}, ensure_ascii=False)
    sendable = {"name": str(function.get("name") or "unnamed"), "arguments": text}
    return call, {"id": call["id"], "type": "function", "function": sendable}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _parse_calls(calls: Sequence[Message], completion: Completion) -> Iterator[Reply]:
    for call in calls:
        function: Json = call.get("function")
        arguments: Json
        action: Action | Invalid
        if call["type"] != "function" or not isinstance(function, dict):
            name, arguments, action = str(call["type"]), call, _not_a_function(call)
        else:
            name, arguments = str(function.get("name") or ""), function.get("arguments")
            action = _action(name, arguments)
            if isinstance(action, Invalid) and completion.finish_reason == "length" and call is calls[-1]:
                action = Invalid(f"your answer was cut off because it is too long. {action.reason}", action.example)
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        text = f"{name}({written})" if isinstance(action, Invalid) else completion.content or None
        yield Reply(action, text, name, call_id=str(call["id"]))


def _action(name: str, arguments: Json) -> Action | Invalid:
    if arguments is None or arguments == "":
        arguments = {}  # several servers send null or an empty text for a call without arguments
    return GRAMMAR.from_tool_call(name, arguments)


def _not_a_function(call: Message) -> Invalid:
    return Invalid(f"a tool call of type {str(call['type'])[:40]!r} is not a function call", _call_example())
