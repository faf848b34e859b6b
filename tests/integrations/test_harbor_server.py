"""The server of one episode for Harbor: what the agent can do with it, and what it cannot."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest
from mcp_types import TextContent

from fhir_gym import EpisodeConfig, read_rollouts
from fhir_gym.agents import Reply
from fhir_gym.episode import Step
from fhir_gym.errors import FhirGymError, InfraError, TaskError
from fhir_gym.fhir import World
from fhir_gym.integrations.harbor import (
    ServedEpisode,
    fetch_result,
    make_episode_app,
    open_recorder,
    serve_episode,
    task_files,
    write_verdict_files,
)
from fhir_gym.integrations.harbor.task_folders import BASE_URL, ORIGIN
from fhir_gym.rollouts import plan, run_plan
from fhir_gym.testing.servers import AppServer
from tests.integrations.gold import GoldEpisode, one_task_of_each_pack

SEARCH = GoldEpisode("FHIRAgent/Appointment-v0", "02a", 1_000)
CREATE = GoldEpisode("FHIRAgent/Appointment-v0", "01", 1_000)


def config_of(episode: GoldEpisode, world: World, **settings: Any) -> EpisodeConfig:
    return EpisodeConfig(episode.env_id, world=world, base_url=BASE_URL, **settings)


@contextmanager
def serving(gold: GoldEpisode, world: World, **settings: Any) -> Iterator[tuple[ServedEpisode, httpx.Client]]:
    """Serve an episode, to a client whose base URL is the server's origin."""
    recorder = open_recorder(config_of(gold, world, **settings), gold.task, gold.variation, world)
    episode = ServedEpisode(recorder)
    try:
        with (
            AppServer(make_episode_app(episode, "127.0.0.1")) as server,
            httpx.Client(base_url=server.url, timeout=30) as client,
        ):
            yield episode, client
    finally:
        episode.close()


def solution(gold: GoldEpisode, world: World) -> list[dict[str, Any]]:
    """The requests of the task folder's solution, with relative URLs."""
    episodes = plan(config_of(gold, world), tasks=gold.task, variations=gold.variation)
    (rollout,) = run_plan(episodes, "gold")
    steps: list[dict[str, Any]] = json.loads(task_files(rollout)["solution/requests.json"])
    return [step | {"url": step["url"].removeprefix(ORIGIN)} for step in steps]


def send(client: httpx.Client, step: dict[str, Any]) -> httpx.Response:
    return client.request(step["method"], step["url"], headers=step["headers"], content=step["body"])


@pytest.mark.parametrize(
    "gold", [CREATE, *(pytest.param(episode, marks=pytest.mark.slow) for episode in one_task_of_each_pack())]
)
def test_the_solution_of_a_task_folder_succeeds(own_world: Callable[[str], World], gold: GoldEpisode) -> None:
    steps = solution(gold, own_world(gold.env_id))
    with serving(gold, own_world(gold.env_id)) as (episode, client):
        answers = [send(client, step) for step in steps]
        rollout = episode.end()
    assert [answer.status_code for answer in answers] == [turn.status or 200 for turn in rollout.turns]
    assert (rollout.success, rollout.stop_reason, rollout.steps) == (True, "finished", len(steps))
    assert answers[-1].json() == {"message": "The episode is over."}  # neither reward nor verdict


def test_the_mcp_tools_play_the_same_episode(hospital: World) -> None:
    policy = SEARCH.policy(hospital)

    async def play(url: str) -> None:
        async with mcp.Client(f"{url}/mcp") as client:
            assert {tool.name for tool in (await client.list_tools()).tools} >= {"searchResources", "finish"}
            observation, name = "", ""
            while name != "finish":
                name, arguments = policy.tool_call(observation)
                (content,) = (await client.call_tool(name, arguments)).content
                assert isinstance(content, TextContent)
                observation = content.text
            late = await client.call_tool("finish", {"answer": []})
            assert late.is_error

    with serving(SEARCH, hospital) as (episode, client):
        asyncio.run(play(str(client.base_url).rstrip("/")))
        assert episode.end().success


