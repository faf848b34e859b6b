"""Measure the CPU time of whole episodes: prepare a new variation, play the reference solution, grade it."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from functools import partial
from statistics import mean

import gymnasium as gym

from benchmarks._measure import machine_unit, timed
from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.fhir import World
from fhir_gym.tasks import task_set
from fhir_gym.tasks.core.variation import variation_cache

__all__ = ["gold_episodes"]


def gold_episodes(env_id: str, world: World, variations: Sequence[int]) -> dict[str, list[float]]:
    """Time episodes of the reference solution, in machine units. `benchmarks.shift` measures live tasks.

    Args:
        env_id: The pack.
        world: The world.
        variations: Variations of each task. The first one is a warm-up and is not measured.

    Returns:
        CPU time of each episode from reset to verdict, by task.

    Raises:
        RuntimeError: An episode failed.
    """
    env = gym.make(env_id, world=world, disable_env_checker=True)
    found: dict[str, list[float]] = {}
    gc.collect()
    gc.disable()
    try:
        for task in (key for key, task in task_set(env_id).items() if not task.is_live):
            _play(env, env_id, task, variations[0], world)
            found[task] = []
            for variation in variations[1:]:
                variation_cache.clear()
                gc.collect(1)
                play = partial(_play, env, env_id, task, variation, world)
                unit, spent, again = (timed(work, time.process_time_ns) for work in (machine_unit, play, machine_unit))
                found[task].append(spent / mean((unit, again)))
    finally:
        gc.enable()
        env.close()
    return found


def _play(env: gym.Env[str, str], env_id: str, task: str, variation: int, world: World) -> None:
    observation, _ = env.reset(options={"task": task, "variation": variation})
    agent = GoldAgent()
    agent.reset(observation, EpisodeContext(env_id, task, variation, world, seed=0, max_steps=0, prompt=observation))
    while True:
        observation, _, terminated, truncated, info = env.step(agent.act(observation))
        if terminated or truncated:
            break
    if not info["success"]:
        raise RuntimeError(f"the reference solution of {env_id}, task {task}, variation {variation} failed")
