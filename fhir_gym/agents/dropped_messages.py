"""The short forms of old messages, which replace them when a conversation does not fit into the context window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fhir_gym.actions import GRAMMAR, Action
from fhir_gym.agents.chat_messages import Message
from fhir_gym.printable import encodable, one_line

_MAX_ARGUMENT = 200
"""Maximum number of characters of an argument that a shortened tool call keeps."""
_MAX_LINE = 300
"""Maximum number of characters of an action's url, or of a reply without an action."""
_MAX_NAME = 100
"""Maximum number of characters of a record's name."""
_MAX_NAMES = 20
"""Maximum number of records that a note names."""
_LOCATION = "Location: "


def short_form(message: Message) -> Message:
    """Return the message in the form that later requests contain once it is dropped.

    The role, the ids of tool calls, and an action's verb and url stay. A message that would not become shorter is
    returned unchanged. The form depends only on the message, so a record needs only the message.
    """
    short = _short_reply(message) if message["role"] == "assistant" else _short_result(message)
    return short if len(json.dumps(short)) < len(json.dumps(message)) else message


def _short_result(message: Message) -> Message:
    """Return the result of an action or lookup as one line with the status and the names of the records."""
    content = str(message["content"])
    line, _, body = content.partition("\n")
    status = [one_line(line, _MAX_LINE)] if line.startswith("HTTP ") else []
    about = ", ".join([*status, *_contained(body if status else content), f"{len(content):,} characters"])
    return {**message, "content": f"[Dropped: {about}. Read it again if you need it.]"}


def _contained(body: str) -> Iterator[str]:
    """Yield the names of the written or read records, or the number of entries of a search result."""
    if body.startswith(_LOCATION):
        yield _name(body.removeprefix(_LOCATION))
        return
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(found, dict):
        return
    entries = found.get("entry")
    if isinstance(entries, list):
        places = [_location(one) for one in entries]
        written = [one for one in places if one]
        yield from written[:_MAX_NAMES] or [f"{len(entries)} entries"]
        if len(written) > _MAX_NAMES:
            yield f"{len(written) - _MAX_NAMES} more"
    elif isinstance(found.get("resourceType"), str) and isinstance(found.get("id"), str):
        yield one_line(f"{found['resourceType']}/{found['id']}", _MAX_NAME)


def _location(entry: Any) -> str:
    """Return the record that an entry of a batch response or transaction response names."""
    response = entry.get("response") if isinstance(entry, dict) else None
    location = response.get("location") if isinstance(response, dict) else None
    return _name(location) if isinstance(location, str) else ""


def _name(location: str) -> str:
    """Return type and id of a record from its absolute or relative URL."""
    return one_line("/".join(location.partition("/_history/")[0].rsplit("/", 2)[-2:]), _MAX_NAME)


def _short_reply(message: Message) -> Message:
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        return {**message, "content": "", "tool_calls": [_short_call(call) for call in calls]}
    content = str(message["content"])
    action = GRAMMAR.parse(content)
    kept = content.strip()
    if isinstance(action, Action) and action.url:
        kept = f"{action.kind} {action.url}"
    return {**message, "content": f"{one_line(kept, _MAX_LINE)}\n[Dropped: the rest of {len(content):,} characters.]"}


def _short_call(call: Any) -> Any:
    function = call["function"]
    arguments = {
        name: value if len(text := _text(value)) <= _MAX_ARGUMENT else f"[Dropped: {len(text):,} characters.]"
        for name, value in json.loads(function["arguments"]).items()
    }
    text = encodable(json.dumps(arguments, ensure_ascii=False))
    return {**call, "function": {**function, "arguments": text}}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
