"""Read runs from rollout files and from the folders of experiments."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from fhir_gym.agents import CONFIGURATIONS
from fhir_gym.errors import RecordError
from fhir_gym.evaluation.metrics import EpisodeMetrics
from fhir_gym.rollouts import Rollout, no_rollouts, read_rollouts
from fhir_gym.run_files import folder_of_rollouts, model_name, names_by_settings, rollout_files, unique_names
from fhir_gym.types import as_object

_MAX_NUMBER = 10**15


@dataclass(frozen=True)
class AgentRun:
    """The episodes of one agent in one file.

    Attributes:
        name: Short name that is unique in a report.
        source: The file.
        agent: Name of the agent.
        episodes: Metrics of the episodes, with one record per episode.
        repeated: Number of records that were left out because the file contains the same episode several times.
        experiment: Name of the experiment whose folder contains the file; empty without one.
        configuration: Name of the agent's configuration: in an experiment the file's name, otherwise the run's name.
    """

    name: str
    source: str
    agent: str
    settings: dict[str, Any]
    episodes: tuple[EpisodeMetrics, ...]
    repeated: int = 0
    experiment: str = ""
    configuration: str = ""


@dataclass(frozen=True, slots=True)
class _Source:
    """A rollout file and the experiment that it belongs to."""

    path: Path
    experiment: str = ""
    configuration: str = ""


@dataclass(frozen=True, slots=True)
class _Found:
    """The episodes of one agent in one file, before the run has a name."""

    source: _Source
    agent: str
    settings: dict[str, Any]
    episodes: tuple[EpisodeMetrics, ...]
    repeated: int


def read_runs(paths: Sequence[str | PathLike[str]]) -> tuple[AgentRun, ...]:
    """Read the runs in rollout files and folders. Each combination of file, agent and settings is one run.

    If a file has several records of an episode, the first graded record counts, or the last record if none is graded.

    Args:
        paths: Files that `write_rollouts` has written, and folders. A folder stands for the files ``*.jsonl`` in its
            subfolder ``rollouts``, or in itself without such a subfolder. Except for ``rollouts.jsonl``, which an
            evaluation of a suite writes, each is named after a configuration; known configurations come first. The
            experiment has the name in the folder's ``manifest.json``, otherwise that of the folder.

    Raises:
        RecordError: A file cannot be read, contains other data, or is empty; or a folder contains no such file.
    """
    runs = [run for path in paths for source in _sources(Path(path)) for run in _runs(_read(source.path), source)]
    names = _names(runs)
    return tuple(
        AgentRun(
            name=name,
            source=str(run.source.path),
            agent=run.agent,
            settings=run.settings,
            episodes=run.episodes,
            repeated=run.repeated,
            experiment=run.source.experiment,
            configuration=run.source.configuration or name,
        )
        for name, run in zip(names, runs, strict=True)
    )


def pooled_runs(runs: Sequence[AgentRun]) -> tuple[AgentRun, ...]:
    """Merge the runs of each configuration and model over experiments; runs without an experiment stay as they are."""
    groups: dict[tuple[object, ...], list[AgentRun]] = {}
    for number, run in enumerate(runs):
        key: tuple[object, ...] = run.configuration, str(run.settings.get("model"))
        if not run.experiment or run.experiment in {own.experiment for own in groups.get(key, ())}:
            key = (number,)
        groups.setdefault(key, []).append(run)
    names = Counter(own[0].configuration for own in groups.values())
    if len(groups) == len(runs):
        return tuple(runs)
    return tuple(_pooled(own, names) if len(own) > 1 else _among_pooled(own[0]) for own in groups.values())


def _among_pooled(run: AgentRun) -> AgentRun:
    """Return a run that has nothing to be merged with; it is compared with the pooled runs."""
    episodes = tuple(replace(episode, experiment=run.experiment) for episode in run.episodes)
    return replace(run, episodes=episodes, experiment="")


def _pooled(runs: Sequence[AgentRun], names: Counter[str]) -> AgentRun:
    first = runs[0]
    model = (
        [model_name(first.settings["model"])] if names[first.configuration] > 1 and "model" in first.settings else []
    )
    return replace(
        first,
        name=" ".join([first.configuration, *model]),
        source=", ".join(run.source for run in runs),
        episodes=tuple(replace(episode, experiment=run.experiment) for run in runs for episode in run.episodes),
        repeated=sum(run.repeated for run in runs),
        experiment="",
    )


def _sources(path: Path) -> Iterator[_Source]:
    """Yield the rollout files that a path stands for, those of known configurations first and in their order."""
    if not path.is_dir():
        yield _Source(path)
        return
    files = rollout_files(path, [*CONFIGURATIONS])
    if not files:
        raise RecordError(f"{folder_of_rollouts(path)}: contains no rollout files (*.jsonl)")
    experiment = _experiment(path)
    for file in files:
        yield _Source(file) if file.name == "rollouts.jsonl" else _Source(file, experiment, file.stem)


def _experiment(folder: Path) -> str:
    """Return the name of the experiment in a folder."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        manifest = None
    name = as_object(manifest).get("experiment")
    return name if isinstance(name, str) and name else folder.resolve().name


