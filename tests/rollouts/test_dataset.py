from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents.chat_messages import Lookup
from fhir_gym.errors import RecordError, UnknownNameError
from fhir_gym.rollouts import FORMATS, ExportSummary, Rollout, Selection, export, write_dataset
from fhir_gym.tasks import task_keys

EVERYTHING = Selection(success_only=False, valid_only=False, dedupe=False)


def test_messages_are_the_conversation(gold: list[Rollout]) -> None:
    rows = list(export(gold, "messages"))
    assert [row["task"] for row in rows] == list(task_keys("FHIRAgent/Appointment-v0"))
    for row, rollout in zip(rows, gold, strict=True):
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["system", *["user", "assistant"] * rollout.steps]
        said = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        assert said == [turn.action for turn in rollout.turns]
        assert row["messages"][1]["content"] == rollout.first_observation
        assert (row["reward"], row["success"], row["agent"]) == (1.0, True, "gold")


def test_tools_are_calls_with_object_arguments_and_schemas(gold: list[Rollout]) -> None:
    summary = ExportSummary()
    rows = list(export(gold, "tools", summary=summary))
    assert summary.rollouts + summary.left_out["an action without an equivalent tool call"] == len(gold)
    assert rows
    for row in rows:
        assert row["tools"] == GRAMMAR.tools()
        assert "Reply with exactly one action" not in row["messages"][1]["content"]
        calls = [m["tool_calls"][0] for m in row["messages"] if m["role"] == "assistant"]
        answers = [m for m in row["messages"] if m["role"] == "tool"]
        assert [call["id"] for call in calls[:-1]] == [answer["tool_call_id"] for answer in answers]
        assert calls[-1]["function"]["name"] == "finish"
        for call in calls:
            assert isinstance(call["function"]["arguments"], dict)
            GRAMMAR.from_tool_call(call["function"]["name"], call["function"]["arguments"])


def test_completion_has_one_row_per_turn(gold: list[Rollout]) -> None:
    rows = list(export(gold[:1], "completion"))
    assert len(rows) == gold[0].steps
    for number, row in enumerate(rows):
        assert [message["role"] for message in row["completion"]] == ["assistant"]
        assert row["completion"][0]["content"] == gold[0].turns[number].action
        assert row["prompt"][-1]["role"] == "user"
        assert len(row["prompt"]) == 2 + 2 * number


def test_rollouts_without_equivalent_tool_calls_are_left_out_and_counted(gold: list[Rollout]) -> None:
    turn = gold[0].turns[0].model_copy(update={"action": "PATCH /Patient/1\n[]"})
    patched = gold[0].model_copy(update={"turns": (turn,), "steps": 1})
    summary = ExportSummary()
    assert list(export([patched], "tools", summary=summary)) == []
    assert summary.left_out == {"an action without an equivalent tool call": 1}
    assert len(list(export([patched], "messages"))) == 1


def test_selection(gold: list[Rollout], mixed: list[Rollout]) -> None:
    both = [*gold, *gold, *mixed]
    summary = ExportSummary()
    rows = list(export(both, selection=Selection(), summary=summary))
    assert len(rows) == len(gold) == summary.rollouts == summary.rows
    assert summary.left_out["duplicate"] == len(gold)
    assert sum(summary.left_out.values()) + summary.rollouts == len(both)
    assert len(list(export(both, selection=EVERYTHING))) == len(both)
    assert {row["task"] for row in export(both, selection=Selection(tasks=["01"]))} == {"01"}
    assert not list(export(gold, selection=Selection(tasks="0")))
    assert list(export(mixed, selection=Selection(success_only=False, valid_only=False, min_reward=1.0))) == []
    assert len(list(export(gold, selection=Selection(min_reward=1.0)))) == len(gold)  # the minimum itself is enough
    valid = list(export(mixed, selection=Selection(success_only=False)))
    assert 0 <= len(valid) < len(mixed)


def test_rollouts_with_different_lookups_are_no_duplicates(gold: list[Rollout]) -> None:
    plain = gold[0]
    asked, again, other = (
        plain.model_copy(update={"final_lookups": (Lookup(source="spec", tool="show", arguments=a, result=""),)})
        for a in ("{}", "{}", '{"type": "Slot"}')
    )
    summary = ExportSummary()
    assert len(list(export([plain, asked, again, other], "tools", summary=summary))) == 3
    assert summary.left_out == {"duplicate": 1}


def test_ungraded_rollouts_are_left_out(gold: list[Rollout]) -> None:
    lost = gold[0].model_copy(update={"verdict": None, "reward": None, "success": None})
    summary = ExportSummary()
    assert list(export([lost], selection=EVERYTHING, summary=summary)) == []
    assert summary.left_out == {"not graded": 1}


@pytest.mark.parametrize("format", FORMATS)
def test_files_are_json_lines_and_the_same_every_time(tmp_path: Path, gold: list[Rollout], format: Any) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    summary = write_dataset(gold, first, format)
    write_dataset(iter(gold), second, format)
    assert first.read_bytes() == second.read_bytes()
    rows = [json.loads(line) for line in first.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == summary.rows
    assert rows == list(export(gold, format))


def test_wrong_arguments(tmp_path: Path, gold: list[Rollout]) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'messages'"):
        export(gold, "message")  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="cannot be written"):
        write_dataset(gold, tmp_path)


_LOAD = """
import json, sys
from datasets import load_dataset
from fhir_gym.rollouts.dataset import load

path, format = sys.argv[1:]
rows = [json.loads(line) for line in open(path, encoding="utf-8")]
assert [dict(row) for row in load(path, format)] == rows, "load() changed the rows"
if format != "tools":
    plain = load_dataset("json", data_files=path, split="train", cache_dir=path + ".cache")
    assert [dict(row) for row in plain] == rows, "load_dataset changed the rows"
"""


@pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed")
@pytest.mark.parametrize("format", FORMATS)
def test_the_datasets_library_loads_them_unchanged(tmp_path: Path, gold: list[Rollout], format: Any) -> None:
    path = tmp_path / "train.jsonl"
    write_dataset(gold, path, format)
    subprocess.run([sys.executable, "-c", _LOAD, str(path), format], check=True)
