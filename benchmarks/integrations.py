"""Measure what integrations add to a step: `python -m benchmarks.integrations [--frameworks trl,mcp] [--quick]`.

Each framework plays the reference solutions of all Appointment tasks, and each action is also performed by a plain
`Episode` in the same state. Prints one JSON line per installed framework: the times of both in microseconds of wall
time, the median of their differences (`overhead_us`), and the limit that this median must stay below (`limit_us`).
On a busy machine the median also counts waiting. The difference of the lowest deciles (`overhead_p10_us`) hardly does.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from statistics import median

import fhir_gym
from benchmarks._measure import Report, percentile, timed
from benchmarks._players import ENV_ID, FRAMEWORKS, GoldActions, Player
from fhir_gym import Episode, worlds
from fhir_gym.actions import GRAMMAR, Action
from fhir_gym.fhir import World

__all__ = ["gold_actions", "main", "overhead"]


def gold_actions(world: World, variations: Sequence[int]) -> list[GoldActions]:
    """Return the actions of the reference solutions of all tasks."""
    found = []
    for rollout in fhir_gym.run(ENV_ID, "gold", variations=variations, world=world):
        actions = [GRAMMAR.parse(turn.action) for turn in rollout.turns]
        spec = rollout.task
        found.append(
            GoldActions(spec.key, spec.variation, [action for action in actions if isinstance(action, Action)])
        )
    return found


async def overhead(player: Player, world: World, episodes: Sequence[GoldActions]) -> tuple[list[float], list[float]]:
    """Return the times of each step in microseconds: through the player, and by a plain `Episode`.

    The two take turns in who performs an action first, because the second finds caches filled.
    """
    through: list[float] = []
    plain: list[float] = []
    for gold in episodes:
        with Episode(ENV_ID, task=gold.task, variation=gold.variation, world=world) as episode:
            episode.start()
            await player.start(gold)
            for action in gold.actions:
                plain_first = len(plain) % 2
                if plain_first:
                    plain.append(timed(partial(episode.step, action), time.perf_counter_ns))
                start = time.perf_counter_ns()
                await player.step(action)
                through.append((time.perf_counter_ns() - start) / 1_000)
                if not plain_first:
                    plain.append(timed(partial(episode.step, action), time.perf_counter_ns))
    return through, plain


async def measure(name: str, world: World, episodes: Sequence[GoldActions]) -> None:
    """Measure one framework, and print the result."""
    framework = FRAMEWORKS[name]
    async with framework.open(world) as player:
        await overhead(player, world, episodes)  # warms up
        through, plain = await overhead(player, world, episodes)
    differences = [duration - other for duration, other in zip(through, plain, strict=True)]
    through.sort()
    plain.sort()
    Report(world.name, world.manifest.total).times(
        f"step: {name}",
        through,
        plain_p50_us=round(median(plain), 1),
        overhead_us=round(median(differences), 1),
        overhead_p10_us=round(percentile(through, 0.1) - percentile(plain, 0.1), 1),
        limit_us=framework.limit_us,
    )


def main() -> None:
    """Measure the installed frameworks, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.integrations", description=__doc__)
    parser.add_argument("--frameworks", help="names, separated by commas (default: all that are installed)")
    parser.add_argument("--variations", type=int, default=5, help="variations of each task")
    parser.add_argument("--quick", action="store_true", help="one variation of each task")
    options = parser.parse_args()
    installed = [name for name, framework in FRAMEWORKS.items() if find_spec(framework.package)]
    names = options.frameworks.split(",") if options.frameworks else installed
    if unknown := set(names) - FRAMEWORKS.keys():
        parser.error(f"unknown framework {min(unknown)!r}; known: {', '.join(FRAMEWORKS)}")
    with worlds.load("hospital-small") as world:
        episodes = gold_actions(world, range(1 if options.quick else options.variations))
        for name in names:
            asyncio.run(measure(name, world, episodes))


if __name__ == "__main__":
    main()
