"""References between the records of a scene."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fhir_gym.soundness.probe.flattening import Flat, is_reference


class Links:
    """The references between the records of a scene; records are given by their positions.

    Args:
        names: Reference (``Type/id``) to each record.
        flats: Flattened values of each record.
        statuses: Status of each record.
    """

    def __init__(self, names: Sequence[str], flats: Sequence[Flat], statuses: Sequence[str]) -> None:
        places = {name: at for at, name in enumerate(names)}
        self._kinds = [name.partition("/")[0] for name in names]
        self._statuses = statuses
        self._out: list[list[tuple[str, int]]] = [[] for _ in names]
        self._in: list[list[tuple[str, int]]] = [[] for _ in names]
        self._outside = [Counter[str]() for _ in names]
        for at, flat in enumerate(flats):
            for path, values in flat.items():
                for value in values if path.endswith("reference") else ():
                    if not is_reference(value):
                        continue
                    other = places.get(str(value))
                    if other is None:
                        self._outside[at][f"{path} elsewhere"] += 1
                    else:
                        self._out[at].append((path, other))
                        self._in[other].append((f"{self._kinds[at]}.{path}", at))
        self._near = [self._neighbours(at) for at in range(len(names))]

    def _neighbours(self, at: int) -> list[tuple[str, int]]:
        out = [(f"-> {self._kinds[other]}", other) for _, other in self._out[at]]
        return out + [(f"<- {label}", other) for label, other in self._in[at]]

    def counts(self, at: int) -> Counter[str]:
        """Count the records one and two references away from a record, by path and status."""
        counts = Counter({"references": len(self._out[at]), "referrers": len(self._in[at])}) + self._outside[at]
        counts.update(self._ways(self._near[at]))
        ways: dict[str, list[int]] = {}
        for way, other in self._near[at]:
            ways.setdefault(way, []).append(other)
        for way, others in ways.items():
            far = {one for other in others for one in self._near[other] if one[1] != at}
            counts.update({f"{way} {name}": count for name, count in self._ways(far).items()})
        return counts

    def _ways(self, reached: Iterable[tuple[str, int]]) -> Counter[str]:
        """Count records by path and status."""
        by_status = Counter((way, self._statuses[other]) for way, other in reached)
        counts: Counter[str] = Counter()
        for (way, status), count in by_status.items():
            counts[way] += count
            counts[f"{way} = {status}"] += count
        return counts

    def single(self, own: Sequence[int]) -> Mapping[str, list[int | None]]:
        """For each path, map every given record to the first record that it refers to, or to None.

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
        """For each type and path, list the records that refer to each of the given records.

        Args:
            own: The records.
        """
        found: dict[str, list[list[int]]] = {}
        for place, at in enumerate(own):
            for label, other in self._in[at]:
                found.setdefault(label, [[] for _ in own])[place].append(other)
        return found
