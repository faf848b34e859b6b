"""Runs on several FHIR servers: the same records, and no episode is lost or counted twice when a server fails."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from fhir_gym.agents import Completion, EpisodeContext, Message, Opening, ScriptedAgent
from fhir_gym.errors import AgentError, FhirGymError, InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.http_client import RetryPolicy
from fhir_gym.rollouts import Budget, Rollout, run
from tests.fhir.guarded_server import FailingServer
from tests.rollouts.test_concurrent import Slow
from tests.worlds.serving import served

ENV_ID = "FHIRAgent/Appointment-v0"
CHOICE: dict[str, Any] = {"tasks": ["02a", "01"], "variations": "0-1"}
READER = ScriptedAgent(["GET /Patient?_count=2&_sort=_id", "POST /Patient/_search\n_count=1"], name="reader")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.fhir.adapters.remote_client.RETRIES", RetryPolicy(0))
    monkeypatch.setattr("fhir_gym.fhir.adapters.remote.SETTLING", 0.0)


@pytest.fixture(scope="module")
def three_servers(hospital: World) -> Iterator[dict[str, FailingServer]]:
    """Three servers by base URL."""
    with ExitStack() as stack:
        apps = [FailingServer(create_app(hospital)) for _ in range(3)]
        yield {stack.enter_context(served(app)): app for app in apps}


@pytest.fixture(scope="module")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def servers(
    three_servers: dict[str, FailingServer], state_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, FailingServer]:
    """The servers, which answer again; a run restores what the failures of an earlier test have left on them."""
    monkeypatch.setenv("FHIR_GYM_STATE", str(state_folder))
    for app in three_servers.values():
        app.left = float("inf")
    return three_servers


def keys(rollouts: Sequence[Rollout]) -> list[tuple[str, int]]:
    return [(rollout.task.key, rollout.task.variation) for rollout in rollouts]


def neutral(rollout: Rollout) -> str:
    """Return a record without timings, and without ids and times that the server makes."""
    return re.sub(
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[0-9:.]+", "…", rollout.line(timings=False)
    )


ALL = [(task, variation) for task in ("02a", "01") for variation in range(2)]


def play(world: World, urls: Sequence[str], agent: Any = READER, **settings: Any) -> list[Rollout]:
    return list(run(ENV_ID, agent, world=world, fhir_server=urls, **(CHOICE | settings)))


def test_the_records_are_those_of_one_server(hospital: World, servers: dict[str, FailingServer]) -> None:
    urls = list(servers)
    on_one_server = play(hospital, urls[:1])
    before = [app.requests for app in servers.values()]
    several = play(hospital, urls)
    assert [neutral(rollout) for rollout in several] == [neutral(rollout) for rollout in on_one_server]
    assert keys(several) == ALL and f"{urls[0]}/Patient" in several[0].turns[0].observation
    assert all(app.requests > number + 10 for app, number in zip(servers.values(), before, strict=True))


class Meeting(ScriptedAgent):
    """An agent whose first action waits until three episodes have come so far."""

    def __init__(self) -> None:
        super().__init__(self.meet, name="meeting")

    def meet(self, observation: str, step: int) -> str:
        if step == 0:
            BARRIER.wait(20)
        return "FINISH([])"


class SlowMeeting(Slow):
    """A `ConcurrentAgent` whose first completion waits until three episodes have come so far."""

    async def complete(self, messages: Sequence[Message], opening: Opening) -> Completion:
        await asyncio.to_thread(BARRIER.wait, 20)
        return await super().complete(messages, opening)


BARRIER = threading.Barrier(3)


@pytest.mark.parametrize("agent", [Meeting(), SlowMeeting()], ids=["agent", "concurrent agent"])
def test_each_server_runs_an_episode_at_the_same_time(
    hospital: World, servers: dict[str, FailingServer], agent: Any
) -> None:
    rollouts = play(hospital, list(servers), agent, tasks="02a", variations="0-2")
    assert len(rollouts) == 3 and not BARRIER.broken


@pytest.mark.slow
def test_gold_succeeds_on_all_servers(hospital: World, servers: dict[str, FailingServer]) -> None:
    rollouts = play(hospital, list(servers), "gold", tasks=["11a", "15a"])
    assert [rollout.reward for rollout in rollouts] == [1.0] * 4


@pytest.mark.parametrize("agent", [READER, Slow()], ids=lambda agent: agent.name)
def test_a_failed_server_is_retired(hospital: World, servers: dict[str, FailingServer], agent: Any) -> None:
    urls = list(servers)
    servers[urls[1]].left = 7  # it fails in its first episode
    with pytest.warns(UserWarning, match=f"{urls[1]} is used no more in this run: .* is down") as caught:
        rollouts = play(hospital, urls, agent, budget=Budget(episodes=4))
    assert len(caught) == 1 and sorted(keys(rollouts)) == sorted(ALL)
    assert all(rollout.graded for rollout in rollouts)
    if agent is READER:
        assert keys(rollouts) == ALL


@pytest.mark.parametrize("agent", [READER, Slow()], ids=lambda agent: agent.name)
def test_without_servers_the_run_ends(hospital: World, servers: dict[str, FailingServer], agent: Any) -> None:
    urls = list(servers)
    running = run(ENV_ID, agent, world=hospital, fhir_server=urls, **CHOICE)
    for app in servers.values():
        app.left = 5
    ended = pytest.raises(InfraError, match="no FHIR server is left")
    with pytest.warns(UserWarning, match="used no more") as caught, ended:
        list(running)
    assert len(caught) == 3


class Failing:
    """An agent that fails, or that presses Ctrl-C, in one episode."""

    name = "failing"

    def __init__(self, failure: BaseException | None) -> None:
        self.settings: Mapping[str, Any] = {}
        self._failure, self._fails = failure, False

    def reset(self, observation: str, context: EpisodeContext) -> None:
        self._fails = (context.task, context.variation) == ("02a", 1)
        self._steps = 0

    def act(self, observation: str) -> str:
        self._steps += 1
        if self._fails and self._steps == 2:
            if self._failure is not None:
                raise self._failure
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.2)
        return "GET /Patient?_count=1" if self._steps < 4 else "FINISH([])"


def test_a_failed_provider_retires_no_server(hospital: World, servers: dict[str, FailingServer]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rollouts = play(hospital, list(servers), Failing(InfraError("the provider is down")))
    assert keys(rollouts) == ALL
    assert [rollout.error for rollout in rollouts] == [None, "the provider is down", None, None]


def test_the_error_of_an_agent_ends_the_run(hospital: World, servers: dict[str, FailingServer]) -> None:
    with pytest.raises(AgentError, match="task 02a, variation 1, step 2: ValueError: oh"):
        play(hospital, list(servers), Failing(ValueError("oh")))
    play(hospital, list(servers))  # the servers are free again


@pytest.mark.usefixtures("sigint_interrupts")
def test_ctrl_c_interrupts_the_episodes_and_undoes_their_writes(
    hospital: World, servers: dict[str, FailingServer]
) -> None:
    def patients(url: str) -> int:
        return int(httpx.get(f"{url}/Patient?_summary=count").json()["total"])

    rollouts: list[Rollout] = []
    with pytest.raises(KeyboardInterrupt):
        rollouts.extend(run(ENV_ID, Failing(None), world=hospital, fhir_server=list(servers), **CHOICE))
    assert [patients(url) for url in servers] == [hospital.manifest.counts["Patient"]] * 3
    assert "interrupted" in {rollout.stop_reason for rollout in rollouts}


def test_an_agent_that_cannot_be_copied(hospital: World, servers: dict[str, FailingServer]) -> None:
    agent = Failing(None)
    agent.settings = {"lock": threading.Lock()}
    with pytest.raises(FhirGymError, match="agent failing cannot be copied for each FHIR server"):
        play(hospital, list(servers), agent)


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ([], "fhir_server must be a base URL"),
        (["http://h/fhir", 5], "fhir_server must be a base URL"),
        (["http://h/fhir", "http://h/fhir/"], "names a server twice"),
        (["http://h/fhir", "http://me:pw@h/fhir"], "must not contain a user"),
    ],
)
def test_invalid_lists_of_servers(urls: Any, message: str) -> None:
    with pytest.raises(FhirGymError, match=message):
        run(ENV_ID, "idle", fhir_server=urls)
