"""Compare two runs on the episodes that both contain."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fhir_gym.evaluation.intervals import clustered_mean, mcnemar
from fhir_gym.evaluation.metrics import rounded

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The difference of the success rates of two runs on their common episodes.

    Attributes:
        first: Index of the first run in the report.
        second: Index of the second run.
        common: Number of episodes that are graded in both runs.
        both: Number of episodes that succeed in both runs.
        only_first: Number of episodes that succeed only in the first run.
        only_second: Number of episodes that succeed only in the second run.
        neither: Number of episodes that fail in both runs.
        clusters: Number of tasks of the common episodes.
        difference: Success rate of the second run minus that of the first run; None without common episodes.
        low: Lower bound of the 95 % interval of the difference, clustered by task; None if the standard
            error cannot be estimated (fewer than two tasks, or the same difference in every task).
        high: Upper bound.
        p_clustered: Two-sided p-value of the hypothesis that the difference is 0, clustered by task (Student's t); None
            without the interval.
        p_mcnemar: Two-sided p-value of McNemar's exact test. It treats episodes as independent and is therefore too
            optimistic where the episodes of a task resemble each other.
    """

    first: int
    second: int
    common: int
    both: int
    only_first: int
    only_second: int
    neither: int
    clusters: int
    difference: float | None
    low: float | None
    high: float | None
    p_clustered: float | None
    p_mcnemar: float

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        numbers = ("difference", "low", "high", "p_clustered", "p_mcnemar")
        counts = ("common", "both", "only_first", "only_second", "neither", "clusters")
        return {name: getattr(self, name) for name in counts} | {name: rounded(getattr(self, name)) for name in numbers}


def paired_difference(
    first: int, one: Mapping[K, bool], second: int, other: Mapping[K, bool], tasks: Mapping[K, Hashable]
) -> PairedDifference:
    """Compare two runs.

    Args:
        first: Index of the first run.
        one: Whether each graded episode of the first run is a success, by the key of the episode.
        second: Index of the second run.
        other: The same for the second run.
        tasks: The task of each episode.
    """
    clusters: dict[Hashable, list[float]] = defaultdict(list)
    counts: Counter[tuple[bool, bool]] = Counter()
    for key in one:
        if key not in other:
            continue
        counts[one[key], other[key]] += 1
        clusters[tasks[key]].append(float(other[key]) - float(one[key]))
    found = clustered_mean(clusters.values())
    bounds = found and found.interval()
    return PairedDifference(
        first=first,
        second=second,
        common=counts.total(),
        both=counts[True, True],
        only_first=counts[True, False],
        only_second=counts[False, True],
        neither=counts[False, False],
        clusters=len(clusters),
        difference=found.mean if found else None,
        low=max(-1.0, bounds[0]) if bounds else None,
        high=min(1.0, bounds[1]) if bounds else None,
        p_clustered=found.p_value() if found else None,
        p_mcnemar=mcnemar(counts[True, False], counts[False, True]),
    )
