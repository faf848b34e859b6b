"""Episodes that MCP clients play: verdicts, limits, records, isolation, and nothing that leaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fhir_gym import EpisodeConfig, get_task, read_rollouts, run
from fhir_gym.episode import Episode
from fhir_gym.errors import FhirGymError, InfraError, RecordError, UnknownNameError
from fhir_gym.fhir import Session, World
from fhir_gym.mcp_servers import McpClient, SessionError, TaskTools, ToolResult
from tests.mcp_servers.clients import APPOINTMENT, CLIENT, act, start
from tests.mcp_servers.test_sessions import Clock

LEE = {"resourceType": "Patient", "name": [{"family": "Lee"}]}


@pytest.fixture
def config(hospital: World) -> EpisodeConfig:
    return EpisodeConfig(APPOINTMENT, world=hospital)


@pytest.fixture
def tools(config: EpisodeConfig) -> Iterator[TaskTools]:
    with TaskTools([config]) as opened:
        yield opened


def test_start_returns_the_prompt_and_the_limit(tools: TaskTools, hospital: World) -> None:
    result = act(tools, "start_task", env_id=APPOINTMENT, task="02a", variation=3)
    assert result.data is not None and json.loads(result.text) == result.data
    assert str(result.data["prompt"]).startswith(get_task(APPOINTMENT, "02a").variation(3, hospital).prompt)
    assert str(result.data["episode_id"]) in str(result.data["prompt"])
    assert result.data["max_steps"] == 15


def test_a_phrasing_can_be_chosen(tools: TaskTools, hospital: World) -> None:
    prompts = {
        act(tools, "start_task", env_id=APPOINTMENT, task="01", variation=0, phrasing=number).text.partition("prompt")[
            2
        ]
        for number in (0, 1, "brief")
    }
    assert len(prompts) == 3


def test_an_observation_is_that_of_an_episode(tools: TaskTools) -> None:
    arguments = {"resourceType": "Patient", "params_json": {"family": "Nobody"}}
    result = act(tools, "searchResources", episode_id=start(tools), **arguments)
    assert result.text.startswith("HTTP 200 OK\n") and not result.error


def test_the_verdict_of_a_training_variation_is_explained(tools: TaskTools) -> None:
    result = act(tools, "finish", episode_id=start(tools), answer=[]).data
    assert result is not None
    assert (result["success"], result["reward"], result["stop_reason"], result["steps"]) == (False, 0.0, "finished", 1)
    assert {"name": "answer", "passed": False} in result["checks"]
    assert "expected" in result["explanation"]


@pytest.mark.parametrize(("feedback", "variation"), [("explained", 1_000), ("checks", 0), ("none", 0)])
def test_solutions_are_not_revealed(config: EpisodeConfig, feedback: Any, variation: int) -> None:
    with TaskTools([config], feedback=feedback) as tools:
        result = act(tools, "finish", episode_id=start(tools, variation=variation), answer=[])
    assert result.data is not None and ("success" in result.data) == (feedback != "none")
    assert "explanation" not in result.data and "expected" not in result.text
    for check in result.data.get("checks", []):
        assert set(check) == {"name", "passed"}


def test_the_step_limit_ends_an_episode(config: EpisodeConfig) -> None:
    with TaskTools([EpisodeConfig(APPOINTMENT, world=config.world, max_steps=2)]) as tools:
        id = start(tools)
        read = {"episode_id": id, "resourceType": "Patient", "resourceId": "1"}
        assert "step limit" not in act(tools, "getResourceById", **read).text
        last = act(tools, "getResourceById", **read)
        assert last.text.startswith("HTTP 404") and "step limit" in last.text
        with pytest.raises(SessionError, match="step limit"):
            act(tools, "getResourceById", **read)
        late = act(tools, "finish", episode_id=id, answer=["1"]).data
        assert late is not None and late["stop_reason"] == "step_limit" and "does not count" in late["note"]


def test_invalid_calls_are_steps(tools: TaskTools) -> None:
    id = start(tools)
    result = act(tools, "getResourceById", episode_id=id, resourceType="patient", resourceId="1")
    assert result.error and "is not valid" in result.text
    final = act(tools, "finish", episode_id=id, answer=[]).data
    assert final is not None and final["steps"] == 2


def test_huge_and_deep_arguments_are_steps(config: EpisodeConfig, tmp_path: Path) -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    out = tmp_path / "rollouts.jsonl"
    with TaskTools([config], out=out) as tools:
        id = start(tools)
        for params in (deep, {"family": "x" * 5_000_000}):
            result = act(tools, "searchResources", episode_id=id, resourceType="Patient", params_json=params)
            assert result.error and len(result.text) < 1_000
        final = act(tools, "finish", episode_id=id, answer=[]).data
        assert final is not None and final["steps"] == 3
    assert out.stat().st_size < 1_000_000
    while deep:
        deep = deep.pop("a")  # otherwise freeing it takes deep recursion


def test_a_repeated_finish_returns_the_same_verdict(tools: TaskTools) -> None:
    """A client may repeat a call whose result was lost."""
    id = start(tools)
    first = act(tools, "finish", episode_id=id, answer=[]).data
    second = act(tools, "finish", episode_id=id, answer=["other"]).data
    assert first is not None and second is not None
    assert "does not count" in second["note"] and first.items() <= second.items()
    with pytest.raises(SessionError, match="has finished"):
        act(tools, "getResourceById", episode_id=id, resourceType="Patient", resourceId="1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env_id": "FHIRAgent/GeneticTesting-v0"}, "must be one of FHIRAgent/Appointment-v0"),
        ({"task": "2a"}, "unknown task '2a'; did you mean '02a'?"),
        ({"task": 1}, "'task' must have the type string"),
        ({"variation": -1}, "variation -1 does not exist: variations are numbered from 0 to 1999"),
        ({"variation": 10**30}, "does not exist: variations are numbered from 0 to 1999"),
        ({"variation": True}, "must have the type integer"),
        ({"variation": None}, "the argument 'variation' is missing"),
        ({"phrasing": 99}, "phrasing"),
        ({"phrasing": "short"}, "phrasing must be a whole number, 'brief' or 'paraphrase', not 'short'"),
        ({"phrasing": [0]}, "phrasing must be a whole number, not [0]"),
        ({"grading": "light"}, "unknown argument 'grading'"),
    ],
)
def test_a_task_that_does_not_exist_is_explained(tools: TaskTools, change: dict[str, Any], message: str) -> None:
    arguments = {"env_id": APPOINTMENT, "task": "01", "variation": 0} | change
    try:
        result = tools.call_now("start_task", arguments, CLIENT)
    except FhirGymError as error:
        result = ToolResult(str(error), error=True)
    assert result.error and message in result.text and "\n" not in result.text
    assert len(tools.sessions) == 0


# records


def test_episodes_are_recorded_as_rollouts(config: EpisodeConfig, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    with TaskTools([config], out=out) as tools:
        for number in range(2):
            id = start(tools, variation=number)
            act(tools, "searchResources", episode_id=id, resourceType="Patient")
            act(tools, "getResourceById", episode_id=id, resourceType="Patient")
            act(tools, "finish", episode_id=id, answer=["1"])
    first, second = read_rollouts(out)
    assert (first.agent.name, first.agent.settings) == ("mcp", {"client": "tester", "client_version": "1.2"})
    assert [turn.tool for turn in first.turns] == ["searchResources", "getResourceById", "finish"]
    assert first.turns[0].action == "GET /Patient" and first.turns[0].status == 200
    assert first.turns[1].error and first.turns[1].text == 'getResourceById({"resourceType": "Patient"})'
    assert (first.stop_reason, first.success, first.steps) == ("finished", False, 3)
    assert (first.task.variation, second.task.variation) == (0, 1)


def test_a_recorded_episode_equals_that_of_an_agent(config: EpisodeConfig, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    with TaskTools([config], out=out) as tools:
        act(tools, "finish", episode_id=start(tools, "02a"), answer=[])
    (recorded,) = read_rollouts(out)
    (played,) = run(APPOINTMENT, "idle", tasks="02a", variations=0, world=config.world)
    same = {"agent", "seed", "timings", "turns"}
    assert recorded.model_dump(exclude=same) == played.model_dump(exclude=same)


def test_repeats_are_numbered_and_a_file_is_continued(config: EpisodeConfig, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    for clients in ([CLIENT, CLIENT], [CLIENT, McpClient("other")]):
        with TaskTools([config], out=out) as tools:
            for client in clients:
                started = tools.call_now("start_task", {"env_id": APPOINTMENT, "task": "01", "variation": 0}, client)
                assert started.data is not None
                act(tools, "finish", episode_id=started.data["episode_id"], answer=[])
    assert [(rollout.agent.settings["client"], rollout.repeat) for rollout in read_rollouts(out)] == [
        *(("tester", 0), ("tester", 1), ("tester", 2)),
        ("other", 0),
    ]


def test_episodes_that_a_client_leaves_are_graded_as_they_are(config: EpisodeConfig, tmp_path: Path) -> None:
    out, clock = tmp_path / "rollouts.jsonl", Clock()
    with TaskTools([config], out=out, idle_timeout=60, clock=clock) as tools:
        idle = start(tools)
        clock.now = 61
        start(tools)
        assert [rollout.stop_reason for rollout in read_rollouts(out)] == ["unfinished"]
        with pytest.raises(SessionError, match="was closed because it was idle for 60 seconds"):
            act(tools, "finish", episode_id=idle, answer=[])
    assert [(rollout.repeat, rollout.stop_reason, rollout.reward) for rollout in read_rollouts(out)] == [
        (0, "unfinished", 0.0),
        (1, "unfinished", 0.0),
    ]


def test_an_episode_that_ends_in_prose_lowers_the_success_rate(config: EpisodeConfig, tmp_path: Path) -> None:
    """A client may never call finish: it must not be reported as better than it is."""
    out = tmp_path / "rollouts.jsonl"
    with TaskTools([config], out=out) as tools:
        for variation in range(4):
            id = start(tools, "05", variation=variation)
            act(tools, "searchResources", episode_id=id, resourceType="Patient")
    assert [rollout.success for rollout in read_rollouts(out)] == [False] * 4


def test_a_server_that_fails_while_a_left_episode_is_graded_gives_no_reward(
    config: EpisodeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rollouts.jsonl"
    with TaskTools([config], out=out) as tools:
        start(tools)
        monkeypatch.setattr(Episode, "truncate", fail)
    (rollout,) = read_rollouts(out)
    assert (rollout.stop_reason, rollout.reward) == ("infra_error", None)


@pytest.mark.parametrize(
    ("name", "arguments", "hint"),
    [
        ("searchResources", {"types": "Patient"}, "known: episode_id, resourceType, params_json, pageUrl"),
        ("finish", {"answer": "12"}, 'finish({"episode_id": "ID", "answer": ["12"]})'),
        ("createResource", {}, 'createResource({"episode_id": "ID", "resourceType": "Patient", "body_json": {'),
    ],
)
def test_hints_name_the_id_of_the_episode(
    config: EpisodeConfig, name: str, arguments: dict[str, Any], hint: str
) -> None:
    with TaskTools([config]) as tools:
        id = start(tools)
        assert hint.replace("ID", id) in act(tools, name, episode_id=id, **arguments).text
        missing = act(tools, name, **arguments).text
        assert missing == "Error: the argument 'episode_id' is missing: Id that start_task returned."


def test_a_record_that_cannot_be_written_is_kept(
    config: EpisodeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rollouts.jsonl"
    with TaskTools([config], out=out) as tools:
        assert tools._writer is not None
        with monkeypatch.context() as patch:
            patch.setattr(tools._writer, "write", fail)
            id = start(tools)
            with pytest.raises(RecordError, match="no space"):
                act(tools, "finish", episode_id=id, answer=[])
        assert act(tools, "finish", episode_id=id, answer=[]).data is not None  # the verdict is not lost
        act(tools, "finish", episode_id=start(tools, variation=1), answer=[])
    assert [rollout.task.variation for rollout in read_rollouts(out)] == [0, 1]


def fail(*_: object) -> None:
    raise RecordError("no space")


def test_a_hostile_name_of_a_client_is_recorded_in_one_line(config: EpisodeConfig, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    with TaskTools([config], out=out) as tools:
        client = McpClient("\x1b[31m\ud800<script>" + "x" * 10_000, "\n")
        started = tools.call_now("start_task", {"env_id": APPOINTMENT, "task": "01", "variation": 0}, client)
        assert started.data is not None
    (record,) = read_rollouts(out)
    assert str(record.agent.settings["client"]).isprintable() and len(str(record.agent.settings["client"])) < 110


# failures and leaks


def test_a_failure_of_the_server_ends_the_episode(
    config: EpisodeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a page is damaged")

    out = tmp_path / "rollouts.jsonl"
    with TaskTools([config], out=out) as tools:
        id = start(tools)
        with monkeypatch.context() as patch, pytest.raises(InfraError, match="a page is damaged"):
            patch.setattr(Session, "handle", broken)
            act(tools, "searchResources", episode_id=id, resourceType="Patient")
        with pytest.raises(SessionError, match="has failed"):
            act(tools, "finish", episode_id=id, answer=[])
    (record,) = read_rollouts(out)
    assert (record.stop_reason, record.error) == ("infra_error", "RuntimeError: a page is damaged")


def test_closed_episodes_close_their_sessions(config: EpisodeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Session] = []
    close = Session.close

    def watched(session: Session) -> None:
        closed.append(session)
        close(session)

    monkeypatch.setattr(Session, "close", watched)
    with TaskTools([config]) as tools:
        ids = [start(tools, variation=number) for number in range(6)]
        for id in ids[:3]:
            act(tools, "finish", episode_id=id, answer=[])
        assert len(closed) == 3
    assert len(closed) == len(set(closed)) == 6


def test_unusable_settings_are_refused(config: EpisodeConfig, tmp_path: Path) -> None:
    unknown: Any = "all"
    with pytest.raises(UnknownNameError, match="feedback"):
        TaskTools([config], feedback=unknown)
    with pytest.raises(UnknownNameError, match="Appointment"):
        TaskTools([EpisodeConfig("FHIRAgent/Appointments-v0")])
    with pytest.raises(FhirGymError, match="leave fhir_server out"):
        TaskTools([EpisodeConfig(APPOINTMENT, fhir_server="http://localhost:1/fhir")])
    (tmp_path / "notes.txt").write_text("hello\n")
    with pytest.raises(RecordError):
        TaskTools([config], out=tmp_path / "notes.txt")


# isolation and concurrency


def test_64_episodes_do_not_see_each_other(config: EpisodeConfig) -> None:
    with TaskTools([config]) as tools:
        ids = [start(tools, variation=number % 4) for number in range(64)]

        def work(number: int) -> tuple[int, str]:
            id, body = ids[number], {**LEE, "name": [{"family": f"Only{number}"}]}
            for _ in range(number % 3 + 1):
                act(tools, "createResource", episode_id=id, resourceType="Patient", body_json=body)
            params = {"family": "Only", "_elements": "name"}
            result = act(tools, "searchResources", episode_id=id, resourceType="Patient", params_json=params)
            bundle = json.loads(result.text.partition("\n")[2])
            return bundle["total"], {entry["resource"]["name"][0]["family"] for entry in bundle["entry"]}.pop()

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, range(64)))
        assert results == [(number % 3 + 1, f"Only{number}") for number in range(64)]


def test_threads_start_and_finish_episodes_beside_each_other(config: EpisodeConfig, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    with TaskTools([config], out=out) as opened, ThreadPoolExecutor(8) as pool:

        def work(number: int) -> bool:
            id = start(opened, variation=number % 2)
            act(opened, "searchResources", episode_id=id, resourceType="Patient")
            result = act(opened, "finish", episode_id=id, answer=[]).data
            return result is not None and result["steps"] == 2

        assert all(pool.map(work, range(24)))
    found = sorted((rollout.task.variation, rollout.repeat) for rollout in read_rollouts(out))
    assert found == [(variation, repeat) for variation in range(2) for repeat in range(12)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["env_id", "task", "variation", "phrasing", "episode_id", "answer", "extra"]) | st.sampled_from(
    ["resourceType", "resourceId", "params_json", "body_json", "pageUrl", "ifNoneExist", "ifMatchVersion"]
)
LIKELY = st.sampled_from([APPOINTMENT, "01", 0, "Patient", "1", {"family": "Lee"}, LEE, [], "Patient?_count=1"])


@settings(max_examples=25)
@given(st.data())
def test_no_arguments_raise_anything_unexpected(shared_tools: TaskTools, data: st.DataObject) -> None:
    names = st.sampled_from([schema["function"]["name"] for schema in shared_tools.schemas()]) | st.text(max_size=5)
    arguments = data.draw(st.dictionaries(KEYS | st.text(max_size=3), LIKELY | JSON, max_size=5))
    if data.draw(st.booleans()):
        arguments["episode_id"] = start(shared_tools)
    try:
        result = shared_tools.call_now(data.draw(names), arguments, CLIENT)
        assert isinstance(result.text, str) and len(result.text) < 1_000_000
    except FhirGymError as error:
        assert not isinstance(error, InfraError) and "\n" not in str(error)
    finally:
        for id in [*shared_tools.sessions._open]:
            act(shared_tools, "finish", episode_id=id, answer=[])


@pytest.fixture(scope="module")
def shared_tools(hospital: World) -> Iterator[TaskTools]:
    with TaskTools([EpisodeConfig(APPOINTMENT, world=hospital)]) as opened:
        yield opened
