"""The world does not reveal which record a variation asks about: all candidates are equally frequent."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from fhir_gym.tasks import get_task, task_keys

if TYPE_CHECKING:
    from fhir_gym.fhir import World

PACK = "FHIRAgent/ActionReasoning-v0"


@pytest.mark.parametrize("key", task_keys(PACK))
def test_all_records_are_drawn_equally_often(key: str, mini: World) -> None:
    task = get_task(PACK, key)
    for numbers in (range(300), range(1_000, 1_300)):
        asked: Counter[str] = Counter()
        fewest = len(numbers)
        for k in numbers:
            variation = task.variation(k, mini)
            records = task.required_records(variation.params)
            assert variation._target == next((record for record in reversed(records) if record.startswith("Obs")), "")
            if variation._target:
                asked[variation._target] += 1
                fewest = min(fewest, len(variation._qualifying))
                assert len(set(variation._qualifying)) == len(variation._qualifying)
                assert variation._target in variation._qualifying
        assert fewest >= 50
        assert max(asked.values()) <= -(-len(numbers) // fewest)
