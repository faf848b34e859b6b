"""Group the episodes of runs, and compare runs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from fhir_gym.errors import UnknownNameError
from fhir_gym.evaluation.intervals import clustered_mean, mcnemar
from fhir_gym.evaluation.metrics import AggregateMetrics, EpisodeMetrics, rounded
from fhir_gym.evaluation.runs import AgentRun, pooled_runs
from fhir_gym.evaluation.statistics import RunStatistics
from fhir_gym.evaluation.variance import Attempts
from fhir_gym.rollouts import Prices, TaskRecord

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
        counts = ("common", "both", "only_first", "only_second", "neither", "clusters")
        p_values = {"p_clustered": self.p_clustered, "p_mcnemar": self.p_mcnemar}
        return (
            {name: getattr(self, name) for name in counts}
            | {name: rounded(getattr(self, name)) for name in ("difference", "low", "high")}
            | {name: None if value is None else float(f"{value:.6g}") for name, value in p_values.items()}
        )


def paired_difference(
    first: int, outcomes: Mapping[K, bool], second: int, other: Mapping[K, bool], tasks: Mapping[K, Hashable]
) -> PairedDifference:
    """Compare two runs.

    Args:
        first: Index of the first run.
        outcomes: Whether each graded episode of the first run is a success, by the key of the episode.
        second: Index of the second run.
        other: The same for the second run.
        tasks: The task of each episode.
    """
    clusters: dict[Hashable, list[float]] = defaultdict(list)
    counts: Counter[tuple[bool, bool]] = Counter()
    for key in outcomes:
        if key not in other:
            continue
        counts[outcomes[key], other[key]] += 1
        clusters[tasks[key]].append(float(other[key]) - float(outcomes[key]))
    mean = clustered_mean(clusters.values())
    bounds = mean and mean.interval()
    return PairedDifference(
        first=first,
        second=second,
        common=counts.total(),
        both=counts[True, True],
        only_first=counts[True, False],
        only_second=counts[False, True],
        neither=counts[False, False],
        clusters=len(clusters),
        difference=mean.mean if mean else None,
        low=max(-1.0, bounds[0]) if bounds else None,
        high=min(1.0, bounds[1]) if bounds else None,
        p_clustered=mean.p_value() if mean else None,
        p_mcnemar=mcnemar(counts[True, False], counts[False, True]),
    )


Dimension = Literal["agent", "pack", "kind", "difficulty", "category", "class", "task", "split"]
"""A property by which a report groups episodes; only the tasks of MedAgentBench's task files have a class."""
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
"""All dimensions by which a report can group episodes."""

_ORDER = MappingProxyType({name: f"{n}" for n, name in enumerate(("query", "action", "easy", "medium", "hard"))})
"""Sort keys for names that do not sort alphabetically."""
_BY_PACK = ("world", "max_steps")
"""Conditions that may differ between packs."""
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_NUMBER = re.compile(r"\d[\d,]*")
_LONG_NUMBER = re.compile(r"\d{4,}")


