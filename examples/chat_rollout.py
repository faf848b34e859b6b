"""Run a language model on tasks, once with text actions and once with tool calls.

A scripted server on this machine stands in for the model. For a real model, pass the `base_url` and `model` of your
endpoint:

    agent = fhir_gym.make_agent("chat", model="qwen3", base_url="http://localhost:8000/v1", protocol="tools")
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import fhir_gym
from fhir_gym import worlds
from fhir_gym.rollouts import Budget, write_dataset
from fhir_gym.testing import ChatServer, GoldOverChat, random_faults

ENV_ID = "FHIRAgent/Appointment-v0"
TASKS = ("01", "02a", "02b")


def main() -> None:
    """Run until a budget is spent, resume, count successes, make a dataset and print a conversation."""
    with worlds.load("hospital-small") as world, tempfile.TemporaryDirectory() as folder:
        gold = GoldOverChat(world, [(ENV_ID, task, number) for task in TASKS for number in range(4)])
        with ChatServer(gold, faults=random_faults(0.2, kinds=("429", "500", "garbled"))) as server:
            for protocol in ("text", "tools"):
                path = Path(folder, f"{protocol}.jsonl")
                agent = fhir_gym.make_agent(
                    "chat", model="scripted", base_url=server.base_url, protocol=protocol, backoff=0.01
                )
                choice: dict[str, Any] = {"tasks": TASKS, "variations": "0-3", "world": world, "concurrency": 16}
                for budget in (Budget(episodes=5), Budget()):  # the second run resumes the first
                    running = fhir_gym.run(ENV_ID, agent, budget=budget, resume=path, **choice)
                    print(f"{protocol}: {fhir_gym.write_rollouts(path, running)} episodes done")
                rollouts = list(fhir_gym.read_rollouts(path))
                tokens = sum(rollout.usage.total for rollout in rollouts if rollout.usage)
                print(
                    f"{protocol}: {sum(bool(r.success) for r in rollouts)} of {len(rollouts)} solved, {tokens:,} tokens"
                )
                print(f"{protocol}: {write_dataset(rollouts, Path(folder, 'sft.jsonl'), 'tools').rows} examples")
            print(f"{server.faulted} of {len(server.requests)} requests failed on purpose")
        for message in rollouts[0].messages:
            print(f"{message['role']:>9}: {str(message.get('tool_calls') or message['content'])[:140]!r}")


if __name__ == "__main__":
    main()
