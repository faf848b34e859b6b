"""Make a fine-tuning dataset from reference solutions."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import fhir_gym
from fhir_gym.rollouts import write_dataset


def main() -> None:
    """Write rollouts of the training split, and convert them to chat messages."""
    with tempfile.TemporaryDirectory() as folder:
        records, examples = Path(folder, "rollouts.jsonl"), Path(folder, "train.jsonl")
        rollouts = fhir_gym.run("FHIRAgent/Appointment-v0", "gold", split="train", variations="0-4", workers=2)
        count = fhir_gym.write_rollouts(records, rollouts)
        report = write_dataset(fhir_gym.read_rollouts(records), examples, "tools")
        print(f"{count} episodes, {report.rows} examples")
        with examples.open(encoding="utf-8") as lines:
            for message in json.loads(next(lines))["messages"]:
                print(f"{message['role']:>9}: {json.dumps(message.get('tool_calls') or message['content'])[:150]}")


if __name__ == "__main__":
    main()
