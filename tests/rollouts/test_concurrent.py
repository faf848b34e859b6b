"""Tests of concurrent conversations: faults, kills and budgets never change the results of episodes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.agents import (
    Completion,
    ContextWindow,
    Conversation,
    EpisodeContext,
    Message,
    Opening,
    Usage,
    make_opening,
)
from fhir_gym.errors import AgentError, EndpointError, FhirGymError, InfraError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Budget, Prices, Rollout, plan, read_rollouts, run, write_rollouts
from fhir_gym.types import Json

ENV_ID = "FHIRAgent/Appointment-v0"


def lines(rollouts: Sequence[Rollout]) -> list[str]:
    return sorted(rollout.line(timings=False) for rollout in rollouts)


class Slow:
    """An agent without a model that waits, reads once and finishes. Tests add failures to the agent."""

    name = "slow"

    def __init__(self, wait: float = 0.002) -> None:
        self.settings: Mapping[str, Json] = {"model": "none"}
        self.wait = wait
        self.at_once = self.most_at_once = self.completions = self.closed = 0

    def converse(self, observation: str, context: EpisodeContext) -> Conversation:
        opening = make_opening("text", observation, context, seed=context.seed)
        return Conversation(opening, self.complete, ContextWindow(None, None, None))

    async def complete(self, messages: Sequence[Message], opening: Opening) -> Completion:
        self.completions += 1
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await asyncio.sleep(self.wait)
        finally:
            self.at_once -= 1
        action = "GET /Patient?_count=1" if len(messages) <= 2 else "FINISH([])"
        return Completion(content=action, usage=Usage(prompt=100, completion=10))

    async def aclose(self) -> None:
        self.closed += 1


def test_concurrent_episodes_give_the_same_records(hospital: World) -> None:
    agent = Slow()
    choice: dict[str, Any] = {"tasks": ["01", "02a"], "variations": "0-9", "repeats": 2, "world": hospital}
    many = list(run(ENV_ID, agent, concurrency=7, **choice))
    assert agent.most_at_once == 7 and agent.closed == 1
    sequential = list(run(ENV_ID, agent, concurrency=1, **choice))
    assert [(r.task.key, r.task.variation, r.repeat) for r in sequential] == [
        tuple(episode) for episode in plan(ENV_ID, tasks=["01", "02a"], variations="0-9", repeats=2).episodes
    ]
    assert lines(many) == lines(sequential)
    assert len({rollout.seed for rollout in many}) == 40
    assert all(rollout.usage == Usage(prompt=200, completion=20) for rollout in many)


def test_a_run_works_inside_an_event_loop(hospital: World) -> None:
    async def notebook() -> list[Rollout]:
        return list(run(ENV_ID, Slow(), tasks="01", variations="0-2", world=hospital))

    assert len(asyncio.run(notebook())) == 3


@pytest.mark.parametrize(
    ("budget", "most"),
    [
        (Budget(episodes=3), 3),
        (Budget(tokens=400), 4),  # two episodes use 220 tokens each, while two more episodes run
        (Budget(cost=0.0005, prices=Prices(1.0, 10.0)), 4),  # an episode costs 0.0004
        (Budget(seconds=0.0005), 2),
    ],
)
def test_after_the_budget_no_episode_starts_and_running_ones_finish(hospital: World, budget: Budget, most: int) -> None:
    rollouts = list(run(ENV_ID, Slow(), tasks="01", variations="0-20", concurrency=2, budget=budget, world=hospital))
    assert len(rollouts) <= most and (rollouts or budget.seconds)  # a time budget may be too short for any episode
    assert all(rollout.graded for rollout in rollouts)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_budget_applies_to_other_agents(hospital: World, workers: int) -> None:
    choice: dict[str, Any] = {"tasks": "01", "variations": "0-5", "world": hospital, "workers": workers}
    assert len(list(run(ENV_ID, "idle", budget=Budget(episodes=2), **choice))) == 2


@pytest.mark.parametrize("budget", [{"episodes": 0}, {"tokens": -1}, {"seconds": 0.0}])
def test_invalid_budgets(budget: dict[str, Any]) -> None:
    with pytest.raises(FhirGymError, match="must be positive"):
        Budget(**budget)
    with pytest.raises(FhirGymError, match="needs the prices"):
        Budget(cost=1.0)
    with pytest.raises(FhirGymError, match="a price must be a number from 0"):
        Prices(-1.0)
    with pytest.raises(FhirGymError, match="concurrency"):
        run(ENV_ID, "idle", concurrency=0)


class Failing(Slow):
    """An agent that raises an exception after some actions."""

    def __init__(self, failure: Exception, after: int) -> None:
        super().__init__()
        self.failure, self.left = failure, after

    async def complete(self, messages: Sequence[Message], opening: Opening) -> Completion:
        self.left -= 1
        if self.left < 0:
            raise self.failure
        return await super().complete(messages, opening)


def test_a_provider_failure_affects_only_its_episode(hospital: World) -> None:
    agent = Failing(InfraError("down"), 9)
    rollouts = list(run(ENV_ID, agent, tasks="01", variations="0-7", concurrency=4, world=hospital))
    assert len(rollouts) == 8
    lost = [rollout for rollout in rollouts if rollout.stop_reason == "infra_error"]
    assert 0 < len(lost) < 8
    assert all((r.reward, r.success, r.error) == (None, None, "down") for r in lost)
    assert all(rollout.graded for rollout in rollouts if rollout not in lost)


@pytest.mark.parametrize(
    ("failure", "told"), [(EndpointError("no such model"), EndpointError), (ZeroDivisionError("a bug"), AgentError)]
)
def test_permanent_failures_end_the_run(hospital: World, failure: Exception, told: type[Exception]) -> None:
    agent = Failing(failure, 0)
    with pytest.raises(told, match=str(failure)):
        list(run(ENV_ID, agent, tasks="01", variations="0-7", concurrency=4, world=hospital))
    assert agent.closed == 1


def test_taking_only_some_rollouts_stops_the_rest(hospital: World) -> None:
    agent = Slow(0.01)
    running = run(ENV_ID, agent, tasks="01", variations="0-900", world=hospital)
    assert len(list(islice(running, 3))) == 3
    running.close()  # type: ignore[attr-defined]
    assert agent.closed == 1 and agent.at_once == 0 and agent.completions < 200


def test_a_run_does_not_hurry_far_ahead_of_its_caller(hospital: World) -> None:
    agent = Slow(0.0)
    running = run(ENV_ID, agent, tasks="01", variations="0-900", concurrency=2, world=hospital)
    next(running)
    for _ in range(400):  # the first rollout counts until the caller asks for the next one
        time.sleep(0.01)
        if agent.completions >= 16:
            break
    time.sleep(0.1)
    assert agent.completions == 16  # four episodes for each of two, with two completions each
    assert len(list(islice(running, 20))) == 20
    running.close()  # type: ignore[attr-defined]


def test_resume_runs_only_missing_episodes_of_the_same_run(hospital: World, tmp_path: Path) -> None:
    path, agent = tmp_path / "r.jsonl", Failing(InfraError("down"), 9)
    choice: dict[str, Any] = {"tasks": "01", "variations": "0-7"}
    write_rollouts(path, run(ENV_ID, agent, world=hospital, concurrency=4, **choice))

    def lacking(agent: Slow, **other: Any) -> int:
        return len(plan(ENV_ID, **(choice | other)).unfinished(path, agent, hospital).episodes)

    left = lacking(agent)
    assert 0 < left < 8
    stranger = Slow()
    stranger.settings = {"model": "another"}
    assert (
        lacking(stranger)
        == lacking(agent, seed=1)
        == lacking(agent, max_steps=3)
        == lacking(agent, grading="evidence")
        == 8
    )
    stranger = Slow()
    stranger.name = "another"
    assert lacking(stranger) == 8
    assert write_rollouts(path, run(ENV_ID, Slow(), world=hospital, resume=path, **choice)) == left
    graded = [rollout for rollout in read_rollouts(path) if rollout.graded]
    assert lines(graded) == lines(list(run(ENV_ID, Slow(), world=hospital, **choice)))


_RUN = """
import sys
import fhir_gym
from fhir_gym import worlds

