"""A sound evaluation is accepted, and each way to tamper with one is refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fhir_gym import make_agent
from fhir_gym.actions import GRAMMAR, Action, Finish, Get, Post
from fhir_gym.cli import main
from fhir_gym.errors import RecordError
from fhir_gym.suites import Suite, evaluate
from fhir_gym.suites.submission import check_submission, pack_submission
from fhir_gym.testing.servers import ChatServer, ScriptedReply, offers_actions

Records = list[dict[str, Any]]


@pytest.fixture(scope="module")
def sound(tiny: Suite, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    evaluate(tiny, "random", folder, repeats=2)
    return folder


@pytest.fixture(scope="module")
def packed(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    pack_submission(sound, folder)
    return folder


@pytest.fixture(params=["sound", "packed"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a sound submission in each form."""
    return Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / "submission"))


def read_records(folder: Path) -> Records:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text("utf-8").splitlines()]


def edit_records(folder: Path, edit: Callable[[Records], object]) -> None:
    records = read_records(folder)
    edit(records)
    (folder / "rollouts.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")


def edit_card(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "card.json"
    card = json.loads(path.read_text("utf-8"))
    edit(card)
    path.write_text(json.dumps(card), "utf-8")


def success_of(records: Records) -> None:
    records[0] |= {"success": True, "reward": 1.0}
    records[0]["verdict"] |= {"success": True}


def foreign_verdict(records: Records) -> None:
    other = next(record for record in records if record["task"]["key"] != records[0]["task"]["key"])
    records[0] |= {name: other[name] for name in ("verdict", "success", "light", "reward")}


def observation(records: Records) -> None:
    turn = next(turn for record in records for turn in record["turns"] if turn["status"] == 200)
    turn["observation"] = turn["observation"][:-1]


TAMPERINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a changed reward": (
        lambda folder: edit_records(folder, lambda records: records[0].update(reward=1.0)),
        "its success or its reward is not that of the verdict",
    ),
    "a changed success": (
        lambda folder: edit_records(folder, success_of),
        "its verdict is not the one that its actions lead to",
    ),
    "dropped failures": (
        lambda folder: edit_records(folder, lambda records: records.pop()),
        "1 of 12 episodes have no verdict",
    ),
    "another suite": (
        lambda folder: edit_card(folder, lambda card: card.update(suite_hash="0" * 32)),
        "has another hash in this version of fhir_gym",
    ),
    "an edited answer": (
        lambda folder: edit_records(
            folder, lambda records: records[0]["turns"][-1].update(action='FINISH(["S1"])', observation="x")
        ),
        "the server answers something else",
    ),
    "a repeated episode": (
        lambda folder: edit_records(folder, lambda records: records.append(records[0])),
        "is there a second time",
    ),
    "a training variation": (
        lambda folder: edit_records(folder, lambda records: records[0]["task"].update(variation=3)),
        "suite tiny-v1 does not have task",
    ),
    "another world": (
        lambda folder: edit_records(folder, lambda records: records[0]["world"].update(hash="0" * 64)),
        "it was played in another world",
    ),
    "another version of the pack": (
        lambda folder: edit_records(folder, lambda records: records[0]["task"].update(pack_version="0.9")),
        "the pack has version 1.0, not 0.9",
    ),
    "a cut file": (
        lambda folder: (folder / "rollouts.jsonl").write_bytes((folder / "rollouts.jsonl").read_bytes()[:-40]),
        "the last line is incomplete",
    ),
    "the verdict of another episode": (
        lambda folder: edit_records(folder, foreign_verdict),
        "its verdict is not the one that its actions lead to",
    ),
    "an edited observation": (lambda folder: edit_records(folder, observation), "the server answers something else"),
    "another agent in a record": (
        lambda folder: edit_records(folder, lambda records: records[0]["agent"].update(name="gold")),
        "it is by another agent than the card",
    ),
    "another number of steps": (
        lambda folder: edit_records(folder, lambda records: records[0].update(max_steps=99)),
        "step limit are not the suite's",
    ),
    "a better card": (
        lambda folder: edit_card(folder, lambda card: card.update(mean_over_packs=1.0)),
        "card.json does not follow from the records: mean_over_packs",
    ),
    "a better page": (lambda folder: (folder / "card.md").write_text("100 %", "utf-8"), "card.md does not say"),
}


