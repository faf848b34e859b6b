"""Texts that try to stall a parser: repeated or unclosed delimiters and long runs of spaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from benchmarks._hostile import FRAMES, PATTERNS, repeated
from fhir_gym.actions import GRAMMAR, MAX_ACTION_LENGTH, Invalid, parse
from fhir_gym.agents.chat_messages import Completion
from fhir_gym.agents.completions import parse_completion
from fhir_gym.agents.local import _split_calls
from fhir_gym.fhir import definitions
from fhir_gym.fhir.index import values
from fhir_gym.fhir.search import query as search_query
from fhir_gym.observations import read_response
from fhir_gym.tasks.grading.answers import (
    CountAnswer,
    CountedIdsAnswer,
    IdAnswer,
    IdSetAnswer,
    answer_flag,
    answer_id,
    answer_number,
)
from fhir_gym.tasks.grading.comparison import parse_reference, plain, same_moment, same_telephone
from fhir_gym.tasks.grading.unrequested_content import negates
from fhir_gym.tasks.packs.medagentbench import wording
from fhir_gym.tasks.packs.medagentbench.official.conversation import OfficialConversation
from tests.linear import is_linear


def each_frame(work: Callable[[str], object]) -> Callable[[str], object]:
    """Return a function that runs `work` on a text inside each of several frames."""

    def framed(text: str) -> None:
        for before, behind in FRAMES:
            work(f"{before}{text}{behind}")

    return framed


@pytest.mark.parametrize("pattern", PATTERNS, ids=ascii)
def test_actions_are_read_in_linear_time(pattern: str) -> None:
    assert is_linear(each_frame(parse), partial(repeated, pattern))


def _replies(text: str) -> None:
    call = {"function": {"name": "finish", "arguments": text}}
    named = {"function": {"name": text, "arguments": "{}"}}
    parse_completion(Completion(content=text), "text")
    parse_completion(Completion(content=text, tool_calls=(call, named)), "tools")
    _split_calls(text)
    _split_calls(f"<tool_call>{text}")
    read_response(f"HTTP 200 OK\n{text}")
    GRAMMAR.from_tool_call("finish", {"answer": text})
    GRAMMAR.from_tool_call("createResource", {"resourceType": "Patient", "body_json": text, "ifNoneExist": text})
    GRAMMAR.from_tool_call("searchResources", {"resourceType": "Patient", "params_json": {text: text}})


@pytest.mark.parametrize("pattern", PATTERNS, ids=ascii)
def test_replies_of_a_model_are_read_in_linear_time(pattern: str) -> None:
    assert is_linear(_replies, partial(repeated, pattern))


def _grading(text: str) -> None:
    answer_id(text, "Patient"), answer_number(text), answer_flag(text)
    parse_reference(text, "http://localhost:8080/fhir")
    plain(text), same_telephone(text, "5551234567"), same_moment(text, "2023-11-13T10:15:00Z")
    negates(text)
    for figure in (wording._CONCENTRATION, wording._RATE, wording._AMOUNT, wording._SPAN, wording._ONCE):
        figure.findall(text)
    turn = OfficialConversation().take(text)
    assert turn.answer is None or turn.ends


@pytest.mark.parametrize("pattern", PATTERNS, ids=ascii)
def test_answers_are_graded_in_linear_time(pattern: str) -> None:
    assert is_linear(_grading, partial(repeated, pattern))


@pytest.mark.parametrize(
    "form", [IdAnswer(("Patient",)), IdSetAnswer("Patient"), CountAnswer(), CountedIdsAnswer("Patient")], ids=repr
)
def test_long_answers_are_read_in_linear_time(form: IdAnswer | IdSetAnswer | CountAnswer | CountedIdsAnswer) -> None:
    def judge(text: str) -> None:
        form.problem([*range(len(text))], "http://localhost:8080/fhir")

    assert is_linear(judge, partial(repeated, "x"))


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":[', "[[],"])
@pytest.mark.parametrize("start", ["FINISH(", "POST /Patient\n", "PATCH /Patient/1\n"])
def test_endless_nesting_is_refused(start: str, opening: str) -> None:
    for text in (opening * 40_000, opening * 1_000, "[" * 100_000 + "]" * 100_000):
        closed = f"{start}{text}{')' if start == 'FINISH(' else ''}"
        assert isinstance(parse(closed), Invalid)
        assert len(parse(closed).text()) < 1_000


@pytest.mark.parametrize("depth", [66, 1_000, 1_100, 100_000])
def test_a_tool_call_nested_too_deeply_is_refused(depth: int) -> None:
    nested = "[" * depth + "1" + "]" * depth
    object = '{"a":' * depth + "1" + "}" * depth
    for call in (("finish", f'{{"answer": {nested}}}'), ("finish", {"answer": nested}), ("finish", nested)):
        assert isinstance(GRAMMAR.from_tool_call(*call), Invalid)
    for name in ("createResource", "updateResource"):
        arguments = {"resourceType": "Patient", "resourceId": "1", "body_json": object}
        assert isinstance(GRAMMAR.from_tool_call(name, arguments), Invalid)


def test_an_action_as_long_as_allowed_is_read() -> None:
    body = '{"resourceType":"Basic","id":"' + "a" * (MAX_ACTION_LENGTH - 44) + '"}'
    assert not isinstance(parse(f"POST /Basic\n{body}"), Invalid)
    assert isinstance(parse(f"POST /Basic\n{body}{' ' * 20}"), Invalid)


@pytest.mark.parametrize("text", ["GET /Patient\n" + "Prefer: x\n" * 33, "GET /Patient\n" + "Accept:\n" * 20_000])
def test_the_number_of_header_lines_is_limited(text: str) -> None:
    invalid = parse(text)
    assert isinstance(invalid, Invalid)
    assert "header lines" in invalid.reason


@pytest.mark.parametrize(
    ("remember", "remembered"),
    [
        (values.normalise, values._normalised),
        (values.relative_reference, values._parts),
        (partial(values.compartment_key, "Patient"), values._compartment_key),
        (values.interval, values._interval),
        (search_query.parse_name, search_query._parsed),
        (definitions.value_set, definitions._listed),
    ],
)
def test_long_texts_are_not_cached(remember: Callable[[str], object], remembered: Any) -> None:
    """Caches must not keep long texts of agents, because many such texts could need gigabytes."""
    remembered.cache_clear()
    for n in range(3):
        remember(f"{n}{'x' * 1_000}")
    assert remembered.cache_info().currsize == 0
