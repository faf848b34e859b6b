from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("openai")

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents import ChatAgent, Message, Usage
from fhir_gym.agents.context_window import ContextWindow, message_tokens
from fhir_gym.agents.dropping_window import DroppingWindow, make_window
from fhir_gym.cli._summary import Summary
from fhir_gym.errors import FhirGymError, TrainingError, UnknownNameError
from fhir_gym.evaluation import EpisodeMetrics
from fhir_gym.fhir import World
from fhir_gym.observations import read_response
from fhir_gym.rollouts import ExportSummary, Format, Rollout, Selection, export, read_rollouts, run, write_rollouts
from fhir_gym.tasks import Gold, LatestResponse, get_task
from fhir_gym.testing import ChatServer, ScriptedReply
from fhir_gym.testing.servers import ReplyPolicy, offers_actions
from tests.agents.test_lookups import Shelf

APPOINTMENT, SHIFT = "FHIRAgent/Appointment-v0", "FHIRAgent/Shift-v0"
SEARCHES = [f"GET /{name}?_count={count}" for count in (3, 9, 20) for name in ("Patient", "Slot", "Encounter")]
EVERY = Selection(success_only=False, valid_only=False)


class GoldWithMemory:
    """A scripted model that follows a reference solution, and needs only the latest result of each request."""

    def __init__(self, world: World, env_id: str, key: str) -> None:
        self._task = get_task(env_id, key)
        self._params = self._task.variation(0, world).params
        self._fhir, self._solution = self._start()

    def __call__(self, request: Mapping[str, Any]) -> ScriptedReply | str:
        messages = request["messages"]
        if any(message["role"] == "assistant" for message in messages):
            self._fhir.last = read_response(messages[-1]["content"])
            action = self._solution.send(self._fhir.json())
        else:
            self._fhir, self._solution = self._start()
            action = next(self._solution)
        if not offers_actions(request):
            return action.text()
        call = GRAMMAR.to_tool_call(action)
        assert call is not None
        return ScriptedReply(calls=[call])

    def _start(self) -> tuple[LatestResponse, Gold]:
        fhir = LatestResponse()
        return fhir, self._task.gold(self._params)


class Script:
    """A scripted model that gives its replies in order, however much of a conversation a request contains."""

    def __init__(self, *replies: ScriptedReply | str) -> None:
        self._replies = replies

    def __call__(self, request: Mapping[str, Any]) -> ScriptedReply | str:
        if not any(message["role"] == "assistant" for message in request["messages"]):
            self._left = iter(self._replies)
        end = ScriptedReply(calls=[("finish", {"answer": []})]) if offers_actions(request) else "FINISH([])"
        return next(self._left, end)


def play(
    world: World, policy: ReplyPolicy, env_id: str = APPOINTMENT, key: str = "01", **given: Any
) -> tuple[Rollout, list[list[Message]]]:
    """Return the rollout of a conversation, and the messages of each request to the chat server."""
    limit, steps = given.pop("limit", None), given.pop("max_steps", None)
    with ChatServer(policy, context_tokens=limit) as server:
        agent = ChatAgent("scripted", base_url=server.base_url, context_policy="drop", backoff=0.001, **given)
        (rollout,) = run(env_id, agent, tasks=key, variations=0, world=world, max_steps=steps)
    return rollout, [request["messages"] for request in server.requests]


def shortened(messages: list[Message]) -> list[int]:
    return [place for place, message in enumerate(messages) if "[Dropped: " in json.dumps(message)]


# The window


def asked(text: str = "GET /Patient/1") -> Message:
    return {"role": "assistant", "content": text}


def window(context_tokens: int = 2_000, reply_tokens: int = 500) -> DroppingWindow:
    dropping_window = DroppingWindow(context_tokens, reply_tokens, None)
    dropping_window.add_opening([{"role": "system", "content": "Act."}, {"role": "user", "content": "Do it."}])
    return dropping_window


