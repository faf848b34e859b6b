"""Count the tokens in a model's context window, and shorten observations so that they fit."""

from __future__ import annotations

import json
from collections.abc import Iterable

from fhir_gym.agents.chat_messages import Message, Usage
from fhir_gym.agents.protocol import ContextWindowExceeded
from fhir_gym.errors import FhirGymError

_CHARS_PER_TOKEN = 2.5
"""Characters per token, for estimates.

FHIR's JSON has about 3 characters per token. With the lower number, estimates are too high rather than too low.
"""
_MIN_OBSERVATION = 200
"""Minimum number of tokens of a shortened observation; a shorter observation would be useless."""
_DEFAULT_REPLY = 1_024
_ENTRY = '{"fullUrl"'
_LESS_FHIR = "request less: search with _id=... and _elements=... for the elements you need, or _summary=true"


class ContextWindow:
    """Counts the tokens of a conversation. It uses the provider's counts if available, otherwise estimates.

    Args:
        context_tokens: Size of the model's context window; None for no limit.
        reply_tokens: Tokens reserved for the next reply.
        observation_chars: Maximum number of characters of one observation; None for no separate limit.

    Raises:
        FhirGymError: A limit is not positive.
    """

    def __init__(self, context_tokens: int | None, reply_tokens: int | None, observation_chars: int | None) -> None:
        for limit in (context_tokens, reply_tokens, observation_chars):
            if limit is not None and limit < 1:
                raise FhirGymError(f"a limit of tokens or characters must be positive, not {limit}")
        self._context = context_tokens
        self._reply = reply_tokens or _DEFAULT_REPLY
        self._observation_chars = observation_chars
        self._used = 0

    def add_opening(self, messages: Iterable[Message]) -> None:
        """Count the messages before the first reply.

        Raises:
            ContextWindowExceeded: The messages do not fit.
        """
        for message in messages:
            self._used += estimate_tokens(json.dumps(message, ensure_ascii=False))
        if self._left() < 0:
            raise ContextWindowExceeded

    def add_reply(self, usage: Usage | None, message: Message) -> None:
        """Count a reply. If the provider reports a count, it replaces the estimate."""
        if usage is not None and usage.prompt:
            self._used = usage.total
        else:
            self._used += estimate_tokens(json.dumps(message, ensure_ascii=False))

    def fit(self, observation: str, advice: str = _LESS_FHIR) -> str:
        """Return an observation, shortened to half of the remaining tokens if necessary, so that later ones also fit.

        Args:
            observation: The observation.
            advice: What to do to read the rest, for the note in a shortened observation without entries.

        Raises:
            ContextWindowExceeded: Too few tokens remain.
        """
        shown = observation
        if self._observation_chars is not None:
            shown = shorten(shown, self._observation_chars, advice)
        if self._context is not None:
            allowed = self._left() // 2
            if allowed < _MIN_OBSERVATION and estimate_tokens(shown) > allowed:
                raise ContextWindowExceeded
            if estimate_tokens(shown) > allowed:
                shown = shorten(observation, int(allowed * _CHARS_PER_TOKEN), advice)
        self._used += estimate_tokens(shown)
        return shown

    def _left(self) -> int:
        return 0 if self._context is None else self._context - self._used - self._reply


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens in a text. The estimate is usually too high, not too low."""
    return int(len(text) / _CHARS_PER_TOKEN) + 8


def shorten(text: str, max_length: int, advice: str = _LESS_FHIR) -> str:
    """Return about `max_length` characters of a text, and a note that says how to request the rest.

    If at least one entry of a Bundle fits, the Bundle is shortened to complete entries.

    Args:
        text: The text.
        max_length: Number of characters.
        advice: What to do to read the rest of a text without entries.
    """
    if len(text) <= max_length:
        return text
    entries = text.count(_ENTRY)
    kept = text[: max(0, max_length - 400)]  # 400 characters are for the note
    shown = kept.count(_ENTRY)
    if shown > 1:
        kept = kept[: kept.rfind(_ENTRY)].rstrip().rstrip(",")
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
