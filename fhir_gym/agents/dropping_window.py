"""A context window that drops the oldest contents of a conversation instead of ending it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from typing_extensions import override

from fhir_gym.actions import GRAMMAR, Action
from fhir_gym.agents.chat_messages import Dropped, Message, Usage
from fhir_gym.agents.context_window import (
    CHARS_PER_TOKEN,
    LESS_FHIR,
    MIN_OBSERVATION,
    ContextPolicy,
    ContextWindow,
    estimate_tokens,
    message_tokens,
    shorten,
)
from fhir_gym.agents.protocol import ContextWindowExceeded
from fhir_gym.arguments import require_name
from fhir_gym.errors import ArgumentError
from fhir_gym.printable import encodable, one_line
from fhir_gym.types import as_object, json_object

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
    document = json_object(body)
    if document is None:
        return
    entries = document.get("entry")
    if isinstance(entries, list):
        places = [_location(entry) for entry in entries]
        written = [place for place in places if place]
        yield from written[:_MAX_NAMES] or [f"{len(entries)} entries"]
        if len(written) > _MAX_NAMES:
            yield f"{len(written) - _MAX_NAMES} more"
    elif isinstance(document.get("resourceType"), str) and isinstance(document.get("id"), str):
        yield one_line(f"{document['resourceType']}/{document['id']}", _MAX_NAME)


def _location(entry: Any) -> str:
    """Return the record that an entry of a batch response or transaction response names."""
    location = as_object(as_object(entry).get("response")).get("location")
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


_LATEST = 3
"""Number of the latest results and replies whose contents are dropped after all others."""
_MAX_SHARE = 0.75
"""Maximum share of the rest of the window for which older contents are dropped to show a result in full."""
_ENVELOPE = 60
"""Tokens of a result's message without its content."""


def make_window(
    policy: ContextPolicy, context_tokens: int | None, reply_tokens: int | None, observation_chars: int | None
) -> ContextWindow:
    """Return the context window for a policy.

    Args:
        policy: What happens when a conversation does not fit.
        context_tokens: Size of the model's context window; None for no limit.
        reply_tokens: Tokens reserved for the next reply.
        observation_chars: Maximum number of characters of one observation; None for no separate limit.

    Raises:
        UnknownNameError: The policy does not exist.
        ArgumentError: A limit is not positive, or the policy needs the size of the context window.
    """
    require_name("context_policy", policy, get_args(ContextPolicy))
    if policy == "stop":
        return ContextWindow(context_tokens, reply_tokens, observation_chars)
    if context_tokens is None:
        raise ArgumentError("context_policy='drop' needs the size of the model's context window: set context_tokens")
    return DroppingWindow(context_tokens, reply_tokens, observation_chars)


