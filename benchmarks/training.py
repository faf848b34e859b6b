"""Speed of training: `python -m benchmarks.training [--variations N] [--seconds S] [--quick]`.

Prints one JSON line per measurement. All measurements use the 43 tasks of Appointment and GeneticTesting. Resets and
episodes of the reference solution are measured with new variations and with start states in memory. If
Stable-Baselines3 is installed, `MenuEnv` is measured under a random policy in `DummyVecEnv` (16 environments) and in
`SubprocVecEnv` (2 processes), with all start states in memory. Times are CPU times, except for `SubprocVecEnv`.
`times_prototype` is the ratio to the 430 steps per second of the first prototype, learner included.
`benchmarks._measure` explains `unit_us` and `units`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np

import fhir_gym
from benchmarks._measure import Report, Times, machine_unit, timed
from fhir_gym import worlds
from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.envs import FHIREnv
from fhir_gym.fhir import World
from fhir_gym.tasks import task_set
from fhir_gym.tasks.core.variation import variation_cache
from fhir_gym.training.menu import MenuEnv, Templates, learn_templates

__all__ = ["Episodes", "main", "menu_steps"]

_PACKS = ("FHIRAgent/Appointment-v0", "FHIRAgent/GeneticTesting-v0")
_PROTOTYPE = 430
_ENVS = 16
_PROCESSES = 2
_LEARNT_FROM = 20


class Episodes:
    """Gold episodes of all tasks, with the times of their resets and steps.

    Args:
        world: The world.
        variations: The variations.
        prepared: Number of start states to keep in memory.

    Attributes:
        resets: Times of the resets in microseconds.
        steps: Times of the steps in microseconds.
    """

    def __init__(self, world: World, variations: Sequence[int], prepared: int = 0) -> None:
        self._world, self._variations = world, variations
        self._envs = {env_id: FHIREnv(env_id, world=world, prepared=prepared) for env_id in _PACKS}
        self.resets: list[float] = []
        self.steps: list[float] = []

    def play(self, clock: Callable[[], int]) -> None:
        """Play one episode of each variation of each task, and measure it anew."""
        self.resets, self.steps = [], []
        for variation in self._variations:
            for env_id, env in self._envs.items():
                for task in task_set(env_id):
                    self._episode(env_id, env, task, variation, clock)

    def _episode(self, env_id: str, env: FHIREnv, task: str, variation: int, clock: Callable[[], int]) -> None:
        observation, agent, done = "", GoldAgent(), False

        def reset() -> None:
            nonlocal observation
            observation, _ = env.reset(options={"task": task, "variation": variation})

        def step() -> None:
            nonlocal observation, done
            observation, _, terminated, truncated, _ = env.step(action)
            done = terminated or truncated

        self.resets.append(timed(reset, clock))
        context = EpisodeContext(env_id, task, variation, self._world, seed=0, max_steps=0, prompt=observation)
        agent.reset(observation, context)
        while not done:
            action = agent.act(observation)
            self.steps.append(timed(step, clock))

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs.values():
            env.close()


def _memory_kb() -> float:
    """Return the mean size of a start state in memory."""
    return round(variation_cache.size / max(1, len(variation_cache)) / 1e3, 1)


def _unit() -> float:
    return median(timed(machine_unit, time.process_time_ns) for _ in range(5))


def _rate(report: Report, name: str, steps: int, seconds: float, unit: float) -> None:
    """Print steps per second, and the duration of a step in machine units."""
    rate = steps / seconds
    report.line(
        name,
        steps=steps,
        steps_per_second=round(rate),
        times_prototype=round(rate / _PROTOTYPE, 2),
        unit_us=round(unit, 1),
        units=float(f"{seconds / steps * 1e6 / unit:.3g}"),
    )


def measure_episodes(report: Report, world: World, variations: int) -> None:
    """Measure resets and gold episodes, first with new variations and then with start states in memory."""
    tasks = sum(len(task_set(env_id)) for env_id in _PACKS)
    for name, prepared in (("new variations", 0), ("start states in memory", tasks * variations)):
        variation_cache.clear()
        episodes = Episodes(world, range(variations), prepared)
        if prepared:
            episodes.play(time.process_time_ns)  # the first round draws, the second computes index rows
            episodes.play(time.process_time_ns)
        units = [_unit()]
        episodes.play(time.process_time_ns)
        units.append(_unit())
        more = {"start_state_kb": _memory_kb()} if prepared else {}
        report.times(f"reset: {name}", Times(episodes.resets, median(units)), **more)
        seconds = (sum(episodes.resets) + sum(episodes.steps)) / 1e6
        _rate(report, f"gold episodes: {name}", len(episodes.steps), seconds, median(units))
        episodes.close()


def _learn(world: World, variations: int) -> Templates:
    rollouts = [
        rollout
        for env_id in _PACKS
        for rollout in fhir_gym.run(env_id, "gold", variations=range(variations), world=world)
    ]
    return learn_templates(rollouts)


def _menu_env(templates: Templates, variations: int) -> MenuEnv:
    tasks = [(env_id, task) for env_id in _PACKS for task in task_set(env_id)]
    return MenuEnv(templates, tasks, variations=range(variations), prepared=len(tasks) * variations)


def menu_steps(vector: Any, seconds: float, clock: Callable[[], float]) -> tuple[int, float]:
    """Step a vector environment with random filled places of the menu.

    Returns:
        The number of steps and the seconds that they took.
    """
    generator = np.random.default_rng(0)
    observations = vector.reset()
    steps, start = 0, clock()
    while (taken := clock() - start) < seconds:
        filled = observations["candidates"][:, :, 0] > 0
        actions = (generator.random(filled.shape) * filled).argmax(axis=1)
        observations, *_ = vector.step(actions)
        steps += len(actions)
    return steps, taken


def measure_menu(report: Report, world: World, variations: int, seconds: float) -> None:
    """Measure `MenuEnv` under a random policy."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    templates = _learn(world, min(variations, _LEARNT_FROM))
    create = partial(_menu_env, templates, variations)
    for name, kind, number, clock in (
        ("DummyVecEnv", DummyVecEnv, _ENVS, time.process_time),
        ("SubprocVecEnv", SubprocVecEnv, _PROCESSES, time.perf_counter),
    ):
        vector = kind([create] * number)
        vector.seed(0)
        menu_steps(vector, seconds, clock)  # fills the memory with start states
        units = [_unit()]
        steps, taken = menu_steps(vector, seconds, clock)
        units.append(_unit())
        vector.close()
        _rate(report, f"random over menu: {name}({number})", steps, taken, median(units))


def main() -> None:
    """Print all measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--variations", type=int, default=20, help="variations of each task")
    parser.add_argument("--seconds", type=float, default=30, help="duration of each measurement of MenuEnv")
    parser.add_argument("--quick", action="store_true", help="two variations and two seconds")
    options = parser.parse_args()
    variations, seconds = (2, 2.0) if options.quick else (options.variations, options.seconds)
    with worlds.load("hospital-small") as world:
        report = Report(world.name, world.manifest.total)
        measure_episodes(report, world, variations)
        if find_spec("stable_baselines3"):
            measure_menu(report, world, variations, seconds)


if __name__ == "__main__":
    main()
