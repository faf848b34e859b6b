"""Faults of the network, and processes that are killed, change no resource, no verdict and no number of episodes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fhir_gym import worlds
from fhir_gym.errors import InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.rollouts import Rollout, read_rollouts
from fhir_gym.testing import serving
from tests.fhir import crashing
from tests.fhir.fault_proxy import FAULTS, Exchange, fault_proxy, no_fault

Results = dict[tuple[str, int], Any]


def judged(rollout: Rollout) -> Any:
    """Return the result of an episode without ids and times that the server assigned."""
    verdict = rollout.verdict
    assert verdict is not None
    checks = [(check.name, check.passed, check.level) for check in verdict.checks]
    statuses = [turn.status for turn in rollout.turns]
    return rollout.stop_reason, rollout.success, rollout.light, checks, verdict.evidence, statuses


def results(out: Path) -> Results:
    """Return the result of each episode in a file, which has each once."""
    graded = [rollout for rollout in read_rollouts(out) if rollout.graded]
    counted = Counter((rollout.task.key, rollout.task.variation) for rollout in graded)
    assert set(counted.values()) == {1}
    return {(rollout.task.key, rollout.task.variation): judged(rollout) for rollout in graded}


def expected(world: World, folder: Path, tasks: Sequence[str]) -> Results:
    """Return the results on the embedded server."""
    crashing.play(world, None, folder / "embedded.jsonl", tasks)
    found = results(folder / "embedded.jsonl")
    assert len(found) == len(tasks) * len(crashing.VARIATIONS)
    assert {success for _, success, *_ in found.values()} == {True, False}
    return found


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.fhir.adapters.remote.SETTLING", crashing.SETTLING)


@pytest.fixture(scope="module")
def server(hospital: World) -> Iterator[str]:
    with serving(hospital) as url:
        yield url


def is_restored(world: World, server: str) -> bool:
    return worlds.compare(world, server).equal


class Faulty:
    """Lets a share of the requests fail, each with a random fault."""

    def __init__(self, seed: int, share: float) -> None:
        self._random, self.share = Random(seed), share
        self.seen: Counter[str] = Counter()

    def __call__(self, exchange: Exchange) -> None:
        fault = self._random.choice(FAULTS) if self._random.random() < self.share else no_fault
        self.seen[fault.__name__] += 1
        fault(exchange)


@pytest.mark.slow
def test_faults_of_the_network(hospital: World, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, embedded = crashing.FEW_TASKS, expected(hospital, tmp_path, crashing.FEW_TASKS)
    monkeypatch.setattr("fhir_gym.fhir.adapters.remote_client.sleep", lambda _: None)
    faulty, out = Faulty(seed=1, share=0.05), tmp_path / "rollouts.jsonl"
    with fault_proxy(server, faulty) as url:
        for _ in range(60):
            try:
                crashing.play(hospital, url, out, tasks)
            except InfraError:
                continue  # the first request failed
            if len(results(out)) == len(embedded):
                break
        faulty.share = 0
        RemoteSession(url, hospital).close()
    assert set(faulty.seen) == {fault.__name__ for fault in (*FAULTS, no_fault)}, "every fault occurred"
    assert results(out) == embedded
    assert is_restored(hospital, server)


class Killer:
    """Kills a process at one of its requests: before the server has it, before its answer, or just after it."""

    def __init__(self) -> None:
        self.process: multiprocessing.process.BaseProcess | None = None
        self.after, self.stage, self.pause = 0, "", 0.0
        self.requests = 0

    def __call__(self, exchange: Exchange) -> None:
        self.requests += 1
        if self.process is None or self.requests != self.after:
            return no_fault(exchange)
        if self.stage == "unsent":
            self._kill()
            exchange.close()
        elif self.stage == "unanswered":
            exchange.forward()
            self._kill()
            exchange.close()
        else:
            no_fault(exchange)
            time.sleep(self.pause)
            self._kill()

    def _kill(self) -> None:
        assert self.process is not None and self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)


def killed(
    kills: int, world: World, server: str, tmp_path: Path, tasks: Sequence[str], *, every: int = 1
) -> Counter[str]:
    """Kill a run at random points, and after each kill open the server again. Return the number of kills by stage.

    After every `every`-th kill, all resources are compared with those of the world: what a kill left would remain.
    """
    embedded = expected(world, tmp_path, tasks)
    random, killer, seen = Random(7), Killer(), Counter[str]()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.fhir.crashing"])
    out, state = tmp_path / "0.jsonl", os.environ["FHIR_GYM_STATE"]
    with fault_proxy(server, killer) as url:
        crashing.play(world, url, tmp_path / "whole.jsonl", tasks)
        requests = killer.requests
        while seen.total() - seen["recovered"] < kills:
            process = context.Process(target=crashing.play_in_process, args=(world.path, url, out, tasks, state))
            killer.requests, killer.after = 0, random.randint(1, requests * 2 // 3)
            killer.pause = random.uniform(0, 0.01)
            killer.stage = random.choice(["unsent", "unanswered", "answered"])
            process.start()
            killer.process = process
            process.join()
            killer.process = None
            if process.exitcode == -signal.SIGKILL:
                seen[killer.stage] += 1
                session = RemoteSession(url, world)
                seen["recovered"] += bool(session.restored)
                session.close()
                kill = seen.total() - seen["recovered"]
                assert kill % every or is_restored(world, server)
                continue
            assert process.exitcode == 0
            assert results(out) == embedded
            out = tmp_path / f"{seen.total()}.jsonl"
    return seen


on_posix = pytest.mark.skipif(sys.platform == "win32", reason="kills processes with SIGKILL")


@on_posix
@pytest.mark.slow
def test_a_killed_run(hospital: World, server: str, tmp_path: Path) -> None:
    seen = killed(8, hospital, server, tmp_path, crashing.FEW_TASKS, every=8)
    assert seen["recovered"] and len(seen) == 4


@on_posix
@pytest.mark.exhaustive
def test_a_run_that_is_killed_200_times(hospital: World, server: str, tmp_path: Path) -> None:
    seen = killed(200, hospital, server, tmp_path, crashing.TASKS, every=5)
    print(dict(seen))
    assert seen["recovered"] >= 50
