"""Measure the speed of environments: `python -m benchmarks.env [--observations N] [--quick]`.

Prints one JSON line per measurement. Steps and resets are `gymnasium.Env` calls in one process, including prompt and
response texts. A gold episode resets to a new variation and plays the reference solution to its verdict; its CPU time
is reported as the mean over a pack's tasks, and that of its calls as the median and the 95th percentile over all
episodes. `benchmarks._measure` explains `unit_us` and `units`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import mean, median

import gymnasium as gym

import fhir_gym
from benchmarks._gold import gold_episodes
from benchmarks._measure import Report, measure
from benchmarks.large_world import large_world
from fhir_gym import worlds
from fhir_gym.fhir import World
from fhir_gym.tasks import get_pack, pack_ids

__all__ = ["gold", "main"]

_ENV_ID = "FHIRAgent/Appointment-v0"
_CREATE = (
    'POST /Patient\n{"resourceType": "Patient", "name": [{"family": "Lee", "given": ["Ann"]}], "gender": "female"}'
)


def run(world: World, *, quick: bool) -> None:
    """Measure everything on one world."""
    n = 50 if quick else 2_000
    report = Report(world.name, world.manifest.total)
    patients = world.ids("Patient")
    # The step limit must not end the episode during a measurement.
    env = gym.make(_ENV_ID, world=world, max_steps=10 * n, disable_env_checker=True)

    def read(call: int) -> None:
        env.step(f"GET /Patient/{patients[call % len(patients)]}")

    def search(call: int) -> None:
        env.step(f"GET /Observation?patient={patients[call % len(patients)]}&_count=5")

    env.reset(seed=0)
    for name, action in (("read", read), ("search, 5 of a page", search), ("create", lambda _: env.step(_CREATE))):
        times = measure(action, n)
        report.times(f"step: {name}", times, per_second=round(len(times) / sum(times) * 1e6))

    def start(task: str, variation: int) -> None:
        env.reset(options={"task": task, "variation": variation})

    report.times(
        "reset to a prepared start", measure(lambda _: start("14a", 3), n, prepare=lambda _: env.step(_CREATE))
    )
    env.close()
    _episodes(world, report, ("01", "14a") if quick else None, 1 if quick else 40)


def _episodes(world: World, report: Report, tasks: Sequence[str] | None, variations: int) -> None:
    """Time whole episodes played by `run`, including preparation, grading and records."""
    start = time.perf_counter()
    count = steps = 0
    for rollout in fhir_gym.run(_ENV_ID, "gold", tasks=tasks, variations=range(variations), world=world):
        count, steps = count + 1, steps + rollout.steps
    seconds = time.perf_counter() - start
    report.line("episodes of gold", n=count, per_second=round(count / seconds, 1), steps=steps)


def gold(packs: Sequence[str], variations: int) -> None:
    """Measure gold episodes of packs, each on its default world: their calls, and their mean over all tasks."""
    means: list[float] = []
    for env_id in packs:
        with worlds.load(get_pack(env_id).world) as world:
            times = gold_episodes(env_id, world, range(variations + 1))
            units = {task: median(episodes) for task, episodes in times.episodes.items()}
            dearest = max(units, key=lambda task: units[task])
            report = Report(world.name, world.manifest.total)
            report.times(f"reset to a new variation: {env_id}", sorted(times.resets))
            report.times(f"step: {env_id}", sorted(times.steps))
            report.times(f"last step, graded: {env_id}", sorted(times.last_steps))
            more = {"dearest_task": dearest, "dearest_units": round(units[dearest], 2)}
            _gold(report, env_id, list(units.values()), **more)
            means += units.values()
    _gold(Report("all", 0), "all packs", means)


def _gold(report: Report, pack: str, units: list[float], **more: object) -> None:
    report.line(f"gold episode: {pack}", n=len(units), units=round(mean(units), 2), **more)


def main() -> None:
    """Print all measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.env", description=__doc__)
    parser.add_argument("--observations", type=int, default=200_000, help="size of the large world")
    parser.add_argument("--quick", action="store_true", help="few calls, no large world")
    options = parser.parse_args()
    if options.quick:
        gold(["FHIRAgent/GeneticTesting-v0"], 1)
    else:
        gold(pack_ids(), 10)
    with worlds.load("hospital-small") as small:
        run(small, quick=options.quick)
    if not options.quick:
        with World.open(large_world(observations=options.observations)) as large:
            run(large, quick=False)


if __name__ == "__main__":
    main()
