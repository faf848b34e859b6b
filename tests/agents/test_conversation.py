from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.actions import Action, Invalid
from fhir_gym.agents import (
    Completion,
    ContextWindow,
    ContextWindowExceeded,
    Conversation,
    EpisodeContext,
    Message,
    Opening,
    Reply,
    Usage,
)
from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.agents.completions import LookupCall, parse_completion
from fhir_gym.agents.context_window import shorten
from fhir_gym.agents.conversation import make_opening
from fhir_gym.agents.provider import read_completion
from fhir_gym.fhir import World

BUNDLE = json.dumps(
    {
        "resourceType": "Bundle",
        "link": [{"relation": "next", "url": "http://localhost/next"}],
        "entry": [{"fullUrl": f"http://localhost/Patient/{n}", "resource": {"id": str(n)}} for n in range(100)],
    },
    separators=(",", ":"),
)


def call(name: str, arguments: Any, id: str | None = "c1") -> Message:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def only(replies: list[Reply]) -> Reply:
    assert len(replies) == 1
    return replies[0]


def parse(completion: Completion, protocol: ChatProtocol, number: int = 0) -> list[Reply]:
    parts = parse_completion(completion, protocol, number)
    assert all(isinstance(part, Reply) for part in parts)
    return [part for part in parts if isinstance(part, Reply)]


def kind(reply: Reply) -> str:
    assert reply.model is not None
    return reply.model.kind


def test_text_is_the_action_itself() -> None:
    reply = only(parse(Completion(content="GET /Patient"), "text"))
    assert (reply.action, reply.text, kind(reply)) == ("GET /Patient", None, "action")
    assert reply.model and reply.model.message == {"role": "assistant", "content": "GET /Patient"}


@pytest.mark.parametrize(
    ("content", "thought"),
    [
        ("<think>\nFirst look.</think>\n\nGET /Patient", "\nFirst look."),
        ("First look.</think>GET /Patient", "First look."),  # the template contains the opening tag
    ],
)
def test_thoughts_in_the_text_are_split_off(content: str, thought: str) -> None:
    reply = only(parse(Completion(content=content), "text"))
    assert reply.action == "GET /Patient"
    assert reply.model and (reply.model.reasoning, reply.model.raw) == (thought, content)
    assert reply.model.message["content"] == "GET /Patient"


def test_an_unfinished_thought_is_not_an_action() -> None:
    reply = only(parse(Completion(content="<think>GET /Patient", finish_reason="length"), "text"))
    assert kind(reply) == "length" and isinstance(reply.action, Invalid)
    assert reply.model and reply.model.reasoning == "GET /Patient"


@pytest.mark.parametrize("protocol", ["text", "tools"])
@pytest.mark.parametrize(
    ("completion", "expected", "reason"),
    [
        (Completion(content=None), "empty", "empty"),
        (Completion(content="  \n"), "empty", "empty"),
        (Completion(content="GET /Patient?nam", finish_reason="length"), "length", "cut off"),
        (Completion(refusal="I can't help with that."), "refusal", "refused"),
        (Completion(content=None, finish_reason="content_filter"), "filtered", "withheld"),
    ],
)
def test_replies_without_an_action_have_their_own_kind(
    completion: Completion, protocol: Any, expected: str, reason: str
) -> None:
    reply = only(parse(completion, protocol))
    assert kind(reply) == expected
    assert isinstance(reply.action, Invalid) and reason in reply.action.reason
    assert reply.model and reply.model.message["content"]  # servers refuse empty messages


def test_text_instead_of_a_tool_call() -> None:
    reply = only(parse(Completion(content="FINISH([])"), "tools"))
    assert kind(reply) == "no_call" and reply.text == "FINISH([])"
    assert isinstance(reply.action, Invalid) and "call finish" in reply.action.reason


def test_several_calls_are_several_actions_in_order() -> None:
    calls = (
        call("searchResources", '{"resourceType": "Patient"}'),
        call("deleteEverything", "{}", "c2"),
        call("finish", {"answer": [1]}, None),
    )
    replies = parse(Completion(tool_calls=calls, finish_reason="tool_calls"), "tools", 7)
    assert [reply.tool for reply in replies] == ["searchResources", "deleteEverything", "finish"]
    assert [reply.call_id for reply in replies] == ["c1", "c2", "call_7_2"]
    first, second, third = (reply.action for reply in replies)
    assert isinstance(first, Action) and first.url == "/Patient"
    assert isinstance(second, Invalid) and "no tool 'deleteEverything'" in second.reason
    assert replies[1].text == "deleteEverything({})"
    assert isinstance(third, Action) and third.answer == [1]
    assert replies[0].model is not None and replies[1].model is None
    sent = replies[0].model.message["tool_calls"]
    assert [tool_call["id"] for tool_call in sent] == ["c1", "c2", "call_7_2"]
    assert sent[2]["function"]["arguments"] == '{"answer": [1]}'