class DroppingWindow(ContextWindow):
    """A context window that drops the oldest contents when the next result does not fit.

    The opening, the latest reply and its results stay. Of what they leave, older messages fill at most half after
    contents were dropped, so that earlier messages change, and the provider's cache becomes invalid, only rarely.
    Dropped are, oldest first and in this order: the results except the latest, the long replies except the latest, the
    latest results. Complete exchanges are removed only if what remains of older messages fills more than that half.
    """

    remedy = ""

    def __init__(self, context_tokens: int, reply_tokens: int | None, observation_chars: int | None) -> None:
        super().__init__(context_tokens, reply_tokens, observation_chars)
        self._size = max(0, context_tokens - self._reply)
        self._scale = 1.0
        self._tokens: list[int] = []
        self._opening = 0
        self._removed = 0
        self._shortened: set[int] = set()
        self._dropped = Dropped()

    @override
    def add_opening(self, messages: Iterable[Message]) -> None:
        super().add_opening(messages)
        self._opening = len(self.messages)

    @override
    def add_reply(self, usage: Usage | None, message: Message) -> None:
        estimated = max(1, sum(self._tokens))
        super().add_reply(None, message)
        if usage is not None and usage.prompt:
            # If the estimates are too low, the window counts as smaller. Later requests do not contain reasoning.
            # Some servers do not report the tokens of the reply.
            self._scale = max(1.0, usage.prompt / estimated)
            self._used = min(usage.prompt, estimated) + min(usage.completion or self._tokens[-1], self._tokens[-1])

    @override
    def fit(self, observation: str, advice: str = LESS_FHIR, later: int = 0) -> str:
        shown = observation
        if self._observation_chars is not None:
            shown = shorten(shown, self._observation_chars, advice)
        results = later + 1  # the results of a reply with several calls share the window
        kept = self._kept()
        free = int(self._size / self._scale) - kept
        needed = min(_result_tokens(shown) * results, int(free * _MAX_SHARE))
        if needed > self._left():
            self._drop_contents(kept + min(free // 2, free - needed))
            self._remove_exchanges(kept + free // 2)
        allowed = self._left() // results
        if _result_tokens(shown) > allowed:
            if allowed < MIN_OBSERVATION + _ENVELOPE:
                raise ContextWindowExceeded(
                    f"the context window is too small (context_tokens={self._context}): the prompt, the latest reply "
                    "and its results do not fit"
                )
            shown = shorten(observation, int((allowed - _result_tokens("")) * CHARS_PER_TOKEN), advice)
        return shown

    @override
    def shrink(self) -> bool:
        kept, before = self._kept(), self._dropped
        goal = kept + max(0, self._used - kept) // 2
        self._drop_contents(goal)
        self._remove_exchanges(goal)
        return self._dropped != before

    @override
    def take_dropped(self) -> Dropped | None:
        dropped, self._dropped = self._dropped, Dropped()
        return dropped if dropped != Dropped() else None

    @override
    def _append(self, message: Message) -> None:
        super()._append(message)
        self._tokens.append(message_tokens(message))

    @override
    def _left(self) -> int:
        return int(self._size / self._scale) - self._used

    def _kept(self) -> int:
        """Return the number of tokens that are never dropped: the opening, the latest reply and its results."""
        return sum(self._tokens[: self._opening]) + sum(self._tokens[self._latest() :])

    def _latest(self) -> int:
        """Return the place of the latest reply; the end of the messages if there is no reply."""
        places = range(len(self.messages) - 1, self._opening - 1, -1)
        return next((place for place in places if self._is_reply(place)), len(self.messages))

    def _drop_contents(self, goal: int) -> None:
        """Replace old messages by their short forms until at most `goal` tokens are used."""
        for position in list(self._old_messages()):
            if self._used <= goal:
                return
            self._shorten(position)

    def _remove_exchanges(self, goal: int) -> None:
        """Remove the oldest replies and their results until at most `goal` tokens are used."""
        while self._used > goal and self._remove_exchange():
            pass

    def _old_messages(self) -> Iterator[int]:
        """Yield the places of the messages before the latest reply, in the order in which they are dropped."""
        places = range(self._opening, self._latest())
        results = [place for place in places if not self._is_reply(place)]
        replies = [place for place in places if self._is_reply(place)]
        yield from results[:-_LATEST]
        yield from replies[:-_LATEST]
        yield from results[-_LATEST:]

    def _is_reply(self, place: int) -> bool:
        return bool(self.messages[place]["role"] == "assistant")

    def _shorten(self, place: int) -> None:
        """Replace a message by its short form."""
        number = place + self._removed
        short = short_form(self.messages[place])
        if number in self._shortened or short == self.messages[place]:
            return
        self._shortened.add(number)
        self._dropped = self._dropped.model_copy(update={"contents": (*self._dropped.contents, number)})
        self.messages[place], self._tokens[place] = short, message_tokens(short)
        self._used = min(self._used, sum(self._tokens))

    def _remove_exchange(self) -> bool:
        """Remove the oldest reply and its results, and return whether there was one before the latest reply."""
        end = next((n for n in range(self._opening + 1, len(self.messages)) if self._is_reply(n)), None)
        if end is None:
            return False
        count = end - self._opening
        del self.messages[self._opening : end], self._tokens[self._opening : end]
        self._removed += count
        self._dropped = self._dropped.model_copy(update={"messages": self._dropped.messages + count})
        self._used = min(self._used, sum(self._tokens))
        return True


def _result_tokens(text: str) -> int:
    return estimate_tokens(text) + _ENVELOPE
