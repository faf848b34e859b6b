"""Merge reflections that say the same."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from fhir_gym.agents.memory.embedders import Embedder, HashedEmbedder, Vectors
from fhir_gym.agents.memory.reflection import Reflection

_WORD = re.compile(r"[^\W_]+")
_DIGITS = 6
"""Similarities are rounded to this number of digits, so that they do not depend on the machine."""


class Deduplicator:
    """Merges equal and nearly equal reflections. The first one is kept, and counts the others as its support.

    Micro reflections are compared if they have the same resource type and operation; macro reflections are compared if
    they come from the same task.

    Args:
        embedder: Embedder of the texts; None for `HashedEmbedder`.
        threshold: Minimum cosine similarity of two texts that say nearly the same; above 1 to merge only equal texts.

    Examples:
        >>> first = Reflection(kind="micro", text="Use _count=50.", resource_type="Slot", operation="search")
        >>> again = first.model_copy(update={"text": "use _count=50"})
        >>> [(kept.text, kept.support) for kept in Deduplicator().merge([first, again])]
        [('Use _count=50.', 2)]
    """

    def __init__(self, embedder: Embedder | None = None, threshold: float = 0.9) -> None:
        self._embedder = embedder or HashedEmbedder()
        self._threshold = threshold

    def merge(self, reflections: Iterable[Reflection]) -> list[Reflection]:
        """Return the different reflections in their order."""
        groups: dict[tuple[str, ...], list[tuple[int, Reflection]]] = {}
        for number, reflection in enumerate(reflections):
            groups.setdefault(_group(reflection), []).append((number, reflection))
        kept = [pair for group in groups.values() for pair in self._merge_group(group)]
        return [reflection for _, reflection in sorted(kept, key=lambda pair: pair[0])]

    def _merge_group(self, group: list[tuple[int, Reflection]]) -> list[tuple[int, Reflection]]:
        vectors: Vectors = self._embedder.embed([reflection.text for _, reflection in group])
        similar = np.round((vectors @ vectors.T).astype(np.float64), _DIGITS) >= self._threshold
        words = [tuple(_WORD.findall(reflection.text.casefold())) for _, reflection in group]
        support: dict[int, int] = {}
        for at, (_, reflection) in enumerate(group):
            first = next((one for one in support if words[one] == words[at] or similar[one, at]), at)
            support[first] = support.get(first, 0) + reflection.support
        return [(group[at][0], group[at][1].model_copy(update={"support": count})) for at, count in support.items()]


def _group(reflection: Reflection) -> tuple[str, ...]:
    if reflection.kind == "micro":
        return "micro", str(reflection.resource_type), str(reflection.operation)
    if reflection.source is None:
        return "macro", str(reflection.situation)
    return "macro", reflection.source.env_id, reflection.source.task
