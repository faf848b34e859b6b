"""A killed main process leaves no worker behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from fhir_gym import processes

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")

_PLAIN = """
import multiprocessing, os, time
from fhir_gym.processes import end_with_parent

def work():
    end_with_parent()
    end_with_parent()
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(60)

if __name__ == "__main__":
    for _ in range(2):
        multiprocessing.get_context("CONTEXT").Process(target=work).start()
    time.sleep(60)
"""
_ROLLOUTS = """
import os
import fhir_gym
from fhir_gym.agents import IdleAgent

class Agent(IdleAgent):
    def act(self, observation):
        os.write(1, f"{os.getpid()}\\n".encode())
        return super().act(observation)

if __name__ == "__main__":
    for rollout in fhir_gym.run("FHIRAgent/Appointment-v0", Agent(), variations="0-199", workers=2):
        pass
"""
_ENVIRONMENT = _PLAIN.replace(
    "from fhir_gym.processes import end_with_parent", "from fhir_gym.envs import FHIREnv"
).replace("    end_with_parent()\n    end_with_parent()\n", "    env = FHIREnv('FHIRAgent/Appointment-v0')\n")


def outlived_by(script: Path) -> set[int]:
    """Kill a script and return the ids of its workers that still run; each worker prints its process id."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) as main:
        assert main.stdout is not None
        workers: set[int] = set()
        while len(workers) < 2:
            workers.add(int(main.stdout.readline()))
        assert all(map(runs, workers))
        main.kill()
        main.wait()
        deadline = time.monotonic() + 10
        while any(map(runs, workers)) and time.monotonic() < deadline:
            time.sleep(0.02)
        left = set(filter(runs, workers))
        for worker in left:
            os.kill(worker, signal.SIGKILL)
        return left


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_a_worker_ends_with_its_parent(tmp_path: Path, context: str) -> None:
    script = tmp_path / "main.py"
    script.write_text(_PLAIN.replace("CONTEXT", context))
    assert outlived_by(script) == set()


@pytest.mark.slow
@pytest.mark.parametrize("code", [_ROLLOUTS, _ENVIRONMENT], ids=["rollouts", "environments"])
def test_workers_of_runs_and_envs_end_with_their_parent(tmp_path: Path, code: str) -> None:
    script = tmp_path / "main.py"
    script.write_text(code.replace("CONTEXT", "spawn"))
    assert outlived_by(script) == set()


def test_an_exception_ends_the_workers_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), processes.worker_pool(1, _two) as submit:
        assert submit(_add, 1).result() == 3
        sleeping = submit(_sleep)
        raise KeyboardInterrupt
    with pytest.raises((BrokenProcessPool, CancelledError)):  # the call may not have started
        sleeping.result()


def _two() -> int:
    return 2


def _add(prepared: int, number: int) -> int:
    return prepared + number


def _sleep(prepared: int) -> None:
    time.sleep(600)
