"""Measure a report of 10,000 episodes: `python -m benchmarks.report [--episodes 10000]`.

Writes an experiment folder with five configurations. Its records are those of the chat agent with tool calls, which
follows the reference solutions after several unnecessary searches; outcomes and token counts are drawn at random.
Another process then reads the folder and writes the report. Prints one JSON line:

- ``megabytes``: size of the rollout files;
- ``seconds``: wall time from the start of the process, with imports, to the last file of the report;
- ``processor_seconds``: the process's processor time;
- ``peak_mib``: the process's largest resident memory.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from fhir_gym import worlds
from fhir_gym.agents import ChatAgent, Usage
from fhir_gym.rollouts import Rollout, run
from fhir_gym.tasks import get_pack, task_keys
from fhir_gym.testing import ChatServer, GoldOverChat

PACKS = ("FHIRAgent/Appointment-v0", "FHIRAgent/GeneticTesting-v0")
CONFIGURATIONS = ("baseline", "memory", "memory-spec", "memory-spec-runtime", "spec")
REPEATS = 3
VARIATIONS = 4
_EXTRA_TURNS = 5


def _records() -> list[Rollout]:
    """Return one record for each task and variation."""
    rollouts: list[Rollout] = []
    for env_id in PACKS:
        with worlds.load(get_pack(env_id).world) as world:
            episodes = [(env_id, key, number) for key in task_keys(env_id) for number in range(VARIATIONS)]
            with ChatServer(GoldOverChat(world, episodes)) as server:
                agent = ChatAgent(model="scripted", base_url=server.base_url, protocol="tools")
                rollouts += run(env_id, agent, variations=range(VARIATIONS), world=world)
    return rollouts


def _varied(record: Rollout, repeat: int, chance: random.Random) -> Rollout:
    """Return the record of another repeat, with more turns and another outcome."""
    assert record.verdict is not None
    success = chance.random() < 0.4 + 0.4 * (len(record.task.title) % 3) / 2
    turns = (*(record.turns[:1] * chance.randint(0, 2 * _EXTRA_TURNS)), *record.turns)
    usage = Usage(prompt=chance.randint(5_000, 60_000), completion=chance.randint(200, 4_000))
    verdict = record.verdict.model_copy(update={"success": success})
    return record.model_copy(
        update={
            "repeat": repeat,
            "turns": turns,
            "steps": len(turns),
            "usage": usage,
            "success": success,
            "reward": float(success),
            "verdict": verdict,
        }
    )


def _write_experiment(folder: Path, episodes: int) -> None:
    records = _records()
    (folder / "rollouts").mkdir(parents=True)
    for number, configuration in enumerate(CONFIGURATIONS):
        chance = random.Random(number)
        every = ((record, repeat) for repeat in range(episodes) for record in records)
        with (folder / "rollouts" / f"{configuration}.jsonl").open("wb") as file:
            for record, repeat in islice(every, episodes // len(CONFIGURATIONS)):
                file.write(_varied(record, repeat, chance).line().encode() + b"\n")


def _measured(folder: Path) -> dict[str, float]:
    """Return the time and the memory of a process that writes the report."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "fhir_gym", "report", str(folder), "--out", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
        "peak_mib": round(used.ru_maxrss / 1024),
    }


def measure_experiment(about: str | None, episodes: int, measured: Callable[[Path], Mapping[str, float]]) -> None:
    """Measure what the command line says, and print one JSON line.

    Args:
        about: Help text of the command.
        episodes: Number of episodes by default.
        measured: Returns the measurements of an experiment folder.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=episodes)
    parser.add_argument("--folder", type=Path, help="Keep the experiment in this folder, and use it if it exists.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary, "experiment")
        if not folder.exists():
            _write_experiment(folder, given.episodes)
        size = sum(file.stat().st_size for file in folder.rglob("*.jsonl"))
        print(json.dumps({"megabytes": round(size / 1e6), **measured(folder)}))


if __name__ == "__main__":
    measure_experiment(__doc__, 10_000, _measured)
