"""Evaluate a model with Inspect, and print why it succeeded or failed.

By default, a scripted model solves two tasks. With these options a real model is evaluated:

    python examples/inspect_eval.py --model openai/gpt-5-mini --tasks 01,02a,05 --variations 1000-1004
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from fhir_gym import worlds
from fhir_gym.rollouts.plan import parse_numbers
from fhir_gym.testing import ChatServer, GoldOverChat

ENV_ID = "FHIRAgent/Appointment-v0"


@contextmanager
def scripted_model(tasks: str, variations: str) -> Iterator[dict[str, str]]:
    """Serve a scripted model that knows the solutions; yield Inspect's options for this model."""
    os.environ["LOCAL_API_KEY"] = "none"
    with worlds.load("hospital-small") as world:
        episodes = [(ENV_ID, task, number) for task in tasks.split(",") for number in parse_numbers(variations)]
        with ChatServer(GoldOverChat(world, episodes)) as server:
            yield {"model": "openai-api/local/scripted", "model_base_url": server.base_url}


def main() -> None:
    """Evaluate, and print the scores."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", help="model in Inspect's form, such as openai/gpt-5-mini")
    options.add_argument("--tasks", default="01,02a", help="task keys, separated by commas")
    options.add_argument("--variations", default="1000", help="variations of each task")
    options.add_argument("--out", help="folder of the logs (default: a temporary folder)")
    chosen = options.parse_args()
    if find_spec("inspect_ai") is None or find_spec("openai") is None:
        print("This example needs Inspect: pip install '.[inspect,llm]'")
        return
    import inspect_ai

    from fhir_gym.integrations.inspect import appointment

    task = appointment(tasks=chosen.tasks.split(","), variations=chosen.variations)
    model = nullcontext({"model": chosen.model}) if chosen.model else scripted_model(chosen.tasks, chosen.variations)
    with tempfile.TemporaryDirectory() as folder, model as settings:
        (log,) = inspect_ai.eval(task, log_dir=chosen.out or folder, display="none", **settings)
        for sample in log.samples or ():
            for score in (sample.scores or {}).values():
                print(f"{sample.id}: {score.value:g}. {score.explanation}")


if __name__ == "__main__":
    main()