def test_the_oldest_results_are_dropped_until_half_of_the_window_is_free() -> None:
    dropping_window = window()
    for number in range(6):
        dropping_window.add_reply(None, asked())
        assert dropping_window.add_result(f"{number}" * 400, None) == f"{number}" * 400
        assert dropping_window.take_dropped() is None
    dropping_window.add_reply(None, asked())
    assert dropping_window.add_result("6" * 400, None) == "6" * 400
    assert shortened(dropping_window.messages) == [3, 5, 7, 9]
    dropped = dropping_window.take_dropped()
    assert dropped is not None and (dropped.contents, dropped.messages) == ((3, 5, 7, 9), 0)
    assert dropping_window.take_dropped() is None
    assert sum(map(message_tokens, dropping_window.messages[:-1])) <= 800


def test_long_replies_are_dropped_after_old_results() -> None:
    dropping_window = window(4_000)
    for _ in range(9):
        dropping_window.add_reply(None, asked('POST /Task\n{"a": "' + "x" * 600 + '"}'))
        dropping_window.add_result("HTTP 201 Created\n" + "y" * 300, None)
    replies = [message for message in dropping_window.messages[2:] if message["role"] == "assistant"]
    assert [len(str(message["content"])) < 100 for message in replies] == [True] * 5 + [False] * 4


def test_whole_exchanges_are_removed_when_nothing_else_is_left() -> None:
    dropping_window = window()
    for number in range(200):
        dropping_window.add_reply(None, asked(f"GET /Patient/{number}"))
        dropping_window.add_result("HTTP 404 Not Found", None)
        assert sum(map(message_tokens, dropping_window.messages)) <= 1_500
    assert (
        dropping_window.added == 402
        and dropping_window.messages[0]["content"] == "Act."
        and len(dropping_window.messages) % 2 == 0
    )
    assert [message["role"] for message in dropping_window.messages[1:4]] == ["user", "assistant", "user"]
    dropped = dropping_window.take_dropped()
    assert dropped is not None and dropped.contents == () and dropped.messages == 402 - len(dropping_window.messages)


def test_results_of_one_reply_share_the_window() -> None:
    dropping_window = window()
    dropping_window.add_reply(None, asked())
    parts = [dropping_window.add_result("x" * 9_000, f"c{left}", later=left) for left in (2, 1, 0)]
    assert all(700 < len(part) < 1_500 and "[Shortened: " in part for part in parts)
    assert sum(map(message_tokens, dropping_window.messages)) <= 1_500
    assert not dropping_window.shrink(), "results that the model has not read stay"


@settings(max_examples=40)
@given(
    share=st.none() | st.floats(0.3, 2.0),
    turns=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 500), st.integers(0, 12_000)), max_size=20),
)
@example(share=2.0, turns=[(2, 494, 4_280)])
def test_requests_never_exceed_the_window(share: float | None, turns: list[tuple[int, int, int]]) -> None:
    """The provider counts `share` times as many tokens as estimated, or does not say how many.

    It reports no tokens of replies.
    """
    dropping_window = window(8_000)

    def count() -> int:
        return int(sum(map(message_tokens, dropping_window.messages)) * (share or 1.0))

    for results, reply_chars, chars in turns:
        usage = None if share is None else Usage(prompt=count() + 1)
        dropping_window.add_reply(usage, asked("GET /Patient/1 " + "r" * reply_chars))
        place = len(dropping_window.messages)
        for number in range(results):
            text = f"{number}" * chars
            shown = dropping_window.add_result(text, f"c{number}", later=results - number - 1)
            assert shown == text or "[Shortened: " in shown
        assert count() <= 7_500 + 2  # numbers of tokens are rounded
        unread = [message["content"] for message in dropping_window.messages[-results:]]
        assert not any("[Dropped: " in str(content) for content in unread) and len(unread) == results
        assert (
            dropping_window.messages[0]["content"] == "Act."
            and dropping_window.messages[-results - 1]["role"] == "assistant"
        )
        assert place >= len(dropping_window.messages) - results


# The agent