def _read(path: str | PathLike[str]) -> Iterable[Rollout]:
    with warnings.catch_warnings():
        # A running or killed writer leaves an incomplete last line; a report needs no warning about it.
        warnings.simplefilter("ignore", UserWarning)
        yield from read_rollouts(path)


def _runs(rollouts: Iterable[Rollout], source: _Source) -> list[_Found]:
    agents: dict[tuple[str, str], dict[tuple[Any, ...], EpisodeMetrics]] = {}
    repeated: Counter[tuple[str, str]] = Counter()
    for rollout in rollouts:
        _require_plausible(rollout, source.path)
        episode = EpisodeMetrics.of(rollout)
        who = episode.agent, episode.settings
        episodes = agents.setdefault(who, {})
        key = (*episode.key, rollout.seed, episode.conditions)
        earlier = episodes.get(key)
        if earlier is not None:
            # A second run of an ungraded episode does not count as a repetition.
            repeated[who] += earlier.graded and episode.graded
        if earlier is None or not earlier.graded:
            episodes[key] = episode
    if not agents:
        raise no_rollouts(source.path)
    return [
        _Found(
            source, agent, json.loads(settings, parse_constant=str), tuple(episodes.values()), repeated[agent, settings]
        )
        for (agent, settings), episodes in agents.items()
    ]


def _require_plausible(rollout: Rollout, path: Path) -> None:
    """Check the numbers of a record, with which the report calculates.

    Raises:
        RecordError: A number is negative, too large or not a number.
    """
    usage, calls = rollout.usage, rollout.verdict.process.calls if rollout.verdict else ()
    numbers: dict[str, list[float]] = {
        "usage": [usage.prompt, usage.completion] if usage else [],
        "verdict.process.calls": [count for call in calls for count in (call.requests, call.errors)],
        "steps": [rollout.steps],
        "reward": [abs(rollout.reward or 0.0)],
    }
    for name, values in numbers.items():
        if not all(0 <= value <= _MAX_NUMBER for value in values):
            task = f"task {rollout.task.key}, variation {rollout.task.variation}"
            raise RecordError(f"{path}: {task}: {name} contains an impossible number")


def _names(runs: Sequence[_Found]) -> list[str]:
    """Return a name for each run; a number distinguishes equal names.

    The run of an experiment is named after its experiment, if there are several, and its configuration. Other runs, and
    runs of a configuration that has several, are named after the agent and its settings.
    """
    files = [run for run in runs if not run.source.configuration]
    described = [(run.agent, run.settings, run.source.path) for run in files]
    by_settings = dict(zip(map(id, files), names_by_settings(described), strict=True))
    experiments = len({run.source.experiment for run in runs})
    models = len({str(run.settings.get("model")) for run in runs})
    agents = Counter(id(run.source) for run in runs)
    names = []
    for run in runs:
        if run.source.configuration:
            several = models > 1 or agents[id(run.source)] > 1
            parts = [run.source.experiment] if experiments > 1 else []
            model = [model_name(run.settings["model"])] if several and "model" in run.settings else []
            names.append(" ".join([*parts, run.source.configuration, *model]))
        else:
            names.append(by_settings[id(run)])
    return unique_names(names)
