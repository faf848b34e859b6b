"""Measure the overhead of a chat rollout per step, without a model: `python -m benchmarks.chat [--quick]`.

Plays the reference solutions over chat, one conversation at a time, against a scripted chat server in a separate
process. Prints one JSON line per protocol, in milliseconds per step:

- ``total``: wall time of the run;
- ``chat_server``: time that the scripted server takes to choose its replies;
- ``fhir``: time of the embedded FHIR server, of grading, and of preparing episodes;
- ``transport``: time in the client library's `post` minus ``chat_server``;
- ``overhead``: all other time: runner, parsing of replies, writing of records.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import openai

from fhir_gym import worlds
from fhir_gym.agents import ChatAgent
from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.fhir import World
from fhir_gym.rollouts import read_rollouts, run, write_rollouts
from fhir_gym.tasks import task_keys
from fhir_gym.testing import ChatServer, GoldOverChat

ENV_ID = "FHIRAgent/Appointment-v0"


def _serve(pipe: Connection, world_path: str, variations: int) -> None:
    with worlds.load(world_path) as world:
        jobs = [(ENV_ID, key, number) for key in task_keys(ENV_ID) for number in range(variations)]
        with ChatServer(GoldOverChat(world, jobs)) as server:
            pipe.send(server.base_url)
            while pipe.recv() == "busy":
                pipe.send(server.busy)


def _busy(pipe: Connection) -> float:
    pipe.send("busy")
    return float(pipe.recv())


@contextmanager
def _timed_posts() -> Iterator[list[float]]:
    """Record the duration of the client library's requests."""
    spent: list[float] = []
    post = openai.AsyncOpenAI.post

    async def timed(self: Any, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return await post(self, *arguments, **options)
        finally:
            spent.append(time.perf_counter() - start)

    with patch.object(openai.AsyncOpenAI, "post", timed):
        yield spent


def _measure(pipe: Connection, agent: ChatAgent, world: World, posts: list[float], variations: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rollouts.jsonl")
        list(run(ENV_ID, agent, variations=0, world=world))  # warm-up
        posts.clear()
        busy, start = _busy(pipe), time.perf_counter()
        write_rollouts(path, run(ENV_ID, agent, variations=range(variations), concurrency=1, world=world))
        total = time.perf_counter() - start
        own = _busy(pipe) - busy
        rollouts = list(read_rollouts(path))
    steps = sum(rollout.steps for rollout in rollouts)
    fhir = sum(r.timings.prepare + r.timings.server for r in rollouts if r.timings)
    asked = sum(posts)
    parts = {"total": total, "chat_server": own, "fhir": fhir, "transport": asked - own}
    parts["overhead"] = total - fhir - asked
    return {"steps": steps, **{name: 1_000 * value / steps for name, value in parts.items()}}


def main() -> None:
    """Measure both protocols several times and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variations", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one variation and one round")
    given = parser.parse_args()
    if given.quick:
        given.variations = given.rounds = 1
    protocols: tuple[ChatProtocol, ...] = ("text", "tools")
    with worlds.load("hospital-small") as world, _timed_posts() as posts:
        pipe, other = multiprocessing.get_context("spawn").Pipe()
        arguments = (other, str(world.path), given.variations)
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments, daemon=True)
        process.start()
        base_url = pipe.recv()
        for protocol in protocols:
            agent = ChatAgent("scripted", base_url=base_url, protocol=protocol)
            rounds = [_measure(pipe, agent, world, posts, given.variations) for _ in range(given.rounds)]
            medians = {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}
            print(json.dumps({"name": "chat", "protocol": protocol, "unit": "ms a step", **medians}))
        pipe.send("stop")
        process.join()


if __name__ == "__main__":
    main()
