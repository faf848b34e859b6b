"""Prepare an episode's turns for its page (request, answer, model text, writes), and the checks of its verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import zip_longest
from urllib.parse import unquote

from fhir_gym.actions import GRAMMAR, Action
from fhir_gym.agents.chat_messages import Lookup, Message, ModelReply
from fhir_gym.fhir import Response
from fhir_gym.observations import read_response
from fhir_gym.rollouts import Rollout, Turn
from fhir_gym.rollouts.timeline import base_url_of
from fhir_gym.tasks import Check
from fhir_gym.types import Json, as_list, as_object
from fhir_gym.web.element_text import shortened
from fhir_gym.web.episode_replay import EpisodeTrace, TurnTrace
from fhir_gym.web.resource_view import MAX_TEXT, ResourceView, ViewLimits, view_text

TURNS_OF_A_PART = 200
"""Number of turns on a page; a longer episode has several parts."""
_MAX_TITLE = 300
_PAGE_CHARACTERS, _PAGE_TREES = 2_000_000, 400
"""Number of characters of JSON and of entries as trees that all answers of an episode may have together."""
_OPEN_ROWS = 12
"""Maximum number of table rows of an answer that is shown unfolded."""
"""How observations of invalid actions begin, and some recorded reasons."""


@dataclass(frozen=True, slots=True)
class LongText:
    """A text that a page shows completely, or up to a limit.

    Attributes:
        text: The shown text.
        left_out: Number of characters that are not shown.
    """

    text: str
    left_out: int = 0

    @classmethod
    def of(cls, text: str) -> LongText:
        """Return a text up to the limit."""
        return cls(text[:MAX_TEXT], max(0, len(text) - MAX_TEXT))


@dataclass(frozen=True, slots=True)
class ReplyView:
    """What a model replied.

    Attributes:
        content: The text; None for a reply without text.
        calls: Name and arguments of each tool call.
        reasoning: Its reasoning; None without one.
        raw: The original content as JSON, if it differs from `content`.
    """

    reply: ModelReply
    content: LongText | None
    calls: tuple[tuple[str, LongText], ...]
    reasoning: LongText | None
    raw: LongText | None


@dataclass(frozen=True, slots=True)
class LookupView:
    """A call to a tool source, such as the FHIR specification."""

    lookup: Lookup
    reply: ReplyView | None
    arguments: ResourceView
    result: ResourceView


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn.

    Attributes:
        number: Its number, from 1.
        method: The method, or ``FINISH``; empty for a text that is not an action.
        title: The decoded URL, the answer or the beginning of the text.
        url: The URL as sent, if the title shows it decoded or shortened.
        headers: The request's headers.
        status: Status code and phrase of the response; empty without one.
        problem: Why the action was invalid; empty for a valid action.
        failed: Whether the action was invalid or the server refused the request.
        body: The request's body; None without one.
        shows_body: Whether the body is shown unfolded, because the turn does not show the changed elements.
        answer: The response's body, or an observation that is not a response; None for an empty body.
        location: The Location header of an answer without body.
        is_open: Whether the answer is shown unfolded.
        notes: Further data from the agent as JSON; None without data.
        sent: The agent's original text, if it is not just the action.
        shown: What the model read, if the observation was shortened for it.
        reply: The model's reply that contains the action; None without one.
        seconds: Seconds of the agent and of the server; None if they were not recorded.
        raw: The action and the observation as recorded.
        lookups: The calls to tool sources before the action.
        turn: The turn of the record.
        trace: What the turn did on the server.
    """

    number: int
    method: str
    title: str
    url: str
    headers: tuple[tuple[str, str], ...]
    status: str
    problem: str
    failed: bool
    body: ResourceView | None
    shows_body: bool
    answer: ResourceView | None
    location: str
    is_open: bool
    notes: LongText | None
    sent: LongText | None
    shown: LongText | None
    reply: ReplyView | None
    seconds: tuple[float, float] | None
    raw: tuple[LongText, LongText]
    lookups: tuple[LookupView, ...]
    turn: Turn
    trace: TurnTrace


def part_of(turn: int) -> int:
    """Return the number of the part, from 1, that shows a turn."""
    return (turn - 1) // TURNS_OF_A_PART + 1