@pytest.fixture(scope="module")
def dropped(hospital: World) -> tuple[Rollout, list[list[Message]]]:
    """A rollout whose model read less and less of a conversation, and the messages of its requests."""
    searches = [f"GET /Patient?_count={count}" for count in (1, 2) * 12]
    return play(hospital, Script(*searches), context_tokens=3_500, max_tokens=500, max_steps=30)


@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_the_record_says_what_the_model_read(hospital: World, protocol: Any) -> None:
    script: list[Any] = list(SEARCHES)
    if protocol == "tools":
        calls = [(name, {"resourceType": "Patient", "params_json": {"_count": 9}}) for name in ["searchResources"] * 2]
        look = ("look", {"at": "Patient"})
        script = [ScriptedReply(calls=[*calls, look]), ScriptedReply(calls=[look, look])] * 4
    tools: Any = ["fhir", Shelf(results={"Patient": "element " * 500})] if protocol == "tools" else ()
    choice: dict[str, Any] = {"context_tokens": 9_000, "max_tokens": 500, "max_steps": 30, "limit": 9_000}
    rollout, sent = play(hospital, Script(*script), protocol=protocol, tools=tools, **choice)
    assert (rollout.stop_reason, rollout.schema_version) == ("finished", 4)
    assert rollout.drops >= 2 and len(sent) == len(rollout.replies)
    assert list(rollout.requests()) == sent
    assert max(map(len, map(shortened, sent))) >= 3 and not shortened(rollout.messages)
    again = Rollout.model_validate_json(rollout.line())
    assert again == rollout and list(again.requests()) == sent
    repeated, _ = play(hospital, Script(*script), protocol=protocol, tools=tools, **choice)
    assert repeated.line(timings=False) == rollout.line(timings=False)
    assert rollout.agent.settings["context_policy"] == "drop"
    for messages in sent:
        calls = [call["id"] for message in messages for call in message.get("tool_calls", ())]
        assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == calls