def test_a_sound_evaluation_is_accepted(folder: Path, tiny: Suite) -> None:
    assert [*check_submission(folder, tiny)] == []


def test_packing_replaces_only_long_observations(sound: Path, packed: Path, tmp_path: Path) -> None:
    for record, packed_record in zip(read_records(sound), read_records(packed), strict=True):
        for turn, packed_turn in zip(record["turns"], packed_record["turns"], strict=True):
            observation, short = turn.pop("observation"), packed_turn.pop("observation")
            assert len(short) <= 40
            assert observation.startswith(short) or short.startswith("blake2b:")
        assert record == packed_record
    assert (packed / "rollouts.jsonl").stat().st_size < 0.8 * (sound / "rollouts.jsonl").stat().st_size
    pack_submission(packed, tmp_path / "again")
    assert (tmp_path / "again" / "rollouts.jsonl").read_bytes() == (packed / "rollouts.jsonl").read_bytes()


def test_packing_writes_a_new_folder_from_a_whole_evaluation(sound: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"card\.json cannot be read"):
        pack_submission(tmp_path, tmp_path / "out")
    with pytest.raises(RecordError, match="exists and is not an empty folder"):
        pack_submission(sound, sound)


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_refused(folder: Path, tiny: Suite, name: str) -> None:
    tamper, reason = TAMPERINGS[name]
    tamper(folder)
    problems = [*check_submission(folder, tiny)]
    assert any(reason in problem for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


@pytest.mark.parametrize("protocol", ["text", "tools"])
@pytest.mark.parametrize(
    ("first", "tampered"),
    [
        (Get("/Patient?_count=1"), "GET /Patient?_count=7"),
        (
            Post("/Basic", {"resourceType": "Basic"}, {"If-None-Exist": "identifier=a|1"}),
            'POST /Basic\nIf-None-Exist: identifier=a|2\n{"resourceType": "Basic"}',
        ),
    ],
)
def test_an_action_that_the_model_did_not_write_is_refused(
    tiny: Suite, tmp_path: Path, protocol: Any, first: Action, tampered: str
) -> None:
    pytest.importorskip("openai")

    def act_and_finish(request: Mapping[str, Any]) -> ScriptedReply | str:
        """Act once, then finish, with tool calls if the request offers tools."""
        has_acted = any(message["role"] == "assistant" for message in request["messages"])
        action = Finish([]) if has_acted else first
        call = GRAMMAR.to_tool_call(action) if offers_actions(request) else None
        return action.text() if call is None else ScriptedReply(calls=[call])

    with ChatServer(act_and_finish) as server:
        agent = make_agent("chat", model="scripted", base_url=server.base_url, api_key="k", protocol=protocol)
        assert evaluate(tiny, agent, tmp_path).complete
    assert [*check_submission(tmp_path, tiny)] == []
    edit_records(tmp_path, lambda records: records[0]["turns"][0].update(action=tampered))
    problems = [*check_submission(tmp_path, tiny)]
    assert problems == ["rollouts.jsonl, line 1: turn 1: the model's reply does not contain the action"]


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    evaluate("quick-v1", "idle", tmp_path)
    for code, text in ((0, "every score follows"), (1, "line 1: its success or its reward")):
        if code:
            edit_records(tmp_path, lambda records: records[0].update(reward=1.0))
        with pytest.raises(SystemExit) as left:
            main(["submission", "check", str(tmp_path)])
        assert left.value.code == code
        assert text in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe"])
def test_files_that_are_no_submission(tmp_path: Path, tiny: Suite, content: bytes) -> None:
    with pytest.raises(RecordError):
        [*check_submission(tmp_path / "nothing", tiny)]
    (tmp_path / "card.json").write_bytes(content)
    with pytest.raises(RecordError):
        [*check_submission(tmp_path, tiny)]
