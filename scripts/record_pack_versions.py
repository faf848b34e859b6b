"""Write the version and the content hash of each pack to tests/tasks/pack_versions.json.

Run it after a change of tasks, prompts or checks, once the versions in the packs are raised.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

from fhir_gym import run
from fhir_gym.tasks import get_pack, pack_ids

PATH = Path(__file__).parents[1] / "tests" / "tasks" / "pack_versions.json"
VARIATIONS = (0, 1000)
"""A training and a test variation of each task."""


def content_hash(env_id: str) -> str:
    """Hash two variations of every task: prompt, start state, and how the reference solution and an idle agent fare."""
    digest = blake2b(digest_size=16)
    for agent in ("gold", "idle"):
        for rollout in run(env_id, agent, variations=VARIATIONS, split=None):
            verdict = rollout.verdict.model_dump(mode="json") if rollout.verdict else None
            content = [rollout.task.key, rollout.task.variation, rollout.task.hash, verdict]
            digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()


def recorded() -> dict[str, dict[str, str]]:
    """Return the version and the hash that are on record for each pack."""
    return dict(json.loads(PATH.read_text("utf-8")))


def main() -> None:
    """Write the file."""
    content = {env_id: {"version": get_pack(env_id).version, "hash": content_hash(env_id)} for env_id in pack_ids()}
    PATH.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
