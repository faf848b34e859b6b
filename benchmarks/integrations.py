"""Measure what integrations add to a step: `python -m benchmarks.integrations [--frameworks trl,mcp] [--quick]`.

With `--play 64`, it measures this many concurrent episodes of `fhir_gym.aplay` instead, against a scripted endpoint in
a process of its own that takes `--delay` seconds for a reply. `replies_s` is the time of the replies of one episode,
`endpoint_s` the time of all requests without episodes: the client and the endpoint need it on this machine.

Each framework plays the reference solutions of all Appointment tasks, and each action is also performed by a plain
`Episode` in the same state. Prints one JSON line per installed framework: the times of both in microseconds of wall
time, the median of their differences (`overhead_us`), and the limit that this median must stay below (`limit_us`).
On a busy machine the median also counts waiting. The difference of the lowest deciles (`overhead_p10_us`) hardly does.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import fhir_gym
from benchmarks._measure import Report, memory_mib, percentile, timed
from benchmarks._players import ENV_ID, FRAMEWORKS, GoldActions, Player
from fhir_gym import Episode, worlds
from fhir_gym.actions import GRAMMAR, Action
from fhir_gym.agents.provider import ChatModel, Provider
from fhir_gym.fhir import World
from fhir_gym.testing import ChatServer

__all__ = ["gold_actions", "main", "overhead", "play"]

_STEPS, _CLIENTS = 20, 16
_ACTION = "GET /Patient?_count=1"


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


def _serve(pipe: Connection, delay: float) -> None:
    """Serve replies that look at a patient, until the other end of the pipe says stop."""
    with ChatServer(lambda _: _ACTION, delay=delay) as server:
        pipe.send(server.base_url)
        pipe.recv()


async def _bare(url: str, episodes: int, requests: Sequence[Sequence[dict[str, Any]]], opening: Any) -> None:
    """Send the requests of as many episodes, without episodes, with as many clients as `aplay`."""
    providers = [Provider(ChatModel(model="scripted", base_url=url)) for _ in range(_CLIENTS)]

    async def talk(provider: Provider) -> None:
        for messages in requests:
            await provider.complete(messages, opening)

    await asyncio.gather(*(talk(providers[number % _CLIENTS]) for number in range(episodes)))
    for provider in providers:
        await provider.aclose()


async def _episodes(url: str, episodes: int) -> list[fhir_gym.Rollout]:
    rows = fhir_gym.rows(ENV_ID, variations=range(-(-episodes // 38)))[:episodes]
    played = (fhir_gym.aplay(row, model="scripted", base_url=url, max_steps=_STEPS) for row in rows)
    return list(await asyncio.gather(*played))


def _run(make: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[float, float, Any]:
    """Run a coroutine; return its seconds, the highest memory in MiB, and its result."""
    peak, done = [memory_mib("self", own=True)], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak.append(memory_mib("self", own=True))

    watching = threading.Thread(target=watch)
    watching.start()
    start = time.perf_counter()
    try:
        result = asyncio.run(make())
        return time.perf_counter() - start, max(peak), result
    finally:
        done.set()
        watching.join()


def play(report: Report, episodes: int, delay: float) -> None:
    """Measure concurrent episodes against a scripted endpoint, and print the result."""
    here, there = multiprocessing.Pipe()
    endpoint = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, delay))
    endpoint.start()
    try:
        url = here.recv()
        rollouts = _run(partial(_episodes, url, -(-episodes // 8)))[2]  # warms up
        requests = [*rollouts[0].requests()]
        before = memory_mib("self", own=True)
        bare = min(_run(partial(_bare, url, episodes, requests, rollouts[0].opening))[0] for _ in range(3))
        seconds, peak, rollouts = min(
            (_run(partial(_episodes, url, episodes)) for _ in range(3)), key=lambda measured: measured[0]
        )
    finally:
        here.send("stop")
        endpoint.join()
    report.line(
        f"play: {episodes} episodes of {_STEPS} steps",
        seconds=round(seconds, 2),
        endpoint_s=round(bare, 2),
        replies_s=round(delay * _STEPS, 2),
        times_endpoint=round(seconds / bare, 2),
        times_replies=round(seconds / (delay * _STEPS), 2),
        mib_per_episode=round((peak - before) / episodes, 2),
        steps=sum(rollout.steps for rollout in rollouts),
    )


def main() -> None:
    """Measure the installed frameworks, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.integrations", description=__doc__)
    parser.add_argument("--frameworks", help="names, separated by commas (default: all that are installed)")
    parser.add_argument("--variations", type=int, default=5, help="variations of each task")
    parser.add_argument("--quick", action="store_true", help="one variation of each task")
    parser.add_argument("--play", type=int, metavar="N", help="measure N concurrent episodes of aplay instead")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds that a reply takes (default: 0.05)")
    options = parser.parse_args()
    installed = [name for name, framework in FRAMEWORKS.items() if find_spec(framework.package)]
    names = options.frameworks.split(",") if options.frameworks else installed
    if unknown := set(names) - FRAMEWORKS.keys():
        parser.error(f"unknown framework {min(unknown)!r}; known: {', '.join(FRAMEWORKS)}")
    with worlds.load("hospital-small") as world:
        if options.play:
            play(Report(world.name, world.manifest.total), options.play, options.delay)
            return
        episodes = gold_actions(world, range(1 if options.quick else options.variations))
        for name in names:
            asyncio.run(measure(name, world, episodes))


if __name__ == "__main__":
    main()
