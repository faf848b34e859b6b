"""Measure the tasks of Shift-v0: `python -m benchmarks.shift [--variations N] [--tasks Q1-1 …]`.

Prints one JSON line per task, in processor time: a reset to a new and to a prepared variation, a step of the reference
solution, and the grading of the episode. `benchmarks._measure` explains `unit_us`.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from benchmarks._measure import Report, machine_unit, timed
from fhir_gym import Episode, worlds
from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.fhir import World
from fhir_gym.tasks import get_pack, get_task, task_keys
from fhir_gym.tasks.core.variation import variation_cache

__all__ = ["measure_task"]

_PACK = "FHIRAgent/Shift-v0"


@dataclass
class _Figures:
    """Processor times of a task's episodes, in microseconds."""

    new: list[float] = field(default_factory=list)
    prepared: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    grading: list[float] = field(default_factory=list)
    grading_prepared: list[float] = field(default_factory=list)


def measure_task(task: str, world: World, variations: Sequence[int]) -> dict[str, float]:
    """Play the reference solution of each variation twice: newly drawn, and from its prepared start state.

    Args:
        task: Key of the task.
        world: The world.
        variations: The variations. The first one is a warm-up and is not measured.

    Raises:
        RuntimeError: The reference solution failed.
    """
    found = _Figures()
    for number in variations:
        figures = found if number != variations[0] else _Figures()
        variation_cache.clear()
        gc.collect()
        _play(task, number, world, figures, prepared=False)
        variation_cache.reserve(1)
        _play(task, number, world, _Figures(), prepared=True)
        _play(task, number, world, figures, prepared=True)
        variation_cache.release(1)
    whole = sum(found.new) + sum(found.steps) / 2 + sum(found.grading)
    return {
        "steps": round(len(found.steps) / 2 / len(found.new), 1),
        "steps_per_second": round(len(found.steps) / 2 / whole * 1e6),
        "step_ms": round(mean(found.steps) / 1e3, 2),
        "reset_new_p50_ms": round(median(found.new) / 1e3, 1),
        "reset_prepared_p50_ms": round(median(found.prepared) / 1e3, 2),
        "grading_p50_ms": round(median(found.grading) / 1e3, 1),
        "grading_prepared_p50_ms": round(median(found.grading_prepared) / 1e3, 1),
        "grading_max_ms": round(max(found.grading) / 1e3, 1),
    }


def _play(task: str, number: int, world: World, figures: _Figures, *, prepared: bool) -> None:
    """Play one episode of the reference solution; the last action ends and grades it."""
    agent = GoldAgent()
    begun = time.process_time_ns()
    with Episode(_PACK, task=task, variation=number, world=world) as episode:
        prompt = episode.start()
        (figures.prepared if prepared else figures.new).append((time.process_time_ns() - begun) / 1e3)
        agent.reset(prompt, EpisodeContext(_PACK, task, number, world, seed=0, max_steps=0, prompt=prompt))
        observation = prompt
        while True:
            action = agent.act(observation)
            begun = time.process_time_ns()
            step = episode.step(action)
            spent = (time.process_time_ns() - begun) / 1e3
            if step.done:
                break
            figures.steps.append(spent)
            observation = step.observation
        (figures.grading_prepared if prepared else figures.grading).append(spent)
        if not episode.verdict().success:
            raise RuntimeError(f"the reference solution of task {task}, variation {number} failed")


_QUICK = ("Q1-1",)


def main() -> None:
    """Print the measurements of the tasks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shift", description=__doc__)
    parser.add_argument("--variations", type=int, default=20, help="measured variations of each task")
    parser.add_argument("--tasks", nargs="*", help="keys of the tasks; default: all")
    parser.add_argument("--quick", action="store_true", help="one variation of one task")
    options = parser.parse_args()
    count = 1 if options.quick else options.variations
    chosen = options.tasks or (_QUICK if options.quick else task_keys(_PACK))
    with worlds.load(get_pack(_PACK).world) as world:
        report = Report(world.name, world.manifest.total)
        for task in chosen:
            get_task(_PACK, task)  # an unknown task is an error
            unit = median(timed(machine_unit, time.process_time_ns) for _ in range(10))
            figures = measure_task(task, world, range(count + 1))
            report.line(f"shift {task}", n=count, unit_us=round(unit, 1), **figures)


if __name__ == "__main__":
    main()
