"""Count the tokens in a model's context window, and shorten observations so that they fit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal

from fhir_gym.agents.chat_messages import Dropped, Message, Usage, result_message
from fhir_gym.agents.protocol import ContextWindowExceeded
from fhir_gym.errors import ArgumentError

ContextPolicy = Literal["stop", "drop"]
"""What happens when a conversation does not fit: the episode ends, or the oldest contents are dropped."""

CHARS_PER_TOKEN = 2.5
"""Characters per token, for estimates.

FHIR's JSON has about 3 characters per token. With the lower number, estimates are too high rather than too low.
"""
MIN_OBSERVATION = 200
"""Minimum number of tokens of a shortened observation; a shorter observation would be useless."""
_DEFAULT_REPLY = 1_024
_ENTRY = '{"fullUrl"'
_COMPACT_ENTRY = '\n{"resourceType"'
LESS_FHIR = "request less: search with _id=... and _elements=... for the elements you need, or _summary=true"


class ContextWindow:
    """The messages of a conversation, with their number of tokens: the provider's count if available, or an estimate.

    Args:
        context_tokens: Size of the model's context window; None for no limit.
        reply_tokens: Tokens reserved for the next reply.
        observation_chars: Maximum number of characters of one observation; None for no separate limit.

    Attributes:
        messages: The messages of the next request.
        added: Number of messages that were added.
        remedy: What to do if the window is full, as the end of a message.

    Raises:
        ArgumentError: A limit is not positive.
    """

    remedy = "; with context_policy='drop' the agent drops the oldest contents and continues"

    def __init__(self, context_tokens: int | None, reply_tokens: int | None, observation_chars: int | None) -> None:
        for limit in (context_tokens, reply_tokens, observation_chars):
            if limit is not None and limit < 1:
                raise ArgumentError(f"a limit of tokens or characters must be positive, not {limit}")
        self._context = context_tokens
        self._reply = reply_tokens or _DEFAULT_REPLY
        self._observation_chars = observation_chars
        self._used = 0
        self.messages: list[Message] = []
        self.added = 0

    def add_opening(self, messages: Iterable[Message]) -> None:
        """Add the messages before the first reply.

        Raises:
            ContextWindowExceeded: The messages do not fit.
        """
        for message in messages:
            self._append(message)
        if self._left() < 0:
            raise ContextWindowExceeded(
                f"the prompt alone does not fit into the context window (context_tokens={self._context})"
            )

    def add_reply(self, usage: Usage | None, message: Message) -> None:
        """Add a reply. If the provider reports a count, it replaces the estimate."""
        self._append(message)
        if usage is not None and usage.prompt:
            self._used = usage.total

    def add_result(self, text: str, call_id: str | None, *, advice: str = LESS_FHIR, later: int = 0) -> str:
        """Add the result of an action or lookup, shortened if necessary, and return it as the model reads it.

        Args:
            text: The result.
            call_id: Id of the tool call.
            advice: What to do to read the rest; see `fit`.
            later: Number of further results that the model reads in the same request.

        Raises:
            ContextWindowExceeded: Too few tokens remain.
        """
        shown = self.fit(text, advice, later)
        self._append(result_message(shown, call_id))
        return shown

    def shrink(self) -> bool:
        """Make the next request shorter after the provider has refused it; return whether this is possible."""
        return False

    def take_dropped(self) -> Dropped | None:
        """Return what was dropped since the last call of this method; None if nothing was dropped."""
        return None

    def fit(self, observation: str, advice: str = LESS_FHIR, later: int = 0) -> str:
        """Return an observation, shortened to half of the remaining tokens if necessary, so that later ones also fit.

        Args:
            observation: The observation.
            advice: What to do to read the rest, for the note in a shortened observation without entries.
            later: Number of further results that the model reads in the same request.

        Raises:
            ContextWindowExceeded: Too few tokens remain.
        """
        shown = observation
        if self._observation_chars is not None:
            shown = shorten(shown, self._observation_chars, advice)
        if self._context is not None:
            allowed = self._left() // 2
            if allowed < MIN_OBSERVATION and estimate_tokens(shown) > allowed:
                raise ContextWindowExceeded(f"the context window is full (context_tokens={self._context}){self.remedy}")
            if estimate_tokens(shown) > allowed:
                shown = shorten(observation, int(allowed * CHARS_PER_TOKEN), advice)
        return shown

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        self.added += 1
        self._used += message_tokens(message)

    def _left(self) -> int:
        return 0 if self._context is None else self._context - self._used - self._reply


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens in a text. The estimate is usually too high, not too low."""
    return int(len(text) / CHARS_PER_TOKEN) + 8


def message_tokens(message: Message) -> int:
    """Estimate the number of tokens of a message."""
    return estimate_tokens(str(message.get("content", "")) + json.dumps({**message, "content": ""}, ensure_ascii=False))


def shorten(text: str, max_length: int, advice: str = LESS_FHIR) -> str:
    """Return about `max_length` characters of a text, and a note that says how to request the rest.

    If at least one entry of a Bundle fits, the Bundle is shortened to complete entries.

    Args:
        text: The text.
        max_length: Number of characters.
        advice: What to do to read the rest of a text without entries.
    """
    if len(text) <= max_length:
        return text
    start = _COMPACT_ENTRY if text.count(_COMPACT_ENTRY) > 1 else _ENTRY
    entries = text.count(start)
    kept = text[: max(0, max_length - 400)]  # 400 characters are for the note
    shown = kept.count(start)
    if shown > 1:
        kept = kept[: kept.rfind(start)].rstrip().rstrip(",")
        shown -= 1
    omitted = f"{len(text) - len(kept):,} of {len(text):,} characters are omitted"
    if entries:
        note = (
            f"[Shortened: {shown} of {entries} entries of this page are shown, {omitted}. To read the rest, request "
            f"less at a time: a narrower search, _count={max(1, shown)} and then the Bundle's next link, "
            "_elements=... or _summary=true for fewer elements, _summary=count for the number alone.]"
        )
    else:
        note = f"[Shortened: {omitted}. To read the rest, {advice}.]"
    return f"{kept}\n{note}"