@dataclass(frozen=True)
class Report:
    """The metrics of one or more runs, in total and by group.

    Attributes:
        by: Dimensions by which episodes are grouped.
        left_out: A remark about a dimension that is not shown.
        notes: Further remarks, such as about the suites of the runs.
        prices: Prices of tokens; None if they are not known.

    Examples:
        >>> Report(read_runs(["rollouts.jsonl"]), by=("task",)).total(0).success.value  # doctest: +SKIP
        0.25
    """

    runs: tuple[AgentRun, ...]
    by: tuple[Dimension, ...] = DIMENSIONS
    left_out: str | None = None
    notes: tuple[str, ...] = ()
    prices: Prices | None = None

    @cached_property
    def statistics(self) -> tuple[RunStatistics, ...]:
        """The statistics of each run."""
        return tuple(
            RunStatistics.of(
                run.episodes,
                name=run.name,
                experiment=run.experiment,
                configuration=run.configuration,
                prices=self.prices,
            )
            for run in self.runs
        )

    @cached_property
    def differences(self) -> tuple[PairedDifference, ...]:
        """The comparison of each run with the first run of its experiment."""
        first: dict[str, int] = {}
        pairs = []
        for place, run in enumerate(self.runs):
            reference = first.setdefault(run.experiment if len(self.runs) > 2 else "", place)
            if reference != place:
                pairs.append((reference, place))
        outcomes = [
            {episode.episode: episode.success is True for episode in run.episodes if episode.graded}
            for run in self.runs
        ]
        tasks = {episode.episode: episode.cluster for run in self.runs for episode in run.episodes}
        return tuple(paired_difference(pair, outcomes[pair], other, outcomes[other], tasks) for pair, other in pairs)

    def pooled(self) -> Report:
        """Return a report in which the runs of each configuration and model are merged over experiments."""
        return replace(self, runs=pooled_runs(self.runs))

    def brief(self, max_tasks: int = 60) -> Report:
        """Return the report. If there are more than `max_tasks` tasks, a remark replaces the groups by task."""
        tasks = len({(episode.env_id, episode.task.key) for run in self.runs for episode in run.episodes})
        if tasks <= max_tasks or "task" not in self.by:
            return self
        by = tuple(name for name in self.by if name != "task")
        return replace(self, by=by, left_out=f"{tasks} tasks: use `--by task` to show one row per task")

    @cached_property
    def _totals(self) -> tuple[AggregateMetrics, ...]:
        return tuple(AggregateMetrics.of(run.episodes) for run in self.runs)

    @cached_property
    def _groups(self) -> dict[Dimension, list[tuple[str, list[AggregateMetrics | None]]]]:
        return {}

    def total(self, run: int) -> AggregateMetrics:
        """Return the metrics of a run, given by its index."""
        return self._totals[run]

    def groups(self, dimension: Dimension) -> list[tuple[str, list[AggregateMetrics | None]]]:
        """Return each value of a dimension with the metrics of every run; None if a run has no such episodes."""
        if dimension not in self._groups:
            self._groups[dimension] = self._grouped(dimension)
        return self._groups[dimension]

    def _grouped(self, dimension: Dimension) -> list[tuple[str, list[AggregateMetrics | None]]]:
        several_packs = len({episode.env_id for run in self.runs for episode in run.episodes}) > 1
        key = _KEYS[dimension]
        groups: dict[tuple[str, ...], list[list[EpisodeMetrics]]] = {}
        for place, run in enumerate(self.runs):
            for episode in run.episodes:
                if value := key(episode):
                    groups.setdefault(value, [[] for _ in self.runs])[place].append(episode)
        rows = []
        for value in sorted(groups, key=lambda value: [_ORDER.get(part, part) for part in value]):
            name = " ".join(value[1:]) if dimension == "task" and not several_packs else " ".join(value)
            rows.append((name, [AggregateMetrics.of(episodes) if episodes else None for episodes in groups[value]]))
        return rows

    def attempts(self, run: int) -> list[Attempts]:
        """Return the graded attempts of a run at each variation."""
        counts: dict[tuple[str, str, int, str, str], list[int]] = {}
        for episode in self.runs[run].episodes:
            if episode.graded:
                env_id, task, variation, digest, _ = episode.key
                count = counts.setdefault((env_id, task, variation, digest, episode.experiment), [0, 0])
                count[0] += episode.success is True
                count[1] += 1
        return [Attempts(*key[:3], *counts[key]) for key in sorted(counts)]

    def stops(self, run: int) -> list[tuple[str, int]]:
        """Return the stop reasons of episodes with their counts, most frequent first."""
        return _ranked(Counter(episode.stop for episode in self.runs[run].episodes))

    def replies(self, run: int) -> list[tuple[str, int]]:
        """Return the kinds and finish reasons of model replies with their counts, most frequent first."""
        return _ranked(Counter(reason for episode in self.runs[run].episodes for reason in episode.replies))

    def invalid(self, run: int) -> list[tuple[str, int]]:
        """Return the reasons of invalid actions with their counts, most frequent first; quoted details are removed."""
        reasons = (_normalized(reason) for episode in self.runs[run].episodes for reason in episode.invalid)
        return _ranked(Counter(reasons))

    def failed_checks(self, run: int) -> list[tuple[str, int, int]]:
        """Return all checks, each with its number of failures and its number of evaluations; most failures first."""
        failed: Counter[str] = Counter()
        evaluated: Counter[str] = Counter()
        for episode in self.runs[run].episodes:
            for name, passed in episode.checks:
                evaluated[name] += 1
                failed[name] += not passed
        return [(name, count, evaluated[name]) for name, count in _ranked(failed)]

    def labels(self, run: int) -> list[tuple[str, int]]:
        """Return the diagnosed errors with their counts, most frequent first."""
        return _ranked(Counter(episode.label for episode in self.runs[run].episodes if episode.label is not None))

    def infra_errors(self, run: int) -> list[tuple[str, int]]:
        """Return the failures that were not the agent's fault with their counts, most frequent first."""
        failed = (episode for episode in self.runs[run].episodes if episode.stop == "infra_error")
        return _ranked(Counter(_LONG_NUMBER.sub("N", episode.error or "unknown") for episode in failed))

    def remarks(self) -> list[str]:
        """Return remarks about episodes that are ungraded, are repeated, or differ in their conditions."""
        remarks = [*([self.left_out] if self.left_out else []), *self.notes]
        for run in self.runs:
            count, lost = len(run.episodes), sum(not episode.graded for episode in run.episodes)
            if lost:
                remarks.append(
                    f"{run.name}: {lost} of {count} episodes were not graded and are not included in the averages"
                )
            if run.repeated:
                remarks.append(f"{run.name}: {run.repeated} repeated records were left out")
        remarks += self._different_episodes()
        values: dict[tuple[str, str], set[str]] = defaultdict(set)
        for episode in (episode for run in self.runs for episode in run.episodes):
            for name, value in (*episode.conditions, ("split", episode.task.split)):
                values[name, episode.env_id if name in _BY_PACK else ""].add(value)
        for (name, _), distinct in values.items():
            if len(distinct) > 1:
                remarks.append(f"episodes with different {name}: {', '.join(sorted(distinct))}")
        return remarks

    def _different_episodes(self) -> list[str]:
        """Return a remark for each experiment whose runs have graded different episodes."""
        experiments: dict[str, list[AgentRun]] = defaultdict(list)
        for run in self.runs:
            experiments[run.experiment].append(run)
        remarks = []
        for runs in experiments.values():
            graded = [{episode.episode for episode in run.episodes if episode.graded} for run in runs]
            common = set.intersection(*graded)
            if any(own != common for own in graded):
                counts = ", ".join(f"{run.name} {len(own)}" for run, own in zip(runs, graded, strict=True))
                remarks.append(
                    f"the runs share only {len(common)} of their graded episodes ({counts}): compare them by their "
                    "paired differences"
                )
        return remarks


