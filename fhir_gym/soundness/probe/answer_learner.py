"""A learner that never sees the prompt and predicts the right answer from counts of records and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fhir_gym.soundness.probe.flattening import flatten
from fhir_gym.soundness.probe.models import predict_classes
from fhir_gym.soundness.probe.scenes import Scene

Rows: TypeAlias = NDArray[np.float64]

_MOST_CLASSES = 12
_OTHER = "another answer"
_MOST_VALUES = 8
"""For each path, only this many of the most frequent values are counted separately."""
_COUNTED = ("code", "status", "intent", "type", "active", "gender")


def predict_answers(train: Rows, answers: Sequence[str], test: Rows) -> list[str]:
    """Train on the training scenes and predict the answers of the test scenes.

    Args:
        train: Counts of the training scenes; see `count_records`.
        answers: Right answers of the training scenes, as classes.
        test: Counts of the test scenes.
    """
    usual = [answer for answer, _ in Counter(answers).most_common(_MOST_CLASSES)]
    known, chances = predict_classes(train, [one if one in usual else _OTHER for one in answers], test)
    if _OTHER in known and len(known) > 1:
        chances[:, known.index(_OTHER)] = -1  # never predict the class of rare answers
    return [known[at] for at in np.argmax(chances, axis=1)]


def count_records(scenes: Sequence[Scene]) -> Rows:
    """Return one row of record and value counts per scene."""
    by_records = {id(scene.records): scene for scene in scenes}  # the scenes of one variation share their records
    known = {key: _counts(scene) for key, scene in by_records.items()}
    counted = [known[id(scene.records)] for scene in scenes]
    common = Counter(name for counts in counted for name in counts)
    names = sorted(name for name, number in common.items() if number >= len(scenes) / 50)
    table = np.array([[float(counts.get(name, 0)) for name in names] for counts in counted])
    return table[:, (table != table[:1]).any(axis=0)] if names else np.zeros((len(scenes), 0))


def _counts(scene: Scene) -> Mapping[str, int]:
    """Count the records of each type, the values at each path, and how often values repeat."""
    counts: Counter[str] = Counter({"records": len(scene.records)})
    shared: dict[str, Counter[str]] = {}
    for one in scene.records:
        kind = one["resourceType"]
        counts[kind] += 1
        for path, values in flatten(one).items():
            counts["values"] += len(values)
            counts[f"{kind} values"] += len(values)
            counts[f"{kind} {path}"] += 1
            if path.endswith(_COUNTED):
                counts[f"{kind} {path} {values[0]}"] += 1
            shared.setdefault(f"{kind} {path}", Counter())[str(values)] += 1
    for name, holders in shared.items():
        counts[f"{name} distinct"] = len(holders)
        for place, (_, number) in enumerate(holders.most_common(_MOST_VALUES)):
            if number > 1:
                counts[f"{name} repeated {place}"] = number
    return counts