@pytest.mark.parametrize("arguments", ["{", '["a"]', "null", "nonsense", '{"resourceType": "Patient",}', 7])
def test_malformed_arguments_are_recorded_and_sent_back_as_valid_json(arguments: Any) -> None:
    given = call("getResourceById", arguments)
    reply = only(parse(Completion(tool_calls=(given,)), "tools"))
    assert isinstance(reply.action, Invalid)
    assert reply.text is not None and str(arguments).strip('"') in reply.text
    assert reply.model is not None and reply.model.raw == [given]
    sent = json.loads(reply.model.message["tool_calls"][0]["function"]["arguments"])
    assert list(sent) == ["unreadable"]


def test_a_truncated_call_is_explained() -> None:
    cut = Completion(tool_calls=(call("finish", '{"answer": [1'),), finish_reason="length")
    reply = only(parse(cut, "tools"))
    assert isinstance(reply.action, Invalid) and reply.action.reason.startswith("your answer was cut off")


@pytest.mark.parametrize(
    "odd", [{}, {"type": "custom", "custom": {"name": "x"}}, {"function": None}, {"function": {"name": None}}]
)
def test_odd_calls_are_invalid_and_can_be_sent_back(odd: dict[str, Any]) -> None:
    reply = only(parse(Completion(tool_calls=(odd,)), "tools"))
    assert isinstance(reply.action, Invalid)
    assert reply.model and set(reply.model.message["tool_calls"][0]) == {"id", "type", "function"}


def test_calls_in_the_text_protocol_are_ignored() -> None:
    reply = only(parse(Completion(content="GET /Patient", tool_calls=(call("finish", "{}"),)), "text"))
    assert reply.action == "GET /Patient"
    assert reply.model and "tool_calls" not in reply.model.message and reply.model.raw == [call("finish", "{}")]


def test_lookups_and_actions_keep_the_order_of_the_calls() -> None:
    calls = tuple(call(name, "{}", name) for name in ("look", "getResourceById", "look", "lok"))
    parts = parse_completion(Completion(tool_calls=calls, retries=2), "tools", lookup_tools=("look",))
    assert [(type(part), part.call_id) for part in parts] == [
        (LookupCall, "look"),
        (Reply, "getResourceById"),
        (LookupCall, "look"),
        (Reply, "lok"),
    ]
    assert [part.model is not None for part in parts] == [True, False, False, False]
    assert [part.retries for part in parts] == [2, 0, 0, 0]
    beside_text = parse_completion(Completion(content="GET /Patient", tool_calls=calls), "text", 0, ("look",))
    assert all(isinstance(part, LookupCall) for part in beside_text) and len(beside_text) == 4


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "content": st.text(max_size=40) | json_values,
        "tool_calls": st.lists(
            st.fixed_dictionaries({}, optional={"id": json_values, "type": json_values, "function": json_values}),
            max_size=3,
        )
        | json_values,
        "refusal": json_values,
        "reasoning_content": json_values,
        "more": json_values,
    },
)


@given(
    message=messages,
    protocol=st.sampled_from(["text", "tools"]),
    finish=st.sampled_from(["stop", "length", "tool_calls", "content_filter", None]),
    lookup_tools=st.sampled_from([(), ("look",)]),
)
def test_no_completion_raises(
    message: dict[str, Any], protocol: Any, finish: str | None, lookup_tools: tuple[str, ...]
) -> None:
    body = json.dumps({"choices": [{"message": message, "finish_reason": finish}], "usage": message.get("more")})
    replies = parse_completion(read_completion(body.encode()), protocol, lookup_tools=lookup_tools)
    assert replies and replies[0].model is not None
    assert all(isinstance(r, LookupCall) or isinstance(r.action, str | Action | Invalid) for r in replies)
    assert lookup_tools or not any(isinstance(reply, LookupCall) for reply in replies)
    json.dumps(replies[0].model.model_dump(mode="json"), ensure_ascii=False).encode()
    for sent in replies[0].model.message.get("tool_calls", []):
        assert isinstance(json.loads(sent["function"]["arguments"]), dict)


def test_all_parts_of_a_completion_are_read() -> None:
    body = {
        "model": "m-1",
        "system_fingerprint": "fp",
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        "prompt_token_ids": [1, 2],
        "choices": [
            {
                "finish_reason": "stop",
                "token_ids": [3],
                "logprobs": {"content": []},
                "message": {
                    "content": [{"type": "text", "text": "GET /"}, {"type": "text", "text": "Patient \ud800"}],
                    "reasoning": "hm",
                },
            }
        ],
    }
    completion = read_completion(json.dumps(body).encode())
    assert completion == Completion(
        content="GET /Patient ?",
        reasoning="hm",
        usage=Usage(prompt=10, completion=5, cached=8, reasoning=3),
        model="m-1",
        fingerprint="fp",
        extra={"token_ids": [3], "logprobs": {"content": []}, "prompt_token_ids": [1, 2]},
    )


class Model:
    """A model that gives fixed replies in order and records the messages."""

    def __init__(self, *answers: Completion) -> None:
        self.answers = list(answers)
        self.asked: list[list[Message]] = []

    async def __call__(self, messages: Sequence[Message], opening: Opening) -> Completion:
        self.asked.append([dict(message) for message in messages])
        return self.answers.pop(0)


