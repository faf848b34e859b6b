"""Sample a group of episodes for a trainer, and compute the advantages of its members.

A scripted server on this machine stands in for the model: it solves the task half of the time. For a real model, pass
the `base_url` and `model` of your trainer's endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count
from statistics import mean
from typing import Any

import fhir_gym
from fhir_gym import worlds
from fhir_gym.errors import InfraError
from fhir_gym.testing import ChatServer, GoldOverChat, ScriptedReply
from fhir_gym.trainer_api import rollout_metrics

ENV_ID = "FHIRAgent/Appointment-v0"
GROUP = 8


async def sample(row: fhir_gym.EpisodeRow, base_url: str) -> list[fhir_gym.Rollout]:
    """Play the episode of a row several times at once; leave out episodes whose server or endpoint failed."""
    playing = (fhir_gym.aplay(row, model="scripted", base_url=base_url, max_steps=10) for _ in range(GROUP))
    results = await asyncio.gather(*playing, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, InfraError):
            raise result
    return [result for result in results if isinstance(result, fhir_gym.Rollout)]


def main() -> None:
    """Sample a group for each row, and print rewards, advantages and the metrics of the first episode."""
    rows = fhir_gym.rows(ENV_ID, ["01", "02a"], variations=0)
    numbers = count()
    with worlds.load("hospital-small") as world:
        gold = GoldOverChat(world, [(row["env_id"], row["task"], row["variation"]) for row in rows])

        def model(request: Mapping[str, Any]) -> ScriptedReply | str:
            return gold(request) if next(numbers) % 4 else "FINISH([])"

        with ChatServer(model) as endpoint:
            for row in rows:
                group = asyncio.run(sample(row, endpoint.base_url))
                rewards = [rollout.reward or 0.0 for rollout in group]
                advantages = [round(reward - mean(rewards), 2) for reward in rewards]
                print(f"{row['task']}: rewards {rewards}, advantages {advantages}")
                print(f"{row['task']}: {rollout_metrics(group[0])}")


if __name__ == "__main__":
    main()