def test_requests_and_tool_calls_are_actions_of_one_episode(hospital: World) -> None:
    async def call(url: str) -> None:
        async with mcp.Client(f"{url}/mcp") as tools:
            await tools.call_tool("getResourceById", {"resourceType": "Patient", "resourceId": "nobody"})

    with serving(SEARCH, hospital) as (episode, client):
        page = client.get("/fhir/Patient", params={"_count": 1}).json()
        assert page["link"][1]["url"].startswith(f"{BASE_URL}?_getpages=")  # a link that the agent can follow
        asyncio.run(call(str(client.base_url).rstrip("/")))
        turns = episode.end().turns
    assert [(turn.status, turn.tool) for turn in turns] == [(200, None), (404, "getResourceById")]


def test_an_agent_that_does_nothing_fails(hospital: World) -> None:
    with serving(CREATE, hospital) as (episode, client):
        rollout = episode.end()
        assert (rollout.success, rollout.reward, rollout.stop_reason) == (False, 0.0, "unfinished")
        assert client.get("/fhir/Patient").status_code == 403  # the verdict is final
        assert episode.end() == rollout


def test_the_step_limit_truncates(hospital: World) -> None:
    steps = solution(SEARCH, hospital)
    with serving(SEARCH, hospital, max_steps=1) as (episode, client):
        assert client.get("/fhir/Patient/nobody").status_code == 404
        late = [send(client, step) for step in steps]
        assert [answer.status_code for answer in late] == [403, 403]
        assert "limit of 1 actions" in late[0].json()["issue"][0]["diagnostics"]
        assert "limit of 1 actions" in late[1].json()["message"]
        rollout = episode.end()
    assert (rollout.success, rollout.stop_reason, rollout.steps) == (False, "step_limit", 1)


def test_only_the_first_answer_counts(hospital: World) -> None:
    steps = solution(SEARCH, hospital)
    with serving(SEARCH, hospital) as (episode, client):
        assert client.post("/finish", json=["wrong"]).status_code == 200
        assert [send(client, step).status_code for step in steps] == [403, 403]
        assert episode.end().success is False


def test_a_failed_server_is_no_reward_of_zero(hospital: World, tmp_path: Path, request: Any) -> None:
    with serving(SEARCH, hospital) as (episode, client):
        request.getfixturevalue("server_is_down")
        assert client.get("/fhir/Patient").status_code == 500
        assert client.get("/fhir/Patient").status_code == 403
        rollout = episode.end()
    assert (rollout.stop_reason, rollout.verdict, rollout.reward) == ("infra_error", None, None)
    with pytest.raises(InfraError, match="no verdict: the FHIR server is down"):
        write_verdict_files(rollout, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"verdict.json", "rollout.jsonl"}
    assert json.loads((tmp_path / "verdict.json").read_text())["error"] == "the FHIR server is down"


def test_no_path_tells_the_verdict_or_restarts_the_episode(hospital: World) -> None:
    with serving(SEARCH, hospital) as (episode, client):
        client.post("/finish", json=["wrong"])
        for path in ("/", "/verdict", "/reward", "/reset", "/start", "/fhir/$verdict", "/finish", "/health"):
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
                answer = client.request(method, path, content=b"[]")
                assert answer.status_code >= 400 or path == "/health"
                assert not any(word in answer.text for word in ("reward", "success", "explanation", "expected"))
        assert episode.end().steps == 1


def test_headers_reach_the_server_and_the_record(hospital: World) -> None:
    resource = {"resourceType": "Patient", "name": [{"family": "Nobody"}]}
    headers = {"If-None-Exist": "family=Nobody", "Prefer": "return=minimal", "Content-Type": "application/fhir+json"}
    with serving(CREATE, hospital) as (episode, client):
        first, second = (client.post("/fhir/Patient", json=resource, headers=headers) for _ in range(2))
        assert (first.status_code, second.status_code, first.content) == (201, 200, b"")
        assert first.headers["Location"].startswith(f"{BASE_URL}/Patient/")
        action = episode.end().turns[0].action
    assert "If-None-Exist: family=Nobody" in action
    assert "Host:" not in action


