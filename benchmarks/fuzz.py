"""Find agent output that crashes or stalls a step: `python -m benchmarks.fuzz --steps N --seed S [--quick]`.

Each round draws a task and a variation from the seed and the round's number, and plays episodes of almost valid actions
(`benchmarks._hostile`) to the verdict. Every 50,000 steps and at the end, the script prints a JSON line: steps,
exceptions, CPU time per step in milliseconds (the last step of an episode includes its verdict), memory, and a digest
of all observations, which depends only on the seed. After an exception, the exit code is 1, and `--only ROUND` repeats
the round of the exception.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
import traceback
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks._hostile import HostileActions, SampleRecords
from benchmarks._measure import memory_mib, percentile
from fhir_gym import Episode, tasks, worlds
from fhir_gym.fhir import World
from fhir_gym.tasks.core.grader import GRADINGS

__all__ = ["Fuzz", "main"]

_EPISODES = 12
"""Episodes per round. A round plays several, because drawing a variation takes longer than playing an episode."""
_STEPS = 12
_OFTEN = 50_000
"""Number of steps between two JSON lines."""
_SLOWEST = 12


@dataclass(slots=True)
class Fuzz:
    """Plays rounds and collects the results.

    Attributes:
        seed: Seed of all rounds.
        step_us: CPU time of each step in microseconds.
        slowest: The slowest steps, with the values needed to reproduce them.
        exceptions: Exceptions that were found, with the values needed to reproduce them.
        statuses: Number of responses by status; 0 stands for an invalid action or the end of the episode.
        digest: CRC-32 of all observations.
    """

    seed: int
    step_us: array[int] = field(default_factory=lambda: array("Q"))
    slowest: list[dict[str, Any]] = field(default_factory=list)
    exceptions: list[dict[str, Any]] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    digest: int = 0
    _worlds: dict[str, tuple[World, SampleRecords]] = field(default_factory=dict)

    def round(self, number: int, most: int) -> None:
        """Play some episodes of one variation.

        Args:
            number: Number of the round.
            most: Maximum number of steps.
        """
        rng = random.Random(f"{self.seed}/{number}")
        env_id = rng.choice(tasks.pack_ids())
        key, variation = rng.choice(tasks.task_keys(env_id)), rng.randrange(2_000)
        world, samples = self._world(tasks.get_pack(env_id).world)
        task = tasks.get_task(env_id, key)
        grading = rng.choice([grading for grading in GRADINGS if grading in task.gradings])
        about = {"seed": self.seed, "round": number, "env": env_id, "task": key, "variation": variation}
        hostile = HostileActions(rng, samples)
        action = "make"
        try:
            with Episode(
                env_id, task=key, variation=variation, world=world, grading=grading, max_steps=_STEPS
            ) as episode:
                for action in self._actions(episode, hostile, most):
                    self._step(episode, hostile, action, about)
        except Exception as error:  # the purpose is to find any exception
            place = traceback.extract_tb(error.__traceback__)[-1]
            raised = f"{type(error).__name__}: {error}"[:500]
            found = {"raised": raised, "at": f"{Path(place.filename).name}:{place.lineno}", "action": action[:4_000]}
            self.exceptions.append({"name": "exception", **about, "grading": grading, **found})

    def _actions(self, episode: Episode, hostile: HostileActions, most: int) -> Iterator[str]:
        """Yield actions until the round reaches its limit of episodes or of steps."""
        for _ in range(_EPISODES):
            episode.start()
            while most and not self._done:
                most -= 1
                yield hostile.text()
            self._done = False
            if not most:
                return

    _done: bool = False

    def _step(self, episode: Episode, hostile: HostileActions, action: str, about: dict[str, Any]) -> None:
        begun = time.process_time_ns()
        step = episode.step(action)
        took = (time.process_time_ns() - begun) // 1_000
        self.step_us.append(took)
        self._done = step.done
        self.statuses[step.info["status"]] += 1
        self.digest = zlib.crc32(step.observation.encode("utf-8", "surrogatepass"), self.digest)
        hostile.read(step.observation)
        if len(self.slowest) < _SLOWEST or took > self.slowest[-1]["us"]:
            shown = {
                "name": "slow",
                "us": took,
                **about,
                "done": step.done,
                "length": len(action),
                "action": action[:300],
            }
            self.slowest = sorted([*self.slowest, shown], key=lambda record: -record["us"])[:_SLOWEST]

    def _world(self, name: str) -> tuple[World, SampleRecords]:
        if name not in self._worlds:
            world = worlds.load(name)
            self._worlds[name] = world, SampleRecords(world)
        return self._worlds[name]

    def results(self) -> dict[str, Any]:
        """Return the results as one JSON object."""
        times = sorted(map(float, self.step_us))
        shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p99.9_ms": 0.999, "max_ms": 1.0}
        return {
            "name": "fuzz",
            "seed": self.seed,
            "steps": len(times),
            "exceptions": len(self.exceptions),
            **({key: round(percentile(times, share) / 1_000, 3) for key, share in shares.items()} if times else {}),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "digest": f"{self.digest:08x}",
        }


def main() -> None:
    """Fuzz and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="1,500 steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="play only this round, to reproduce an exception")
    asked = parser.parse_args()
    asked.steps = 1_500 if asked.quick else asked.steps
    fuzz = Fuzz(asked.seed)
    memory: list[float] = []
    told = seen = 0
    for number in count() if asked.only is None else [asked.only]:
        fuzz.round(number, asked.steps - len(fuzz.step_us))
        for found in fuzz.exceptions[seen:]:
            print(json.dumps(found), flush=True)
        seen = len(fuzz.exceptions)
        memory.append(memory_mib("self", own=True))
        if len(fuzz.step_us) >= asked.steps:
            break
        if len(fuzz.step_us) - told >= _OFTEN:
            told = len(fuzz.step_us)
            _sum_up(fuzz, memory)
    for slow in fuzz.slowest:
        print(json.dumps(slow))
    _sum_up(fuzz, memory)
    sys.exit(1 if fuzz.exceptions else 0)


def _sum_up(fuzz: Fuzz, memory: list[float]) -> None:
    """Print the results, the private memory of the process at start, end and peak, and its peak resident memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    own = {"own_start_mib": memory[0], "own_end_mib": memory[-1], "own_peak_mib": max(memory)}
    print(json.dumps({**fuzz.results(), **own, "rss_peak_mib": round(peak, 1)}), flush=True)


if __name__ == "__main__":
    main()