def context(world: World, steps: int = 15) -> EpisodeContext:
    return EpisodeContext("e", "01", 0, world, 1, steps, "Do it.")


def test_a_conversation_only_grows_and_has_a_result_for_every_call(empty_world: World) -> None:
    two = Completion(tool_calls=(call("getResourceById", "{}", "a"), call("searchResources", "{}", "b")))
    model = Model(two, Completion(content="?"), Completion(tool_calls=(call("finish", '{"answer": []}', "c"),)))
    start = make_opening("tools", "unused", context(empty_world))
    assert start.messages[1]["content"] == "Do it.\n\nYou have at most 15 tool calls."

    async def play() -> list[Reply]:
        conversation = Conversation(start, model, ContextWindow(None, None, None))
        return [await conversation.act(text) for text in ("unused", "one", "two", "three")]

    replies = asyncio.run(play())
    assert [reply.call_id for reply in replies] == ["a", "b", None, "c"]
    assert all(reply.shown is None for reply in replies)
    first, second, third = model.asked
    assert second[: len(first)] == first and third[: len(second)] == second
    assert second[3:] == [
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "tool", "tool_call_id": "b", "content": "two"},
    ]
    assert third[-1] == {"role": "user", "content": "three"}


@pytest.mark.parametrize(
    ("system", "roles"), [(None, ["system", "user"]), ("", ["user"]), ("Be brief.", ["system", "user"])]
)
def test_the_system_prompt_may_be_replaced_or_left_out(
    empty_world: World, system: str | None, roles: list[str]
) -> None:
    start = make_opening("text", "Do it. GET or FINISH.", context(empty_world), system=system)
    assert [message["role"] for message in start.messages] == roles
    assert start.messages[-1]["content"] == "Do it. GET or FINISH."


def test_long_observations_are_shortened_with_a_note(empty_world: World) -> None:
    model = Model(Completion(content="GET /Patient"), Completion(content="FINISH([])"))

    async def play() -> Reply:
        conversation = Conversation(
            make_opening("text", "Do.", context(empty_world)), model, ContextWindow(None, None, 2_000)
        )
        await conversation.act("Do.")
        return await conversation.act(BUNDLE)

    reply = asyncio.run(play())
    assert reply.shown is not None and len(reply.shown) <= 2_000
    assert model.asked[1][-1]["content"] == reply.shown
    kept, note = reply.shown.split("\n[Shortened: ")
    entries = kept.count('"fullUrl"')
    assert note.startswith(f"{entries} of 100 entries of this page are shown, ")
    assert kept.endswith("}}") and "/next" in kept  # complete entries, and the link to the next page
    assert f"_count={entries} " in note and "_elements=" in note and "next link" in note


def test_a_long_resource_is_shortened_with_another_hint() -> None:
    text = "HTTP 200 OK\n" + json.dumps({"resourceType": "Patient", "text": "x" * 5_000})
    short = shorten(text, 1_000)
    assert len(short) <= 1_000 and text.startswith(short.partition("\n[Shortened")[0])
    assert "_elements=" in short and "entries" not in short
    assert shorten(text, len(text)) == text


def test_a_long_compact_observation_is_shortened_to_complete_lines() -> None:
    lines = [json.dumps({"resourceType": "Patient", "id": str(number)}, separators=(",", ":")) for number in range(99)]
    text = "\n".join(['200 {"total":99}', *lines])
    kept, note = shorten(text, 1_000).split("\n[Shortened: ")
    shown = kept.split("\n")[1:]
    assert shown == lines[: len(shown)] and note.startswith(f"{len(shown)} of 99 entries of this page are shown, ")


@given(st.text(max_size=3_000), st.integers(0, 3_000))
def test_shortened_texts_are_about_as_long_as_requested(text: str, most: int) -> None:
    short = shorten(text, most)
    assert short == text or (len(short) <= max(most, 400) and "[Shortened: " in short)


def test_window_uses_the_providers_count_and_keeps_a_reserve() -> None:
    window = ContextWindow(4_000, 500, None)
    window.add_opening([{"role": "user", "content": "x" * 1_000}])
    window.add_reply(Usage(prompt=900, completion=100), {})
    shown = window.fit("y" * 100_000)  # 2,500 tokens remain
    assert 0.8 * 1_250 * 2.5 < len(shown) < 1_250 * 2.5 + 50
    assert window.fit("short") == "short"


def test_a_full_window_raises() -> None:
    with pytest.raises(ContextWindowExceeded):
        ContextWindow(1_000, 500, None).add_opening([{"role": "user", "content": "x" * 5_000}])
    window = ContextWindow(2_000, 500, None)
    window.add_opening([])
    window.add_reply(Usage(prompt=1_300, completion=100), {})
    assert window.fit("ok") == "ok"
    with pytest.raises(ContextWindowExceeded):
        window.fit("y" * 10_000)
    without_count = ContextWindow(10_000, 500, None)
    without_count.add_opening([])
    without_count.add_reply(None, {"content": "z" * 20_000})
    assert len(without_count.fit("y" * 10_000)) < 5_000