def dimensions(names: Iterable[str] | None = None) -> tuple[Dimension, ...]:
    """Return the dimensions with these names, without repeats; None returns all dimensions.

    Raises:
        UnknownNameError: A dimension does not exist.
    """
    by_name: dict[str, Dimension] = {name: name for name in DIMENSIONS}
    chosen = dict.fromkeys(DIMENSIONS if names is None else names)
    for name in chosen:
        if name not in by_name:
            raise UnknownNameError("dimension", name, DIMENSIONS)
    return tuple(by_name[name] for name in chosen)


def _class(task: TaskRecord) -> tuple[str, ...]:
    """Return the class of a task of MedAgentBench's task file, whose key is ``task5_21``; nothing for other tasks."""
    key = re.fullmatch(r"task(\d+)_\d+", task.key)
    return (f"{int(key[1]):2} {task.title}",) if key else ()


def _normalized(reason: str) -> str:
    """Return a reason without quoted details and numbers, so that equal mistakes are counted together."""
    line = reason.partition("\n")[0]
    return _NUMBER.sub("N", _QUOTED.sub("'…'", line))


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


_KEYS: Mapping[Dimension, Callable[[EpisodeMetrics], tuple[str, ...]]] = MappingProxyType(
    {
        "agent": lambda episode: (episode.agent,),
        "pack": lambda episode: (episode.env_id,),
        "kind": lambda episode: (episode.task.task_kind,),
        "difficulty": lambda episode: (episode.difficulty,),
        "category": lambda episode: (episode.task.category,),
        "class": lambda episode: _class(episode.task),
        "task": lambda episode: (episode.env_id, episode.task.key, episode.task.title),
        "split": lambda episode: (episode.task.split,),
    }
)
