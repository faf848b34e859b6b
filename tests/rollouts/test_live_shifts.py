"""A live shift is recorded the same with any number of workers, and after a kill in the middle of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout, read_rollouts, run, write_rollouts
from fhir_gym.rollouts.timeline import replay

SHIFT = "FHIRAgent/Shift-v0"
DIALS = {"minutes": 30, "load": 1, "policies": 10, "events": 2, "asking": 2}
_AGENT = '''
import os
import time
from pathlib import Path

from fhir_gym.agents import GoldAgent


class Pausing(GoldAgent):
    """Pauses in the middle of the second shift, if PAUSED_AT is the path of a file to create."""

    def reset(self, observation, context):
        super().reset(observation, context)
        self.left = 12 if context.variation == 1 and "PAUSED_AT" in os.environ else -1

    def act(self, observation):
        if self.left == 0:
            Path(os.environ["PAUSED_AT"]).touch()
            time.sleep(60)
        self.left -= 1
        return super().act(observation)
'''


def lines(rollouts: list[Rollout]) -> list[str]:
    return [rollout.line(timings=False) for rollout in rollouts]


@pytest.fixture(scope="module")
def shifts(hospital: World) -> list[Rollout]:
    return list(run(SHIFT, "gold", variations="0-1", level=3, dials=DIALS, world=hospital))


@pytest.mark.slow
def test_workers_and_replays_give_the_same_shifts(hospital: World, tmp_path: Path, shifts: list[Rollout]) -> None:
    assert all(shift.success and "+minutes=30" in shift.task.key for shift in shifts)
    path = tmp_path / "shifts.jsonl"
    for workers in (1, 2):
        rollouts = run(SHIFT, "gold", variations="0-1", level=3, dials=DIALS, world=hospital, workers=workers)
        write_rollouts(path, rollouts, overwrite=True)
        assert lines(list(read_rollouts(path))) == lines(shifts)
    replayed = [replay(rollout, hospital) for rollout in read_rollouts(path)]
    assert [timeline.verdict for timeline in replayed] == [shift.verdict for shift in shifts]
    assert any(entry.who != "agent" for timeline in replayed for entry in timeline.entries)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_a_kill_in_the_middle_of_a_shift_changes_no_record(
    hospital: World, tmp_path: Path, shifts: list[Rollout]
) -> None:
    (tmp_path / "pausing.py").write_text(_AGENT)
    paused, out = tmp_path / "paused", tmp_path / "out.jsonl"
    dials = [part for name, value in DIALS.items() for part in ("--dial", f"{name}={value}")]
    command = [sys.executable, "-m", "fhir_gym", "rollout", SHIFT, "--agent", "pausing:Pausing", "--level", "3", *dials]
    command += ["--variations", "0-1", "--workers", "2", "--world", str(hospital.path), "--resume", "--out", str(out)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}
    with subprocess.Popen(
        command, env=env | {"PAUSED_AT": str(paused)}, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 60
        while not (paused.exists() and out.exists() and out.read_bytes().count(b"\n")) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    assert [rollout.task.variation for rollout in read_rollouts(out)] == [0]
    subprocess.run(command, env=env, check=True, capture_output=True)
    assert lines(list(read_rollouts(out))) == lines(shifts)
