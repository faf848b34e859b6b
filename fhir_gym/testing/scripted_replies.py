"""Replies of a scripted chat server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fhir_gym.types import Json


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A reply of the chat completions API.

    Attributes:
        content: The text; None for no text.
        calls: Tool calls. Each has a name, and arguments as an object or as text, which may be invalid.
        finish_reason: The reported finish reason; None means ``tool_calls`` if the reply has calls, otherwise ``stop``.
        refusal: Text of the refusal, in OpenAI's format.
        reasoning: Text of the reasoning, as a separate member of the message.
        message: Further members of the message.
        usage: Whether the reply reports token counts.
    """

    content: str | None = None
    calls: Sequence[tuple[str, Mapping[str, Json] | str]] = ()
    finish_reason: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    message: Mapping[str, Json] = field(default_factory=dict)
    usage: bool = True

    def body(self, request: Mapping[str, Any], number: int) -> dict[str, Json]:
        """Return the body of the response.

        Args:
            request: The body of the request.
            number: Number of the request. The ids of tool calls do not depend on this number, so that equal
                conversations get equal replies.
        """
        message: dict[str, Json] = {"role": "assistant", "content": self.content}
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{len(request['messages'])}_{at}",
                    "type": "function",
                    "function": {"name": name, "arguments": _text(given)},
                }
                for at, (name, given) in enumerate(self.calls)
            ]
        if self.refusal is not None:
            message["refusal"] = self.refusal
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        message |= self.message
        reason = self.finish_reason or ("tool_calls" if self.calls else "stop")
        read = sum(len(str(part.get("content") or "")) for part in request["messages"]) // 4
        written = len(json.dumps(message)) // 4
        counted = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "system_fingerprint": "fp_scripted",
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        } | ({"usage": counted} if self.usage else {})


ReplyPolicy = Callable[[Mapping[str, Any]], ScriptedReply | str]
"""Function that maps a request body to a reply. It runs on the server's thread, so it must not block."""


def scripted_policy(replies: Sequence[ScriptedReply | str]) -> ReplyPolicy:
    """Return a policy that gives these replies in order in every conversation, and then ``FINISH([])``.

    The position in a conversation is the number of its assistant messages, so conversations may overlap.
    """

    def policy(request: Mapping[str, Any]) -> ScriptedReply | str:
        count: int = sum(message.get("role") == "assistant" for message in request["messages"])
        if count < len(replies):
            return replies[count]
        return ScriptedReply(calls=[("finish", {"answer": []})]) if offers_actions(request) else "FINISH([])"

    return policy


def offers_actions(request: Mapping[str, Any]) -> bool:
    """Whether a request offers actions as tools; it may also offer only lookups."""
    return any(tool["function"]["name"] == "finish" for tool in request.get("tools") or ())


def _text(arguments: Mapping[str, Json] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
