"""Measure the speed of MedAgentBench.

    python -m benchmarks.medagentbench [--world cohort] [--task-file FILE --data WORLD]

Prints one JSON line per measurement. The measured calls are those of `gymnasium.Env`, including prompt and response
texts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import gymnasium as gym

import fhir_gym
from benchmarks._measure import Report, measure, percentile
from benchmarks.official_agreement import open_data
from fhir_gym.fhir import World
from fhir_gym.tasks import task_set

__all__ = ["main"]

_ENV_ID = "FHIRAgent/MedAgentBench-v0"
_CREATE = 'POST /Basic\n{"resourceType": "Basic", "code": {"text": "to be undone"}}'


@dataclass(frozen=True)
class _Sizes:
    """Numbers of resets per task, of searches, of variations of the gold run, and of worker processes."""

    resets: int = 200
    searches: int = 1_000
    gold: int = 30
    workers: int = 8


def resets(world: World, report: Report, sizes: _Sizes) -> None:
    """Time resets of each task: to new variations, and to a variation that is already prepared."""
    env = gym.make(_ENV_ID, world=world, disable_env_checker=True)
    unseen = count()

    def start(task: str, variation: int) -> None:
        env.reset(options={"task": task, "variation": variation})

    for key in task_set(_ENV_ID):

        def meet(_: int, key: str = key) -> None:
            start(key, next(unseen))

        times = measure(meet, sizes.resets)
        busy = measure(meet, sizes.resets, clock=time.process_time_ns)
        report.times(f"reset to a new variation: task {key}", times, cpu_p50_us=round(percentile(busy, 0.5), 1))
    times = measure(lambda _: start("10", 3), sizes.resets, prepare=lambda _: env.step(_CREATE))
    report.times("reset to a prepared start", times)
    env.close()


def searches(world: World, report: Report, sizes: _Sizes) -> None:
    """Time the searches of the reference solutions, and searches for the world's own patients."""
    env = gym.make(_ENV_ID, world=world, max_steps=10 * sizes.searches, disable_env_checker=True)
    for key, task in task_set(_ENV_ID).items():
        times = []
        for variation in range(sizes.searches // 10):
            env.reset(options={"task": key, "variation": variation})
            search = next(task.gold(task.variation(variation, world).params))
            start = time.perf_counter_ns()
            env.step(search.text())
            times.append((time.perf_counter_ns() - start) / 1_000)
        report.times(f"step: the search of task {key}", sorted(times))
    patients = world.ids("Patient")
    for name, query in (
        ("latest of a test", "code=GLU&_sort=-date&_count=1"),
        ("a page of a test", "code=GLU"),
        ("a day of a test", "code=MG&date=ge2023-11-12T10:15:00Z&_sort=-date&_count=200"),
    ):

        def ask(call: int, query: str = query) -> None:
            env.step(f"GET /Observation?patient={patients[call % len(patients)]}&{query}")

        env.reset(options={"task": "07", "variation": 0})
        report.times(f"step: {name}, a patient of the world", measure(ask, sizes.searches))
    env.close()


def gold(world: World, report: Report, name: str, **choice: Any) -> None:
    """Time a run of the reference solutions."""
    start, cpu = time.perf_counter(), time.process_time()
    rollouts = list(fhir_gym.run(_ENV_ID, "gold", world=world, **choice))
    report.line(
        name,
        n=len(rollouts),
        successes=sum(rollout.success is True for rollout in rollouts),
        seconds=round(time.perf_counter() - start, 2),
        cpu_seconds=round(time.process_time() - cpu, 2),
    )


def workers(world: World, report: Report, number: int, variations: int) -> None:
    """Measure the memory of worker processes that share a world file, while all of them are alive."""
    context = get_context("spawn")
    barrier, simple_queue = context.Barrier(number), context.SimpleQueue()
    processes = [
        context.Process(target=_work, args=(world, range(n, variations, number), barrier, simple_queue))
        for n in range(number)
    ]
    for process in processes:
        process.start()
    each = [simple_queue.get() for _ in processes]
    for process in processes:
        process.join()
    report.line(
        f"memory of each of {number} workers",
        file_mib=round(world.path.stat().st_size / 2**20),
        **{f"{name}_mib": _middle(memory[name] for memory in each) for name in ("rss", "pss", "uss")},
    )


def _work(world: World, variations: range, barrier: Barrier, found: Any) -> None:
    for rollout in fhir_gym.run(_ENV_ID, "gold", world=world, variations=variations):
        if not rollout.success:
            raise RuntimeError(f"task {rollout.task.key}, variation {rollout.task.variation} failed")
    barrier.wait()
    memory = _memory()
    barrier.wait()  # pages count as shared only while the other workers are alive
    found.put(memory)


def _memory() -> dict[str, float]:
    """Return resident, proportional and unique memory of this process in MiB (Linux)."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return {"rss": sizes["Rss"], "pss": sizes["Pss"], "uss": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def _middle(values: Iterator[float]) -> float:
    return round(percentile(sorted(values), 0.5), 1)


def run(world: World, sizes: _Sizes) -> None:
    """Run all measurements on one world."""
    report = Report(world.name, world.manifest.total)
    resets(world, report, sizes)
    searches(world, report, sizes)
    gold(world, report, "gold on ten tasks of ours", variations=range(sizes.gold))
    if Path("/proc/self/smaps_rollup").exists():
        workers(world, report, sizes.workers, sizes.gold)


def main(arguments: list[str] | None = None) -> None:
    """Print all measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.medagentbench", description=__doc__)
    parser.add_argument("--world", help="world for the pack's own tasks (default: cohort; with --quick hospital-small)")
    parser.add_argument("--task-file", help="also run the tasks of the benchmark's task file")
    parser.add_argument("--data", help="patients of the task file: a world, or a folder of NDJSON files to import")
    parser.add_argument("--quick", action="store_true", help="few calls")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        name = options.world or ("hospital-small" if options.quick else "cohort")
        world = stack.enter_context(open_data(name, stack))
        run(world, _Sizes(2, 10, 1, 2) if options.quick else _Sizes())
        if options.task_file:
            data = stack.enter_context(open_data(options.data or name, stack))
            report = Report(data.name, data.manifest.total)
            for grading in ("official", "state"):
                label = f"gold on the official tasks, {grading}"
                gold(data, report, label, task_file=options.task_file, grading=grading)


if __name__ == "__main__":
    main()
