from __future__ import annotations

import json
from pathlib import Path

import pytest

from fhir_gym.agents import ModelReply, Opening, Usage
from fhir_gym.agents.chat_messages import Lookup, Message
from fhir_gym.rollouts import SCHEMA_VERSION, Rollout, Turn, read_rollouts


def reply(*names: str) -> ModelReply:
    calls = [{"id": f"{name}-1", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    message: Message = {"role": "assistant", "content": "", "tool_calls": calls}
    return ModelReply(kind="action", message=message, finish_reason="tool_calls", usage=Usage(prompt=10, completion=1))


def lookup(tool: str, model: ModelReply | None = None) -> Lookup:
    return Lookup(
        reply=model, source="spec", tool=tool, arguments="{}", result=f"result of {tool}", call_id=f"{tool}-1"
    )


def with_lookups(rollout: Rollout) -> Rollout:
    """A rollout whose model looks something up before and after its only action."""
    first = reply("listResources", "finish")
    turn = Turn(
        action="GET /Patient",
        observation="HTTP 200 OK",
        lookups=(lookup("listResources", first),),
        call_id="finish-1",
        tool="finish",
    )
    opening = Opening(
        protocol="tools", messages=({"role": "user", "content": "Do it."},), tools=({"type": "function"},)
    )
    last = lookup("getSearchParams", reply("getSearchParams"))
    return rollout.model_copy(
        update={"schema_version": SCHEMA_VERSION, "opening": opening, "turns": (turn,), "final_lookups": (last,)}
    )


def test_records_without_lookups_keep_their_form(gold: list[Rollout]) -> None:
    data = json.loads(gold[0].line())
    assert data["schema_version"] == 2
    assert {"lookups", "final_lookups"}.isdisjoint({*data, *data["turns"][0]})
    assert gold[0].lookups == ()


def test_lookups_are_read_back(gold: list[Rollout], tmp_path: Path) -> None:
    rollout = with_lookups(gold[0])
    path = tmp_path / "r.jsonl"
    path.write_text(rollout.line() + "\n", encoding="utf-8")
    assert list(read_rollouts(path)) == [rollout]
    assert [lookup.tool for lookup in rollout.lookups] == ["listResources", "getSearchParams"]


def test_messages_contain_lookups_in_the_order_of_the_calls(gold: list[Rollout]) -> None:
    rollout = with_lookups(gold[0])
    found = [(message["role"], message.get("tool_call_id")) for message in rollout.messages]
    assert found == [
        ("user", None),
        ("assistant", None),
        ("tool", "listResources-1"),
        ("tool", "finish-1"),
        ("assistant", None),  # the result of its call is left out, because the model did not read it
    ]
    assert len(rollout.replies) == 2
    assert list(rollout.requests()) == [rollout.messages[:1], rollout.messages[:4]]
    assert list(rollout.model_copy(update={"opening": None}).requests()) == []


@pytest.mark.parametrize("version", [1, 2])
def test_earlier_versions_are_read(gold: list[Rollout], tmp_path: Path, version: int) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(
        gold[0].line().replace('"schema_version":2', f'"schema_version":{version}') + "\n", encoding="utf-8"
    )
    (rollout,) = read_rollouts(path)
    assert rollout.turns == gold[0].turns and rollout.lookups == ()