def turn_views(rollout: Rollout, trace: EpisodeTrace, part: int = 1) -> list[TurnView]:
    """Return the turns of one part of an episode."""
    base_url = base_url_of(rollout)
    shown = slice((part - 1) * TURNS_OF_A_PART, part * TURNS_OF_A_PART)
    number = len(rollout.turns[shown]) or 1
    limits = ViewLimits(min(20, _PAGE_TREES // number), min(MAX_TEXT, _PAGE_CHARACTERS // number))
    times = rollout.timings.turns[shown] if rollout.timings else ()
    rows = zip_longest(rollout.turns[shown], trace.turns[shown], times[:number])
    return [
        _turn_view(number, turn, traced, seconds, base_url, limits)
        for number, (turn, traced, seconds) in enumerate(rows, start=shown.start + 1)
    ]


def lookup_views(lookups: Sequence[Lookup], base_url: str) -> tuple[LookupView, ...]:
    """Return calls to tool sources."""
    return tuple(
        LookupView(
            lookup,
            None if lookup.reply is None else _reply_view(lookup.reply),
            view_text(lookup.arguments, base_url),
            view_text(lookup.result, base_url),
        )
        for lookup in lookups
    )


def message_text(message: Message) -> LongText:
    """Return the content of a chat message, whatever form the provider gives it."""
    content = message.get("content")
    return LongText.of(content if isinstance(content, str) else _json_text(content))


def _turn_view(
    number: int, turn: Turn, trace: TurnTrace, seconds: tuple[float, float] | None, base_url: str, limits: ViewLimits
) -> TurnView:
    action = _action_of(turn, trace)
    response = _response_of(turn, trace)
    body = response.text if response else turn.observation
    answer = view_text(body, base_url, limits) if body and (response or turn.error is None) else None
    method, url, title = _titles(action, turn, base_url)
    written = action.text() if action else ""
    sent = turn.text if turn.text is not None else turn.action
    reply = None if turn.reply is None else _reply_view(turn.reply)
    return TurnView(
        number=number,
        method=method,
        title=title,
        url=url,
        headers=action.headers if action else (),
        status=_status_text(turn.status),
        problem="" if turn.error is None else turn.error or "no reason is recorded",
        failed=turn.error is not None or turn.status >= 400,
        body=view_text(action.body, base_url, limits) if action and action.body else None,
        shows_body=not any(write.differences for write in trace.writes),
        answer=None if method == "FINISH" else answer,
        location=response.headers.get("Location", "") if response else "",
        is_open=answer is not None and _is_short(answer),
        notes=LongText.of(_json_text(turn.notes)) if turn.notes else None,
        sent=LongText.of(sent) if sent not in ("", written, title) and turn.reply is None else None,
        shown=None if turn.shown is None else LongText.of(turn.shown),
        reply=reply,
        seconds=seconds,
        raw=(LongText.of(turn.action), LongText.of(turn.observation)),
        lookups=lookup_views(turn.lookups, base_url),
        turn=turn,
        trace=trace,
    )


def _action_of(turn: Turn, trace: TurnTrace) -> Action | None:
    if trace.replayed is not None and trace.replayed.request is not None:
        return trace.replayed.request.action
    parsed = GRAMMAR.parse(turn.action)
    return parsed if isinstance(parsed, Action) and turn.error is None else None


def _response_of(turn: Turn, trace: TurnTrace) -> Response | None:
    """Return the response, which some task protocols hide in a sentence of the observation."""
    if trace.replayed is not None and trace.replayed.request is not None and not trace.differs:
        return trace.replayed.request.response
    return read_response(turn.observation)


def _titles(action: Action | None, turn: Turn, base_url: str) -> tuple[str, str, str]:
    """Return method, URL as sent (if not in the title) and title of a turn."""
    if action is None:
        text = " ".join((turn.action or turn.text or "").split())
        return "", "", shortened(text, _MAX_TITLE) or "no text"
    if action.kind == "FINISH":
        return "FINISH", "", shortened(_json_text(action.answer or []), _MAX_TITLE)
    url = action.url.removeprefix(base_url)
    title = shortened(unquote(url.replace("+", " ") if "?" in url else url), _MAX_TITLE)
    return action.kind, action.url if title != action.url else "", title


def _status_text(status: int) -> str:
    if not status:
        return ""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _is_short(answer: ResourceView) -> bool:
    return answer.kind == "outcome" or (answer.kind == "bundle" and answer.rows <= _OPEN_ROWS)


def _reply_view(reply: ModelReply) -> ReplyView:
    content = reply.message.get("content")
    return ReplyView(
        reply,
        message_text(reply.message) if content else None,
        tuple(map(_call, as_list(reply.message.get("tool_calls")))),
        None if reply.reasoning is None else LongText.of(reply.reasoning),
        None if reply.raw is None else LongText.of(reply.raw if isinstance(reply.raw, str) else _json_text(reply.raw)),
    )


def _call(call: Json) -> tuple[str, LongText]:
    function = as_object(call).get("function")
    if not isinstance(function, dict):
        return "unreadable call", LongText.of(_json_text(call))
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else _json_text(arguments)
    return shortened(str(function.get("name")), 100), LongText.of(text)


def _json_text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


_MAX_TEXT = 4_000
_MAX_LINE = 200


@dataclass(frozen=True, slots=True)
class CheckView:
    """One check.

    Attributes:
        expected: The expected value as text; empty for none.
        actual: The found value as text; empty for none.
        turns: Numbers of the turns that the check is about.
        is_idle: Whether an agent passes the check by doing nothing.
    """

    check: Check
    expected: str
    actual: str
    turns: tuple[int, ...] = ()
    is_idle: bool = False


def check_views(rollout: Rollout, trace: EpisodeTrace) -> list[CheckView]:
    """Return the checks of an episode: failed checks first."""
    if rollout.verdict is None:
        return []
    idle = set(rollout.verdict.idle)
    views = [
        CheckView(
            check,
            value_text(check.expected),
            value_text(check.actual),
            tuple(trace.turns_behind(check)),
            check.name in idle,
        )
        for check in rollout.verdict.checks
    ]
    return sorted(views, key=lambda view: view.check.passed)


def step_views(rollout: Rollout) -> list[CheckView]:
    """Return the steps of a verdict's diagnosis, in order."""
    diagnosis = rollout.verdict.diagnosis if rollout.verdict else None
    steps = diagnosis.steps if diagnosis else ()
    return [CheckView(step, value_text(step.expected), value_text(step.actual)) for step in steps]


def value_text(value: Json) -> str:
    """Return the value of a check as text: texts without quotation marks, other values as JSON."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > _MAX_LINE and not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False, indent=1)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
