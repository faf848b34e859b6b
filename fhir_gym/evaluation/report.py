"""Read runs from rollout files, group their episodes and compare two runs."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from fhir_gym.errors import RecordError, UnknownNameError
from fhir_gym.evaluation.metrics import AggregateMetrics, EpisodeMetrics
from fhir_gym.evaluation.repeats import Attempts
from fhir_gym.rollouts import Rollout, read_rollouts

Dimension = Literal["agent", "pack", "kind", "difficulty", "category", "task", "split"]
"""A property by which a report groups episodes."""
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
"""All dimensions by which a report can group episodes."""

_ORDER = MappingProxyType({name: f"{n}" for n, name in enumerate(("query", "action", "easy", "medium", "hard"))})
"""Sort keys for names that do not sort alphabetically."""
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_NUMBER = re.compile(r"\d[\d,]*")
_LONG_NUMBER = re.compile(r"\d{4,}")
_MAX_NAME = 40


@dataclass(frozen=True)
class AgentRun:
    """The episodes of one agent in one file.

    Attributes:
        name: Short name that is unique in a report.
        source: The file.
        agent: Name of the agent.
        settings: Settings of the agent.
        episodes: Metrics of the episodes, with one record per episode.
        repeated: Number of records that were left out because the file contains the same episode several times.
    """

    name: str
    source: str
    agent: str
    settings: dict[str, Any]
    episodes: tuple[EpisodeMetrics, ...]
    repeated: int = 0


@dataclass(frozen=True)
class Comparison:
    """A comparison of two runs on the episodes that are graded in both runs.

    Attributes:
        common: Number of episodes that are graded in both runs.
        both: Number of episodes that succeed in both runs.
        first: Number of episodes that succeed only in the first run.
        second: Number of episodes that succeed only in the second run.
        neither: Number of episodes that fail in both runs.
    """

    common: int
    both: int
    first: int
    second: int
    neither: int

    @classmethod
    def of(cls, one: AgentRun, other: AgentRun) -> Comparison:
        """Compare two runs."""
        successes = {episode.key: episode.success for episode in one.episodes if episode.graded}
        pairs = [
            (successes[episode.key], episode.success)
            for episode in other.episodes
            if episode.graded and episode.key in successes
        ]
        counts = Counter(pairs)
        return cls(len(pairs), counts[True, True], counts[True, False], counts[False, True], counts[False, False])


@dataclass(frozen=True)
class Report:
    """The metrics of one or more runs, in total and by group.

    Attributes:
        runs: The runs.
        by: Dimensions by which episodes are grouped.
        left_out: A remark about a dimension that is not shown.

    Examples:
        >>> Report(read_runs(["rollouts.jsonl"]), by=("task",)).total(0).success.value  # doctest: +SKIP
        0.25
    """

    runs: tuple[AgentRun, ...]
    by: tuple[Dimension, ...] = DIMENSIONS
    left_out: str | None = None

    def brief(self, max_tasks: int = 60) -> Report:
        """Return the report. If there are more than `max_tasks` tasks, a remark replaces the groups by task."""
        tasks = len({(episode.env_id, episode.task.key) for run in self.runs for episode in run.episodes})
        if tasks <= max_tasks or "task" not in self.by:
            return self
        by = tuple(name for name in self.by if name != "task")
        return replace(self, by=by, left_out=f"{tasks} tasks: use `--by task` to show one row per task")

    def total(self, run: int) -> AggregateMetrics:
        """Return the metrics of a run, given by its index."""
        return AggregateMetrics.of(self.runs[run].episodes)

    def groups(self, dimension: Dimension) -> list[tuple[str, list[AggregateMetrics | None]]]:
        """Return each value of a dimension with the metrics of every run; None if a run has no such episodes."""
        several_packs = len({episode.env_id for run in self.runs for episode in run.episodes}) > 1
        key = _KEYS[dimension]
        found: dict[tuple[str, ...], list[list[EpisodeMetrics]]] = {}
        for place, run in enumerate(self.runs):
            for episode in run.episodes:
                found.setdefault(key(episode), [[] for _ in self.runs])[place].append(episode)
        rows = []
        for value in sorted(found, key=lambda value: [_ORDER.get(part, part) for part in value]):
            name = " ".join(value[1:]) if dimension == "task" and not several_packs else " ".join(value)
            rows.append((name, [AggregateMetrics.of(episodes) if episodes else None for episodes in found[value]]))
        return rows

    def attempts(self, run: int) -> list[Attempts]:
        """Return the graded attempts of a run at each variation."""
        counts: dict[tuple[str, str, int, str], list[int]] = {}
        for episode in self.runs[run].episodes:
            if episode.graded:
                env_id, task, variation, digest, _ = episode.key
                count = counts.setdefault((env_id, task, variation, digest), [0, 0])
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

    def comparison(self) -> Comparison | None:
        """Compare the two runs of the report; None if the report has another number of runs."""
        return Comparison.of(*self.runs) if len(self.runs) == 2 else None

    def remarks(self) -> list[str]:
        """Return remarks about episodes that are ungraded, are repeated, or differ in their conditions."""
        remarks = [self.left_out] if self.left_out else []
        for run in self.runs:
            count, lost = len(run.episodes), sum(not episode.graded for episode in run.episodes)
            if lost:
                remarks.append(
                    f"{run.name}: {lost} of {count} episodes were not graded and are not included in the averages"
                )
            if run.repeated:
                remarks.append(f"{run.name}: {run.repeated} repeated records were left out")
        values: dict[str, set[str]] = defaultdict(set)
        for episode in (episode for run in self.runs for episode in run.episodes):
            for name, value in (*episode.conditions, ("split", episode.task.split)):
                values[f"{name}\n{episode.env_id}" if name == "max_steps" else name].add(value)
        for name in values:
            if len(values[name]) > 1:
                remarks.append(
                    f"episodes with different {name.partition(chr(10))[0]}: {', '.join(sorted(values[name]))}"
                )
        return remarks


def dimensions(names: Iterable[str] | None = None) -> tuple[Dimension, ...]:
    """Return the dimensions with these names, without repeats; None returns all dimensions.

    Raises:
        UnknownNameError: A dimension does not exist.
    """
    known: dict[str, Dimension] = {name: name for name in DIMENSIONS}
    wanted = dict.fromkeys(DIMENSIONS if names is None else names)
    for name in wanted:
        if name not in known:
            raise UnknownNameError("dimension", name, DIMENSIONS)
    return tuple(known[name] for name in wanted)


def read_runs(paths: Sequence[str | PathLike[str]]) -> tuple[AgentRun, ...]:
    """Read the runs in rollout files. Each combination of file, agent and settings is one run.

    If a file has several records of an episode, the first graded record counts, or the last record if none is graded.

    Args:
        paths: Files that `write_rollouts` has written.

    Raises:
        RecordError: A file cannot be read, contains other data, or is empty.
    """
    found: list[tuple[str, EpisodeMetrics, tuple[EpisodeMetrics, ...], int]] = []
    for path in paths:
        found += [(str(path), *run) for run in _runs(_read(path), str(path))]
    names = _names([(source, first) for source, first, _, _ in found])
    return tuple(
        AgentRun(name, source, first.agent, json.loads(first.settings), episodes, repeated)
        for name, (source, first, episodes, repeated) in zip(names, found, strict=True)
    )


def _read(path: str | PathLike[str]) -> Iterable[Rollout]:
    with warnings.catch_warnings():
        # A running or killed writer leaves an incomplete last line; a report needs no warning about it.
        warnings.simplefilter("ignore", UserWarning)
        yield from read_rollouts(path)


def _runs(rollouts: Iterable[Rollout], source: str) -> list[tuple[EpisodeMetrics, tuple[EpisodeMetrics, ...], int]]:
    agents: dict[tuple[str, str], dict[tuple[Any, ...], EpisodeMetrics]] = {}
    repeated: Counter[tuple[str, str]] = Counter()
    for rollout in rollouts:
        episode = EpisodeMetrics.of(rollout)
        who = episode.agent, episode.settings
        episodes = agents.setdefault(who, {})
        key = (*episode.key, rollout.seed, episode.conditions)
        known = episodes.get(key)
        if known is not None:
            # A second run of an ungraded episode does not count as a repetition.
            repeated[who] += known.graded and episode.graded
        if known is None or not known.graded:
            episodes[key] = episode
    if not agents:
        raise RecordError(f"{source}: contains no rollouts")
    return [
        (next(iter(episodes.values())), tuple(episodes.values()), repeated[who]) for who, episodes in agents.items()
    ]


def _names(runs: Sequence[tuple[str, EpisodeMetrics]]) -> list[str]:
    """Return a short name for each run: agent, model, differing settings, and the file if the name is not unique."""
    settings = [json.loads(episode.settings) for _, episode in runs]
    names = []
    for (_, episode), own in zip(runs, settings, strict=True):
        same = [other for (_, peer), other in zip(runs, settings, strict=True) if peer.agent == episode.agent]
        differing = [key for key in sorted(own) if any(other.get(key) != own[key] for other in same)]
        shown = [f"{key}={_short(own[key])}" for key in differing if key != "model"]
        model = [_model(own["model"])] if "model" in own else []
        names.append(" ".join([episode.agent, *model, *shown]))
    if len(set(names)) < len(names):
        names = [f"{name} ({Path(source).stem})" for name, (source, _) in zip(names, runs, strict=True)]
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return unique


def _model(name: Any) -> str:
    """Return a model's name; an absolute path is reduced to the name of its folder."""
    return _short(Path(name).name if isinstance(name, str) and Path(name).is_absolute() else name)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_NAME else "…" + text[1 - _MAX_NAME :]


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
        "task": lambda episode: (episode.env_id, episode.task.key, episode.task.title),
        "split": lambda episode: (episode.task.split,),
    }
)