def test_a_refused_request_is_repeated_with_fewer_contents(hospital: World) -> None:
    rollout, sent = play(hospital, Script(*SEARCHES, *SEARCHES), context_tokens=60_000, limit=9_000, max_steps=30)
    assert rollout.stop_reason == "finished" and rollout.drops
    accepted = [messages for messages in sent if len(json.dumps(messages)) // 4 <= 9_000]
    assert len(accepted) < len(sent) and list(rollout.requests()) == accepted
    stopped, _ = play(hospital, Script("GET /Patient?_count=200"), context_tokens=60_000, limit=9_000)
    assert stopped.stop_reason == "context_limit" and "maximum context length" in str(stopped.error)


def test_a_window_without_need_to_drop_changes_nothing(hospital: World) -> None:
    rollout, sent = play(hospital, Script(*SEARCHES[:2]), context_tokens=500_000)
    assert (rollout.schema_version, rollout.drops) == (2, 0)
    assert list(rollout.requests()) == sent and rollout.messages[:-1] == sent[-1]
    assert '"dropped"' not in rollout.line()


def test_datasets_have_only_what_the_model_read(hospital: World, dropped: tuple[Rollout, list[list[Message]]]) -> None:
    rollout, sent = dropped
    removals = [place for place, reply in enumerate(rollout.replies) if reply.dropped and reply.dropped.messages]
    assert any(reply.dropped and reply.dropped.contents for reply in rollout.replies[removals[0] + 1 :])
    summary = ExportSummary()
    rows = list(export([rollout], "completion", selection=EVERY, summary=summary))
    assert [row["prompt"] for row in rows] == sent and not summary.left_out
    assert [row["completion"] for row in rows] == [[reply.message] for reply in rollout.replies]
    left_out: tuple[Format, ...] = ("messages", "tools")
    for format in left_out:
        summary = ExportSummary()
        assert not list(export([rollout], format, selection=EVERY, summary=summary))
        ((reason, count),) = summary.left_out.items()
        assert reason.startswith("contents dropped from the context window") and count == 1
    calls = [ScriptedReply(calls=[("searchResources", {"resourceType": "Patient", "params_json": {}})])] * 9
    called, _ = play(hospital, Script(*calls), protocol="tools", context_tokens=6_000)
    assert called.drops and not list(export([called], "completion", selection=EVERY))


def test_training_refuses_rollouts_with_dropped_contents(dropped: tuple[Rollout, list[list[Message]]]) -> None:
    from fhir_gym.training.examples import make_example

    no_model: Any = None
    with pytest.raises(TrainingError, match="dropped contents from its context window"):
        make_example(dropped[0], no_model)


def test_reports_count_the_drops(
    hospital: World, dropped: tuple[Rollout, list[list[Message]]], capsys: pytest.CaptureFixture[str]
) -> None:
    rollout, _ = dropped
    assert EpisodeMetrics.of(rollout).drops == rollout.drops > 0
    full, _ = play(hospital, Script(*SEARCHES), context_tokens=400, max_tokens=100)
    assert full.stop_reason == "context_limit"
    summary = Summary()
    assert len(list(summary.watch([rollout, full]))) == 2
    summary.print()
    printed = " ".join(capsys.readouterr().out.split())
    assert f"the context window was full {rollout.drops} times in 1 episodes; old contents were dropped" in printed
    assert "1 episodes ended because the context window was full; with the setting context_policy=drop" in printed


def test_wrong_settings() -> None:
    unknown: Any = "dorp"
    with pytest.raises(FhirGymError, match="context_policy='drop' needs the size of the model's context window"):
        ChatAgent("m", base_url="http://localhost/v1", context_policy="drop")
    with pytest.raises(UnknownNameError, match="did you mean 'drop'"):
        ChatAgent("m", base_url="http://localhost/v1", context_policy=unknown)
    assert type(make_window("stop", 5_000, None, None)) is ContextWindow
    agent = ChatAgent("m", base_url="http://localhost/v1", context_tokens=5_000)
    assert "context_policy" not in agent.settings


# Long episodes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "protocol", "size"), [("Q1-2", "text", 28_000), ("day-3+minutes=100+policies=5", "tools", 46_000)]
)
def test_long_work_succeeds_in_a_fifth_of_the_conversation(hospital: World, key: str, protocol: Any, size: int) -> None:
    policy = GoldWithMemory(hospital, SHIFT, key)
    rollout, sent = play(hospital, policy, SHIFT, key, protocol=protocol, context_tokens=size)
    assert rollout.success and rollout.drops >= 2
    assert sum(map(message_tokens, rollout.messages)) > 5 * size
    assert list(rollout.requests()) == sent
    assert all(turn.shown is None for turn in rollout.turns)


_RUN = """
import sys
from fhir_gym import worlds
from tests.agents.test_dropping_window import write_four

if __name__ == "__main__":
    world_path, target, base_url = sys.argv[1:]
    with worlds.load(world_path) as world:
        write_four(world, target, base_url)
"""


def write_four(world: World, target: str | Path, base_url: str) -> None:
    """Run four episodes one after the other, except those that the file already contains."""
    agent = ChatAgent("scripted", base_url=base_url, context_tokens=6_000, context_policy="drop")
    choice: dict[str, Any] = {"tasks": "01", "variations": 0, "repeats": 4, "concurrency": 1}
    write_rollouts(target, run(APPOINTMENT, agent, world=world, resume=target, **choice), timings=False)


@pytest.mark.slow
def test_a_killed_and_resumed_run_gives_the_same_records(hospital: World, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    with ChatServer(Script(*SEARCHES)) as server:
        write_four(hospital, whole, server.base_url)
        in_one_run = len(server.requests)
    with ChatServer(Script(*SEARCHES), delay=0.05) as server:
        command = [sys.executable, "-c", _RUN, str(hospital.path), str(killed), server.base_url]
        with subprocess.Popen(command, start_new_session=True) as process:
            while len(server.requests) < in_one_run * 5 // 8 and process.poll() is None:
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
        assert len(list(read_rollouts(killed))) == 2, "the third episode was to be killed in the middle"
        write_four(hospital, killed, server.base_url)
    assert killed.read_bytes() == whole.read_bytes()
    rollouts = list(read_rollouts(whole))
    assert len(rollouts) == 4 and all(rollout.drops for rollout in rollouts)
