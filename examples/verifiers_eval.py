"""Evaluate a model with verifiers, and print why it succeeded or failed.

By default, a scripted model solves two tasks. With these options a model behind an OpenAI-compatible API is evaluated:

    python examples/verifiers_eval.py --model NAME --base-url http://127.0.0.1:8000/v1 --tasks 01,02a,05
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from fhir_gym import EpisodeConfig, worlds
from fhir_gym.integrations.publish import write_verifiers_folder
from fhir_gym.rollouts.plan import parse_numbers
from fhir_gym.testing import ChatServer, GoldOverChat

ENV_ID = "FHIRAgent/Appointment-v0"
ID = "fhir-desk"
KEY = "OPENAI_API_KEY"


@contextmanager
def scripted_model(tasks: str, variations: str) -> Iterator[str]:
    """Serve a scripted model that knows the solutions; yield its base URL."""
    os.environ.setdefault(KEY, "none")
    with worlds.load("hospital-small") as world:
        episodes = [(ENV_ID, task, number) for task in tasks.split(",") for number in parse_numbers(variations)]
        with ChatServer(GoldOverChat(world, episodes)) as server:
            yield server.base_url


async def evaluate(model: str, base_url: str, tasks: str, variations: str) -> None:
    """Play the episodes concurrently, and print the rewards."""
    import verifiers.v1 as vf
    from verifiers.v1.types import SamplingConfig
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    taskset = {"id": ID, "tasks": tasks.split(","), "variations": variations}
    client = vf.EvalClientConfig(base_url=base_url, api_key_var=KEY)
    context = vf.ModelContext(model=model, client=client, sampling=SamplingConfig())
    env = load_environment(resolve_env_config({"taskset": taskset}))
    async with env.serving():
        slots = [slot for task in env.taskset for slot in env.slots(task)]
        for episode in await asyncio.gather(*(env.run_slot(slot, context) for slot in slots)):
            (trace,) = episode.traces
            result = trace.info["fhir_gym"]["explanation"] if trace.ok else trace.errors[-1].message
            print(f"{trace.task.data.name}: {trace.reward:g}. {result}")


def main() -> None:
    """Evaluate a model."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="scripted", help="name of the model")
    options.add_argument("--base-url", help=f"base URL of the model's API, whose key is in {KEY}")
    options.add_argument("--tasks", default="01,02a", help="task keys, separated by commas")
    options.add_argument("--variations", default="0", help="variations of each task")
    chosen = options.parse_args()
    if find_spec("verifiers") is None:
        print("This example needs verifiers: pip install '.[verifiers]'")
        return
    model = nullcontext(chosen.base_url) if chosen.base_url else scripted_model(chosen.tasks, chosen.variations)
    with model as base_url, TemporaryDirectory() as folder:
        write_verifiers_folder(EpisodeConfig(ENV_ID), Path(folder, ID))  # as `fhir-gym publish verifiers` does
        sys.path.append(str(Path(folder, ID)))  # in place of `pip install`
        asyncio.run(evaluate(chosen.model, base_url, chosen.tasks, chosen.variations))


if __name__ == "__main__":
    main()