def test_hostile_requests_get_errors(hospital: World) -> None:
    with serving(SEARCH, hospital) as (episode, client):
        url = str(client.base_url).rstrip("/")
        answers = [
            client.request("TRACE", "/fhir/Patient"),
            client.post("/fhir/Patient", content=b"\xff\xfe"),
            client.get("/fhir/Patient/%2e%2e/x"),
            client.get("/fhir/" + "x" * 9_000),
            client.get("/fhir//elsewhere/Patient"),
            client.post("/finish", content=b"<script>"),
            client.post("/finish", content=b"[" * 100_000),
            client.post("/finish", content=b"[" + b"1," * 200_000 + b"1]"),
            client.post("/finish", json={"answer": ["12"]}),
            httpx.post(f"{url}/mcp", content=b"\xff"),
        ]
        assert all(400 <= answer.status_code < 500 for answer in answers), answers
        rollout = episode.end()
    assert rollout.stop_reason == "unfinished"  # none of them was an answer
    assert rollout.steps == 3


def test_other_content_than_exported_is_refused(hospital: World) -> None:
    config = config_of(SEARCH, hospital)
    with pytest.raises(TaskError, match="differs from the exported task"):
        open_recorder(config, "02a", 1_000, hospital, task_hash="0" * 32)
    with pytest.raises(TaskError, match="other content than the exported task"):
        open_recorder(config, "02a", 1_000, hospital, world_hash="0" * 64)


def test_the_verdict_needs_a_server(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match=r"at .*missing\.sock does not answer: No such file"):
        fetch_result(tmp_path / "missing.sock")


def test_a_socket_that_cannot_be_made_is_an_error(hospital: World, tmp_path: Path) -> None:
    recorder = open_recorder(config_of(SEARCH, hospital), "02a", 1_000, hospital)
    with pytest.raises(FhirGymError, match="cannot serve on"):
        serve_episode(recorder, host="127.0.0.1", port=0, socket=tmp_path / "no" / "x.sock", ready=print)


def test_the_files_for_the_verifier(hospital: World, tmp_path: Path) -> None:
    steps = solution(SEARCH, hospital)
    with serving(SEARCH, hospital) as (episode, client):
        for step in steps:
            send(client, step)
        write_verdict_files(episode.end(), tmp_path)
    assert json.loads((tmp_path / "reward.json").read_text()) == {"reward": 1.0}
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert (told["stop_reason"], told["truncated"], told["success"]) == ("finished", False, True)
    assert told["explanation"].startswith("Success")
    (rollout,) = read_rollouts(tmp_path / "rollout.jsonl")
    assert (rollout.agent.name, rollout.reward) == ("harbor", 1.0)


@pytest.mark.parametrize("slow", [("POST", "/finish"), ("GET", "/fhir/Patient")])
def test_the_server_answers_while_an_action_is_graded(
    hospital: World, slow: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, released = threading.Event(), threading.Event()
    in_time: list[bool] = []
    step = ServedEpisode.step

    def held(episode: ServedEpisode, reply: Reply) -> Step:
        started.set()
        in_time.append(released.wait(5))
        return step(episode, reply)

    monkeypatch.setattr(ServedEpisode, "step", held)
    with serving(CREATE, hospital) as (_, client), ThreadPoolExecutor(1) as thread:
        answer = thread.submit(client.request, *slow, content="[]" if slow[0] == "POST" else None)
        assert started.wait(20)
        assert httpx.get(client.base_url.join("/health"), timeout=20).status_code == 200
        released.set()
        assert answer.result().status_code == 200
    assert in_time == [True]
