"""Parse the replies of a model into actions and lookups."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from fhir_gym.actions import GRAMMAR, Action, Invalid
from fhir_gym.agents.chat_messages import ChatProtocol, Completion, Message, ModelReply, ReplyKind
from fhir_gym.agents.protocol import Reply
from fhir_gym.errors import UnknownNameError
from fhir_gym.types import Json, as_object, json_object

_THINK_START, _THINK_END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class LookupCall:
    """A call to a tool source.

    Attributes:
        tool: Name of the tool; it may not exist.
        arguments: The arguments as the model wrote them.
        model: The model's reply that contains this call; None for all calls of a reply except the first.
        retries: Number of failed requests to the provider.
    """

    tool: str
    arguments: Json
    call_id: str
    model: ModelReply | None = None
    retries: int = 0


def parse_completion(
    completion: Completion, protocol: ChatProtocol, number: int = 0, lookup_tools: Collection[str] = ()
) -> list[Reply | LookupCall]:
    """Parse a completion into one or more actions and lookups. The first one contains the record of the model's reply.

    In the protocol ``text``, a reply with calls to `lookup_tools` contains no action; its text is a comment.

    Args:
        completion: The completion.
        protocol: ``text`` or ``tools``.
        number: Number that differs between completions; it makes ids for tool calls without ids.
        lookup_tools: Names of the tools that are lookups.
    """
    content, thought = _split_thought(completion.content or "")
    reasoning = completion.reasoning if thought is None else f"{completion.reasoning or ''}{thought}"
    raw: Json = completion.content if thought is not None else None
    message: Message = {"role": "assistant", "content": content}
    calls = [_with_id(call, f"call_{number}_{at}") for at, call in enumerate(completion.tool_calls)]
    if protocol == "text" and calls and not lookup_tools:
        calls, raw = [], list(completion.tool_calls)  # no tools were offered, so the text is the action
    if calls:
        message["tool_calls"] = [sendable for _, sendable in calls]
        raw = [call for call, _ in calls] if any(call != sendable for call, sendable in calls) else raw
        parts = list(_parse_calls([call for call, _ in calls], completion, protocol, lookup_tools))
        kind: ReplyKind = "action"
    else:
        kind, action = _parse_text(content, completion, protocol)
        parts = [Reply(action, None if action == content else content)]
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
    parts[0] = replace(parts[0], model=model, retries=completion.retries)
    return parts


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
    function = as_object(call.get("function"))
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if json_object(text) is None:
        text = json.dumps({"unreadable": text}, ensure_ascii=False)
    sendable = {"name": str(function.get("name") or "unnamed"), "arguments": text}
    return call, {"id": call["id"], "type": "function", "function": sendable}


def _parse_calls(
    calls: Sequence[Message], completion: Completion, protocol: ChatProtocol, lookup_tools: Collection[str]
) -> Iterator[Reply | LookupCall]:
    for call in calls:
        function: Json = call.get("function")
        arguments: Json
        action: Action | Invalid
        if call["type"] != "function" or not isinstance(function, dict):
            name, arguments, action = str(call["type"]), call, _not_a_function(call)
        else:
            name, arguments = str(function.get("name") or ""), function.get("arguments")
            action = _action(name, arguments, lookup_tools)
            if isinstance(action, Invalid) and completion.finish_reason == "length" and call is calls[-1]:
                action = Invalid(f"your answer was cut off because it is too long. {action.reason}", action.example)
        if protocol == "text" or name in lookup_tools:
            yield LookupCall(name, arguments, str(call["id"]))
            continue
        written = as_text(arguments)
        text = f"{name}({written})" if isinstance(action, Invalid) else completion.content or None
        yield Reply(action, text, name, call_id=str(call["id"]))


def as_text(arguments: Json) -> str:
    """Return the arguments of a call as a model wrote them, as JSON text."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _action(name: str, arguments: Json, lookup_tools: Collection[str]) -> Action | Invalid:
    if lookup_tools and name not in (tool_names := (*GRAMMAR.tool_names, *lookup_tools)):
        return Invalid(str(UnknownNameError("tool", name, tool_names)), _call_example())
    if arguments is None or arguments == "":
        arguments = {}  # several servers send null or an empty text for a call without arguments
    return GRAMMAR.from_tool_call(name, arguments)


def _not_a_function(call: Message) -> Invalid:
    return Invalid(f"a tool call of type {str(call['type'])[:40]!r} is not a function call", _call_example())
