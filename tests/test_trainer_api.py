"""Episodes of trainers: `play`, `aplay` and `rows`."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import fhir_gym
from fhir_gym import trainer_api
from fhir_gym.agents import ChatAgent
from fhir_gym.agents.provider import read_completion
from fhir_gym.episode import Episode
from fhir_gym.errors import ArgumentError, EndpointError, FhirGymError, InfraError, MissingExtraError, UnknownNameError
from fhir_gym.fhir import Session, World
from fhir_gym.testing import ChatServer, GoldOverChat, ScriptedReply
from fhir_gym.trainer_api import EpisodeRow, aplay, play, read_row, rollout_metrics, rows, shared_world

APPOINTMENT = "FHIRAgent/Appointment-v0"
SHIFT = "FHIRAgent/Shift-v0"
ACTION_REASONING = "FHIRAgent/ActionReasoning-v0"
FAST: dict[str, Any] = {"retries": 0, "backoff": 0.0}


def row(task: str = "01", variation: int = 0, **further: Any) -> dict[str, Any]:
    return {"env_id": APPOINTMENT, "task": task, "variation": variation, **further}


@pytest.fixture
def gold(hospital: World) -> Iterator[ChatServer]:
    episodes = [(APPOINTMENT, key, number) for key in ("01", "02a") for number in (0, 1, 1000)]
    with ChatServer(GoldOverChat(hospital, episodes)) as server:
        yield server


def test_play_returns_the_rollout_of_the_reference_solution(gold: ChatServer) -> None:
    rollout = play(row(), model="scripted", base_url=gold.base_url)
    assert (rollout.reward, rollout.stop_reason, rollout.task.key) == (1.0, "finished", "01")
    assert rollout_metrics(rollout) == {
        "success": 1.0,
        "steps": float(rollout.steps),
        "invalid_actions": 0.0,
        "truncated": 0.0,
    }


def test_settings_reach_the_episode_and_the_agent(gold: ChatServer) -> None:
    settings: dict[str, Any] = {"protocol": "tools", "reward": "dense", "temperature": 0.5}
    rollout = play(row(), model="scripted", base_url=gold.base_url, **settings)
    assert (rollout.reward_rule, rollout.turns[-1].tool) == ("dense", "finish")
    assert gold.requests[-1]["temperature"] == 0.5


def test_concurrent_episodes_share_the_world_and_the_agent_and_leave_nothing_open(
    gold: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents: set[ChatAgent] = set()
    converse = ChatAgent.converse

    def conversed(agent: ChatAgent, *arguments: Any) -> Any:
        agents.add(agent)
        return converse(agent, *arguments)

    monkeypatch.setattr(ChatAgent, "converse", conversed)
    chosen = [row(key, number) for key in ("01", "02a") for number in (0, 1)]

    async def play_all() -> list[fhir_gym.Rollout]:
        return await asyncio.gather(
            *(aplay(chosen_row, model="scripted", base_url=gold.base_url) for chosen_row in chosen for _ in range(8))
        )

    rollouts = asyncio.run(play_all())
    assert [rollout.reward for rollout in rollouts] == [1.0] * 32
    assert len(agents) == trainer_api._CLIENTS < len(rollouts)
    assert (trainer_api._worlds._values, trainer_api._agents._values) == ({}, {})


def test_the_event_loop_is_free_while_an_episode_starts(gold: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    start = Episode.start

    def started(episode: Episode) -> str:
        threads.append(threading.current_thread())
        return start(episode)

    monkeypatch.setattr(Episode, "start", started)
    play(row(), model="scripted", base_url=gold.base_url)
    assert threads and threading.main_thread() not in threads


def test_a_failing_fhir_server_raises(gold: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(*_: Any) -> None:
        raise InfraError("the FHIR server is down")

    monkeypatch.setattr(Session, "handle", handle)
    with pytest.raises(InfraError, match="the FHIR server is down"):
        play(row(), model="scripted", base_url=gold.base_url)


def test_a_failing_endpoint_raises() -> None:
    replies = ["GET /Patient?_count=1", "FINISH([])"]
    with ChatServer(replies, faults=[None, "500"]) as server, pytest.raises(InfraError, match="failed 1 times"):
        play(row(), model="scripted", base_url=server.base_url, **FAST)
    with ChatServer(replies) as server, pytest.raises(EndpointError, match="did you mean 'scripted'"):
        play(row(), model="scriptd", base_url=server.base_url, **FAST)
    assert (trainer_api._worlds._values, trainer_api._agents._values) == ({}, {})


def test_the_step_limit_is_graded_and_told_apart() -> None:
    with ChatServer(lambda _: "GET /Patient?_count=1") as server:
        rollout = play(row(), model="scripted", base_url=server.base_url, max_steps=2)
    assert (rollout.reward, rollout.stop_reason, rollout_metrics(rollout)["truncated"]) == (0.0, "step_limit", 1.0)


def test_a_cancelled_episode_is_no_rollout() -> None:
    async def play_too_long(url: str) -> None:
        async with asyncio.timeout(0.5):
            await aplay(row(), model="scripted", base_url=url)

    with ChatServer(["FINISH([])"], faults=["timeout"]) as server, pytest.raises(TimeoutError):
        asyncio.run(play_too_long(server.base_url))
    assert (trainer_api._worlds._values, trainer_api._agents._values) == ({}, {})


def test_token_ids_and_log_probabilities_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithTokens(ScriptedReply):
        def body(self, request: Any, number: int) -> dict[str, Any]:
            body: dict[str, Any] = super().body(request, number)
            body["choices"][0] |= {"token_ids": [5, 6], "logprobs": {"content": [{"token": "F", "logprob": -0.5}]}}
            return body | {"prompt_token_ids": [1, 2, 3]}

    with ChatServer([WithTokens("FINISH([])")]) as server:
        asked = {"return_token_ids": True, "logprobs": True}
        rollout = play(row(), model="scripted", base_url=server.base_url, extra_body=asked)
    (reply,) = rollout.replies
    assert server.requests[0]["return_token_ids"] is True
    assert (reply.extra["prompt_token_ids"], reply.extra["token_ids"]) == ([1, 2, 3], [5, 6])
    assert reply.extra["logprobs"] == {"content": [{"token": "F", "logprob": -0.5}]}
    assert read_completion(b'{"choices": [{"message": {}}]}').extra == {}


def test_a_repeat_of_a_row_samples_with_another_seed(gold: ChatServer) -> None:
    rollouts = [play(row(repeat=number), model="scripted", base_url=gold.base_url, seed=1) for number in (0, 1)]
    assert len({request["seed"] for request in gold.requests}) == 2
    assert [rollout.repeat for rollout in rollouts] == [0, 1]


def test_play_works_inside_an_event_loop_too(gold: ChatServer) -> None:
    async def cell() -> fhir_gym.Rollout:
        return play(row(), model="scripted", base_url=gold.base_url)

    assert asyncio.run(cell()).reward == 1.0


@pytest.mark.parametrize(
    ("wrong", "settings", "error", "message"),
    [
        ({"variation": 1000}, {}, ArgumentError, "test variations are never trained on"),
        ({"variation": 1000, "split": "train"}, {}, ArgumentError, "not in split 'train'"),
        ({"variation": 1000, "split": "test"}, {"split": "train"}, ArgumentError, "not in split 'train'"),
        ({"variation": 1000, "split": None}, {"split": "train"}, ArgumentError, "not in split 'train'"),
        ({"variation": 5, "split": "test"}, {}, ArgumentError, "not in split 'test'"),
        ({"variation": 0.5}, {}, FhirGymError, "whole number"),
        ({"phrasing": "briefly"}, {}, FhirGymError, "'brief'"),
        ({"repeat": -1}, {}, FhirGymError, "at least 0"),
        ({"env_id": "FHIRAgent/Nothing-v0"}, {}, UnknownNameError, "unknown environment"),
        ({}, {"temprature": 1.0}, UnknownNameError, "did you mean 'temperature'"),
        ({}, {"max_step": 1}, UnknownNameError, "did you mean 'max_steps'"),
    ],
)
def test_wrong_rows_and_settings_are_refused(
    wrong: dict[str, Any], settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        play(row(**wrong) if "variation" not in wrong else {**row(), **wrong}, model="scripted", **settings)


def test_a_row_without_the_name_of_an_episode_is_refused() -> None:
    with pytest.raises(FhirGymError, match="a row must have env_id, task and variation"):
        read_row({"prompt": "hello"}, {})


def test_a_row_says_its_split_and_the_settings_override_it() -> None:
    assert read_row(row(split="test", variation=1000), {})[0].split == "test"
    assert read_row(row(), {})[0].split == "train"
    assert read_row(row(variation=1000), {"split": None})[0].split is None
    assert read_row(row(phrasing="1"), {})[0].phrasing == 1


def test_rows_name_task_variation_phrasing_and_split() -> None:
    assert rows(APPOINTMENT, ["01", "02a"], variations="0-1", phrasings=[0, "brief"])[:3] == [
        EpisodeRow(env_id=APPOINTMENT, task="01", variation=0, phrasing=0, split="train"),
        EpisodeRow(env_id=APPOINTMENT, task="01", variation=0, phrasing="brief", split="train"),
        EpisodeRow(env_id=APPOINTMENT, task="01", variation=1, phrasing=0, split="train"),
    ]
    assert {named["variation"] for named in rows(APPOINTMENT, "01")} == {*range(1000)}
    assert {named["split"] for named in rows(APPOINTMENT, "01", split="test", variations="1000-1009")} == {"test"}


def test_rows_choose_tasks_by_level_and_dials() -> None:
    assert {named["task"][:2] for named in rows(SHIFT, level=1, variations=0)} == {"Q1", "Q2", "Q3", "Q4"} | {
        f"{kind}{number}" for kind in "IPS" for number in range(1, 5)
    }
    (long_row,) = rows(SHIFT, "day-3", variations=0, minutes=60)
    with shared_world(read_row(long_row, {})[0]):
        assert long_row["task"] == "day-3+minutes=60"


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"variations": [999, 1000]}, ArgumentError),
        ({"variations": "all"}, FhirGymError),
        ({"phrasings": [99]}, ArgumentError),
        ({"tasks": "1"}, UnknownNameError),
        ({"split": "training"}, UnknownNameError),
        ({"variatons": 0}, UnknownNameError),
    ],
)
def test_wrong_arguments_of_rows_are_refused(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        rows(APPOINTMENT, **wrong)


def test_rows_of_another_world_have_only_the_tasks_that_it_supports(hospital: World) -> None:
    chosen = {named["task"] for named in rows(ACTION_REASONING, world=hospital, variations=0)}
    assert chosen == {"01", "03", "04", "05", "06"}


def test_a_dataset_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="pip install datasets"):
        rows(APPOINTMENT, variations=0, as_dataset=True)