if __name__ == "__main__":
    world_path, target, base_url, timeout = sys.argv[1:]
    choice = {"variations": "0-1", "tasks": ["01", "02a", "02b"], "repeats": 11, "seed": 3}
    agent = fhir_gym.make_agent(
        "chat", model="scripted", base_url=base_url, protocol="tools", timeout=float(timeout), backoff=0.01, retries=12
    )
    with worlds.load(world_path) as world:
        running = fhir_gym.run("FHIRAgent/Appointment-v0", agent, world=world, concurrency=32, resume=target, **choice)
        fhir_gym.write_rollouts(target, running)
"""


def kept(path: Path) -> list[Rollout]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kill may truncate a line
        return list(read_rollouts(path)) if path.exists() else []


def wait_for_a_lull(path: Path) -> None:
    """Wait until the process writes no line, because Ctrl-C during a write would stop only the writer."""
    size = -1
    while size != path.stat().st_size:
        size = path.stat().st_size
        time.sleep(0.03)


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.usefixtures("sigint_interrupts")
def test_a_killed_and_resumed_run_with_faults_gives_the_same_records(
    hospital: World, tmp_path: Path, blow: signal.Signals
) -> None:
    pytest.importorskip("openai")
    from fhir_gym.testing import ChatServer, GoldOverChat, random_faults

    gold = GoldOverChat(hospital, [(ENV_ID, key, number) for key in ("01", "02a", "02b") for number in (0, 1)])
    script, calm, stormy = tmp_path / "script.py", tmp_path / "calm.jsonl", tmp_path / "stormy.jsonl"
    script.write_text(_RUN)
    command = [sys.executable, str(script), str(hospital.path)]
    with ChatServer(gold) as server:
        subprocess.run([*command, str(calm), server.base_url, "60"], check=True)
    with ChatServer(gold, faults=random_faults(0.2), delay=0.15) as server:
        with subprocess.Popen(
            [*command, str(stormy), server.base_url, "2"], stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            while not (stormy.exists() and stormy.read_bytes().count(b"\n") >= 5) and process.poll() is None:
                time.sleep(0.01)
            time.sleep(0.2)  # longer than one reply, so that a running episode has a step
            os.killpg(process.pid, blow)
            process.communicate(timeout=60)
        before = kept(stormy)
        graded = [rollout for rollout in before if rollout.graded]
        assert 5 <= len(graded) < 66, "it was to be stopped in the middle"
        if blow == signal.SIGINT:
            assert any(rollout.stop_reason == "interrupted" and rollout.steps for rollout in before)
        subprocess.run([*command, str(stormy), server.base_url, "2"], check=True)
        assert server.faulted > 20
    undisturbed = kept(calm)
    assert len(undisturbed) == 66 and all(rollout.success for rollout in undisturbed)
    union = [rollout for rollout in read_rollouts(stormy) if rollout.graded]
    assert lines(union) == lines(undisturbed)
    assert sum(rollout.timings.retries for rollout in union if rollout.timings) > 20
