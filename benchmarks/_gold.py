"""Measure the CPU time of episodes of the reference solution, whole and by call: `reset`, `step`, the graded step."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import mean

import gymnasium as gym

from benchmarks._measure import machine_unit, timed
from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.fhir import World
from fhir_gym.tasks import task_set
from fhir_gym.tasks.core.variation import variation_cache

__all__ = ["GoldTimes", "gold_episodes"]


@dataclass
class GoldTimes:
    """CPU times of a pack's episodes.

    Attributes:
        episodes: Each episode from reset to verdict in machine units, by task.
        resets: Each `reset` to a new variation, in microseconds.
        steps: Each `step` but the last of an episode, in microseconds.
        last_steps: Each last step, which grades the episode, in microseconds.
    """

    episodes: dict[str, list[float]] = field(default_factory=dict)
    resets: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    last_steps: list[float] = field(default_factory=list)


def gold_episodes(env_id: str, world: World, variations: Sequence[int]) -> GoldTimes:
    """Time episodes of the reference solution. `benchmarks.shift` measures live tasks.

    Args:
        env_id: The pack.
        world: The world.
        variations: Variations of each task. The first one is a warm-up and is not measured.

    Raises:
        RuntimeError: An episode failed.
    """
    env = gym.make(env_id, world=world, disable_env_checker=True)
    times = GoldTimes()
    gc.collect()
    gc.disable()
    try:
        for task in (key for key, task in task_set(env_id).items() if not task.is_live):
            _play(env, env_id, task, variations[0], world, GoldTimes())
            times.episodes[task] = []
            for variation in variations[1:]:
                variation_cache.clear()
                gc.collect(1)
                play = partial(_play, env, env_id, task, variation, world, times)
                unit, spent, again = (timed(work, time.process_time_ns) for work in (machine_unit, play, machine_unit))
                times.episodes[task].append(spent / mean((unit, again)))
    finally:
        gc.enable()
        env.close()
    return times


def _play(env: gym.Env[str, str], env_id: str, task: str, variation: int, world: World, times: GoldTimes) -> None:
    begun = time.process_time_ns()
    observation, _ = env.reset(options={"task": task, "variation": variation})
    times.resets.append((time.process_time_ns() - begun) / 1_000)
    agent = GoldAgent()
    agent.reset(observation, EpisodeContext(env_id, task, variation, world, seed=0, max_steps=0, prompt=observation))
    while True:
        action = agent.act(observation)
        begun = time.process_time_ns()
        observation, _, terminated, truncated, info = env.step(action)
        spent = (time.process_time_ns() - begun) / 1_000
        if terminated or truncated:
            break
        times.steps.append(spent)
    times.last_steps.append(spent)
    if not info["success"]:
        raise RuntimeError(f"the reference solution of {env_id}, task {task}, variation {variation} failed")
