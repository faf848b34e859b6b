"""Which of a scene's records refer to which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fhir_gym.tasks.soundness.probe.leaves import Flat, is_reference

__all__ = ["Links"]


class Links:
    """The references between a scene's records.

    Args:
        names: The records as ``Type/id``.
        flats: Their values.
    """

    def __init__(self, names: Sequence[str], flats: Sequence[Flat]) -> None:
        places = {name: at for at, name in enumerate(names)}
        self._kinds = [name.partition("/")[0] for name in names]
        self._out: list[list[tuple[str, int]]] = [[] for _ in names]
        self._in: list[list[tuple[str, int]]] = [[] for _ in names]
        self._outside = [Counter[str]() for _ in names]
        for at, flat in enumerate(flats):
            for path, values in flat.items():
                for value in values:
                    if not is_reference(value):
                        continue
                    other = places.get(str(value))
                    if other is None:
                        self._outside[at][path] += 1
                    else:
                        self._out[at].append((path, other))
                        self._in[other].append((f"{self._kinds[at]}.{path}", at))

    def counts(self, at: int, statuses: Sequence[str]) -> Counter[str]:
        """How many records are one and two references away, by way and by status.

        Args:
            at: The record.
            statuses: The status of every record.
        """
        counts: Counter[str] = Counter({"references": len(self._out[at]), "referrers": len(self._in[at])})
        counts.update({f"{path} elsewhere": count for path, count in self._outside[at].items()})
        near = self._near(at)
        for way, other in near:
            counts[way] += 1
            counts[f"{way} = {statuses[other]}"] += 1
        seen: set[tuple[str, int]] = set()
        for way, other in near:
            for next_way, far in self._near(other):
                if far != at and (found := (f"{way} {next_way}", far)) not in seen:
                    seen.add(found)
                    counts[found[0]] += 1
                    counts[f"{found[0]} = {statuses[far]}"] += 1
        return counts

    def _near(self, at: int) -> list[tuple[str, int]]:
        out = [(f"-> {self._kinds[other]}", other) for _, other in self._out[at]]
        return out + [(f"<- {label}", other) for label, other in self._in[at]]

    def single(self, own: Sequence[int]) -> Mapping[str, list[int | None]]:
        """By path, the first record that each of these refers to there; None for one that refers to none.

        Args:
            own: The records.
        """
        found: dict[str, list[int | None]] = {}
        for place, at in enumerate(own):
            for path, other in self._out[at]:
                targets = found.setdefault(f"{path} {self._kinds[other]}", [None] * len(own))
                if targets[place] is None:
                    targets[place] = other
        return found

    def referrers(self, own: Sequence[int]) -> Mapping[str, list[list[int]]]:
        """By type and path, the records that refer to each of these there.

        Args:
            own: The records.
        """
        found: dict[str, list[list[int]]] = {}
        for place, at in enumerate(own):
            for label, other in self._in[at]:
                found.setdefault(label, [[] for _ in own])[place].append(other)
        return found
