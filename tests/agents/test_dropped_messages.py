from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fhir_gym.agents.chat_messages import Message, result_message
from fhir_gym.agents.dropping_window import short_form

TASK = {"resourceType": "Task", "id": "TAS12", "description": "x" * 900}
FOUND = {"resourceType": "Bundle", "type": "searchset", "entry": [{"resource": TASK}] * 7}
WRITTEN = {
    "resourceType": "Bundle",
    "type": "transaction-response",
    "entry": [
        {"response": {"status": "201", "location": "http://localhost/fhir/Appointment/a1/_history/1"}},
        {"response": {"status": "200", "location": "Slot/s2/_history/3", "outcome": {"text": "x" * 300}}},
    ],
}


@pytest.mark.parametrize(
    ("content", "short"),
    [
        (f"HTTP 201 Created (10:16:20)\n{json.dumps(TASK)}", "HTTP 201 Created (10:16:20), Task/TAS12"),
        (f"HTTP 200 OK\n{json.dumps(FOUND)}", "HTTP 200 OK, 7 entries"),
        (f"HTTP 200 OK\n{json.dumps(WRITTEN)}", "HTTP 200 OK, Appointment/a1, Slot/s2"),
        (f"HTTP 201 Created\nLocation: https://{'x' * 99}/Task/t1/_history/1", "HTTP 201 Created, Task/t1"),
        ("HTTP 200 OK\n" + '{"resourceType": "Pat' + "x" * 500, "HTTP 200 OK"),
        ("Patient has these elements: " + "x" * 500, ""),
        ("HTTP 200 OK\n" + "[" * 9_999, "HTTP 200 OK"),
        ("HTTP 200 OK\n" + json.dumps({"entry": [7, {"response": {"location": 5}}] * 99}), None),
        ("HTTP 200 OK\n" + json.dumps({"resourceType": [], "id": {}, "entry": "x" * 300}), None),
    ],
)
def test_results_become_one_line(content: str, short: str | None) -> None:
    form = short_form(result_message(content, "call_7"))
    assert (form["role"], form["tool_call_id"]) == ("tool", "call_7")
    text = str(form["content"])
    assert text.startswith("[Dropped: ") and text.endswith(" characters. Read it again if you need it.]")
    assert "\n" not in text and len(text) < 200
    if short is not None:
        about = f"{short}, {len(content):,} characters" if short else f"{len(content):,} characters"
        assert text == f"[Dropped: {about}. Read it again if you need it.]"


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ('PUT /Task/TAS12\nIf-Match: W/"1"\n' + json.dumps(TASK), "PUT /Task/TAS12"),
        ("```\nPOST /Task\n" + json.dumps(TASK) + "\n```", "POST /Task"),
        ("I think \x1b[2J about it.\n" + "really " * 300, "I think ?[2J about it.?really"),
    ],
)
def test_replies_keep_the_line_of_their_action(content: str, kept: str) -> None:
    form = short_form({"role": "assistant", "content": content})
    text = str(form["content"])
    assert text.startswith(kept) and text.endswith(f"\n[Dropped: the rest of {len(content):,} characters.]")
    assert len(text) < 400


def test_calls_stay_valid() -> None:
    arguments = {"odd": "\ud800é", "resourceType": "Task", "resourceId": "TAS12", "body_json": TASK, "note": "y" * 500}
    function = {"name": "updateResource", "arguments": json.dumps(arguments)}
    call: Any = {"id": "c1", "type": "function", "function": function}
    small: Any = {"id": "c2", "type": "function", "function": {"name": "finish", "arguments": '{"answer": []}'}}
    form: Any = short_form({"role": "assistant", "content": "First I think. " * 9, "tool_calls": [call, small]})
    assert form["content"] == "" and form["tool_calls"][1] == small
    assert {**form["tool_calls"][0], "function": None} == {**call, "function": None}
    kept = json.loads(form["tool_calls"][0]["function"]["arguments"])
    form["tool_calls"][0]["function"]["arguments"].encode()
    assert kept == {
        "odd": "\ud800é",
        "resourceType": "Task",
        "resourceId": "TAS12",
        "body_json": f"[Dropped: {len(json.dumps(TASK)):,} characters.]",
        "note": "[Dropped: 500 characters.]",
    }


@settings(max_examples=30)
@given(st.sampled_from(["user", "assistant"]), st.text(max_size=500))
def test_no_message_becomes_longer(role: str, text: str) -> None:
    message: Message = {"role": role, "content": text}
    form = short_form(message)
    assert form is message or len(json.dumps(form)) < len(json.dumps(message))
    assert form["role"] == role
