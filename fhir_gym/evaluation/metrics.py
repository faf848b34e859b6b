"""Metrics of one episode and of many episodes."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

from fhir_gym.agents import Usage
from fhir_gym.evaluation.failure_modes import failure_modes
from fhir_gym.evaluation.intervals import IntervalMethod, rate_interval
from fhir_gym.rollouts import Rollout, TaskRecord
from fhir_gym.tasks import Verdict


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values in ascending order, and their summary. A summary is None if it needs more values than there are.

    Attributes:
        values: The values in ascending order.
    """

    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Return the distribution of values in any order."""
        return cls(tuple(sorted(values)))

    @property
    def n(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """The mean."""
        return math.fsum(self.values) / self.n if self.values else None

    @property
    def sd(self) -> float | None:
        """The sample standard deviation, with divisor n - 1; None with fewer than two values."""
        variance = sample_variance(self.values)
        return None if variance is None else math.sqrt(variance)

    @property
    def min(self) -> float | None:
        """The smallest value."""
        return self.values[0] if self.values else None

    @property
    def q1(self) -> float | None:
        """The first quartile."""
        return self.quantile(0.25)

    @property
    def median(self) -> float | None:
        """The median."""
        return self.quantile(0.5)

    @property
    def q3(self) -> float | None:
        """The third quartile."""
        return self.quantile(0.75)

    @property
    def max(self) -> float | None:
        """The largest value."""
        return self.values[-1] if self.values else None

    def quantile(self, share: float) -> float | None:
        """Return a quantile, interpolated linearly between neighbouring values (NumPy's default).

        Args:
            share: From 0 to 1.
        """
        if not self.values:
            return None
        place = share * (self.n - 1)
        low = math.floor(place)
        high = min(low + 1, self.n - 1)
        return self.values[low] + (place - low) * (self.values[high] - self.values[low])

    def plain(self) -> dict[str, Any]:
        """Return the summary as plain data for JSON."""
        names = ("mean", "sd", "min", "q1", "median", "q3", "max")
        return {"n": self.n} | {name: rounded(getattr(self, name)) for name in names}


def sample_variance(values: Iterable[float]) -> float | None:
    """Return the variance with divisor n - 1; None with fewer than two values."""
    numbers = list(values)
    if len(numbers) < 2:
        return None
    mean = math.fsum(numbers) / len(numbers)
    return math.fsum((value - mean) ** 2 for value in numbers) / (len(numbers) - 1)


def rounded(value: float | None) -> float | None:
    """Return a number with six digits after the point, as reports print numbers in JSON."""
    return None if value is None else round(value, 6)


_TOOLS = {
    "createResource": "create",
    "searchResources": "search",
    "getResourceById": "read",
    "updateResource": "update",
    "deleteResource": "delete",
}
"""The interaction of each FHIR tool."""


class ToolCalls(NamedTuple):
    """Number of calls of a tool for a resource type in one episode.

    Attributes:
        tool: The interaction that the server carried out (``search``), whether the agent called a tool or wrote a text.
        resource_type: The resource type; empty if it is not known.
        calls: Number of calls.
        errors: Number of calls that failed.
    """

    tool: str
    resource_type: str
    calls: int
    errors: int


@dataclass(frozen=True, slots=True)
class EpisodeMetrics:
    """The parts of one record that a report needs. They are small, so a report of many episodes fits into memory.

    Attributes:
        agent: Name of the agent.
        settings: The agent's settings as JSON text.
        env_id: Env id of the pack.
        task: The task and the variation.
        key: Pack, task, variation, hash of the variation and repeat; they identify the episode for all agents.
        conditions: Other conditions by name. Episodes with different conditions are not comparable.
        success: Whether the verdict is a success; None for an episode without a verdict.
        light: Whether light validation passed; None without light validation.
        reward: The reward; None for an episode without a verdict.
        steps: Number of turns.
        requests: Number of requests that the server answered; each entry of a Bundle counts. 0 without a verdict.
        reference: Number of requests of the reference solution; None if it is not known.
        invalid: For each invalid action, the reason why it was invalid.
        usage: Token counts; None if no tokens were recorded.
        stop: Why the episode ended.
        replies: Kind and finish reason of each model reply.
        error: Message of a failure that was not the agent's fault; None without such a failure.
        checks: Names of the checks, and whether each check passed.
        gradings: For each grading, whether the episode is a success.
        label: The diagnosed error; None for a success and for an episode without a diagnosis.
        tools: The calls of FHIR tools. A tool call with invalid arguments is a failed call.
        failure_modes: The failure modes; empty for a success and for an episode without a verdict.
        tools_known: Whether the task defines tool sequences, without which two failure modes cannot be decided.
        lookups: The calls of tools beside the FHIR tools, such as those of the FHIR specification; each is named after
            its source and tool, and has no resource type.
        drops: Number of times that the agent dropped contents because its context window was full.
        experiment: Name of the experiment; empty unless runs of several experiments are pooled.
    """

    agent: str
    settings: str
    env_id: str
    task: TaskRecord
    key: tuple[str, str, int, str, int]
    conditions: tuple[tuple[str, str], ...]
    success: bool | None
    light: bool | None
    reward: float | None
    steps: int
    requests: int
    reference: int | None
    invalid: tuple[str, ...]
    usage: Usage | None
    stop: str
    replies: tuple[str, ...]
    error: str | None
    checks: tuple[tuple[str, bool], ...]
    gradings: tuple[tuple[str, bool], ...]
    label: str | None
    tools: tuple[ToolCalls, ...] = ()
    failure_modes: tuple[str, ...] = ()
    tools_known: bool = False
    lookups: tuple[ToolCalls, ...] = ()
    drops: int = 0
    experiment: str = ""

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        """Return the metrics of a record."""
        task, verdict = rollout.task, rollout.verdict
        tools = _tool_calls(rollout, verdict) if verdict else ()
        modes: tuple[str, ...] = ()
        if verdict and not rollout.success:
            modes = failure_modes(verdict.process, errors=sum(tool.errors for tool in tools))
        return cls(
            agent=rollout.agent.name,
            settings=json.dumps(rollout.agent.settings, sort_keys=True, ensure_ascii=False),
            env_id=rollout.env_id,
            task=task,
            key=(rollout.env_id, task.key, task.variation, task.hash, rollout.repeat),
            conditions=(
                ("world", f"{rollout.world.name} {rollout.world.hash[:12]}"),
                ("grading", rollout.grading),
                ("reward", rollout.reward_rule),
                ("max_steps", str(rollout.max_steps)),
                ("observations", rollout.observations),
                ("package", rollout.package_version),
            ),
            success=bool(rollout.success) if rollout.graded else None,
            light=rollout.light,
            reward=rollout.reward,
            steps=rollout.steps,
            requests=verdict.process.total if verdict else 0,
            reference=verdict.process.reference if verdict else None,
            invalid=tuple(turn.error for turn in rollout.turns if turn.error is not None),
            usage=rollout.usage,
            stop=rollout.stop_reason,
            replies=tuple(f"{reply.kind} ({reply.finish_reason})" for reply in rollout.replies),
            error=rollout.error,
            checks=tuple((check.name, check.passed) for check in verdict.checks) if verdict else (),
            gradings=tuple(verdict.gradings.items()) if verdict else (),
            label=verdict.diagnosis.error if verdict and verdict.diagnosis else None,
            tools=tools,
            failure_modes=modes,
            tools_known=verdict is not None and verdict.process.tools_selected is not None,
            lookups=_lookups(rollout),
            drops=rollout.drops,
        )

    @property
    def graded(self) -> bool:
        """Whether the episode has a verdict."""
        return self.success is not None

    @property
    def cluster(self) -> tuple[str, str]:
        """Pack and title of the task. The episodes of a task resemble each other, so intervals are clustered by task.

        A benchmark's own task file has many tasks of one kind, which have the same title.
        """
        return self.env_id, self.task.title or self.task.key

    @property
    def prompt(self) -> tuple[str, ...]:
        """The episode without its repeat: repeats of a prompt have the same value."""
        env_id, task, variation, digest, _ = self.key
        return self.experiment, env_id, task, str(variation), digest

    @property
    def episode(self) -> tuple[Hashable, ...]:
        """The episode: runs are compared on episodes with the same value."""
        return self.experiment, *self.key

    @property
    def calls(self) -> int:
        """Number of calls of FHIR tools."""
        return sum(tool.calls for tool in self.tools)

    @property
    def errors(self) -> int:
        """Number of failed calls of FHIR tools."""
        return sum(tool.errors for tool in self.tools)

    @property
    def tokens(self) -> int | None:
        """Number of input and output tokens; None if no tokens were recorded."""
        return None if self.usage is None else self.usage.total

    @property
    def difficulty(self) -> str:
        """Difficulty of the task as a word."""
        return {1: "easy", 2: "medium", 3: "hard"}.get(self.task.difficulty, str(self.task.difficulty))


def _tool_calls(rollout: Rollout, verdict: Verdict) -> tuple[ToolCalls, ...]:
    """Return the interactions of an episode and its invalid tool calls."""
    calls: dict[tuple[str, str], list[int]] = {}
    for call in verdict.process.calls:
        calls[call.tool, call.resource_type] = [call.requests, call.errors]
    for turn in rollout.turns:
        if turn.error is not None and turn.tool is not None and turn.tool != "finish":
            counts = calls.setdefault((_TOOLS.get(turn.tool, "other"), ""), [0, 0])
            counts[0] += 1
            counts[1] += 1
    return tuple(ToolCalls(*key, *counts) for key, counts in sorted(calls.items()))


def _lookups(rollout: Rollout) -> tuple[ToolCalls, ...]:
    """Return the calls of tools beside the FHIR tools."""
    calls: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for lookup in rollout.lookups:
        name = f"{lookup.source}: {lookup.tool}" if lookup.source else "unknown tool"
        calls[name] += 1
        errors[name] += lookup.error
    return tuple(ToolCalls(name, "", calls[name], errors[name]) for name in sorted(calls))


@dataclass(frozen=True, slots=True)
class Rate:
    """The share of episodes with an outcome, with its 95 % interval.

    Attributes:
        count: Number of episodes with the outcome.
        of: Number of episodes.
        clusters: Number of tasks.
        low: Lower bound of the interval, clustered by task; see `fhir_gym.evaluation.rate_interval`.
        high: Upper bound.
        method: How the interval was computed.
        by_repeat: The share in each repeat (all episodes with the same repeat number), in order.
    """

    count: int
    of: int
    clusters: int
    low: float
    high: float
    method: IntervalMethod
    by_repeat: tuple[float, ...]

    @classmethod
    def of_episodes(cls, episodes: Iterable[EpisodeMetrics], outcome: Callable[[EpisodeMetrics], bool | None]) -> Self:
        """Return the share of episodes with an outcome.

        Args:
            episodes: The episodes.
            outcome: Function that returns the outcome; episodes for which it returns None do not count.
        """
        clusters: dict[tuple[str, str], list[bool]] = defaultdict(list)
        repeats: dict[int, list[bool]] = defaultdict(list)
        for episode in episodes:
            success = outcome(episode)
            if success is not None:
                clusters[episode.cluster].append(success)
                repeats[episode.key[4]].append(success)
        interval = rate_interval(clusters.values())
        return cls(
            count=sum(map(sum, clusters.values())),
            of=sum(map(len, clusters.values())),
            clusters=len(clusters),
            low=interval.low,
            high=interval.high,
            method=interval.method,
            by_repeat=tuple(sum(own) / len(own) for _, own in sorted(repeats.items())),
        )

    @property
    def value(self) -> float | None:
        """The share; None without episodes."""
        return self.count / self.of if self.of else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation of the share over repeats; None with fewer than two repeats."""
        variance = sample_variance(self.by_repeat)
        return None if variance is None else math.sqrt(variance)

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "count": self.count,
            "of": self.of,
            "share": rounded(self.value),
            "low": rounded(self.low),
            "high": rounded(self.high),
            "method": self.method,
            "clusters": self.clusters,
            "sd": rounded(self.sd),
            "by_repeat": [rounded(share) for share in self.by_repeat],
        }


@dataclass(frozen=True, slots=True)
class AggregateMetrics:
    """Metrics of several episodes. Means include only graded episodes; they are None without graded episodes.

    Attributes:
        episodes: Number of all episodes, including episodes without a verdict.
        graded: Number of graded episodes.
        success: Proportion of successful episodes.
        light: Proportion of episodes that pass light validation, among those that have it.
        reward: Mean reward.
        steps: Mean number of actions.
        requests: Mean number of requests to the server.
        of_reference: Mean number of requests divided by that of the reference solution, over the successes for which
            it is known; None without any.
        invalid: Mean number of invalid actions.
        with_invalid: Number of episodes with at least one invalid action.
        drops: Mean number of times that the agent dropped contents because its context window was full.
        prompt_tokens: Mean number of input tokens; None if no record counts them.
        completion_tokens: Mean number of output tokens; None if no record counts them.
    """

    episodes: int
    graded: int
    success: Rate
    light: Rate
    reward: float | None
    steps: float | None
    requests: float | None
    of_reference: float | None
    invalid: float | None
    with_invalid: int
    drops: float | None
    prompt_tokens: float | None
    completion_tokens: float | None

    @classmethod
    def of(cls, metrics: Sequence[EpisodeMetrics]) -> Self:
        """Return the metrics of several episodes."""
        graded = [episode for episode in metrics if episode.graded]
        usages = [episode.usage for episode in graded if episode.usage is not None]
        return cls(
            episodes=len(metrics),
            graded=len(graded),
            success=Rate.of_episodes(graded, lambda metric: metric.success),
            light=Rate.of_episodes(graded, lambda metric: metric.light),
            reward=mean(episode.reward or 0.0 for episode in graded),
            steps=mean(episode.steps for episode in graded),
            requests=mean(episode.requests for episode in graded),
            of_reference=mean(
                episode.requests / episode.reference for episode in graded if episode.success and episode.reference
            ),
            invalid=mean(len(episode.invalid) for episode in graded),
            with_invalid=sum(bool(episode.invalid) for episode in graded),
            drops=mean(episode.drops for episode in graded),
            prompt_tokens=mean(usage.prompt for usage in usages),
            completion_tokens=mean(usage.completion for usage in usages),
        )

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.plain() if isinstance(value, Rate) else value for name, value in values.items()}


def mean(values: Iterable[float]) -> float | None:
    """Return the mean of some values, rounded to six decimals; None if there are none."""
    numbers = list(values)
    return round(math.fsum(numbers) / len(numbers), 6) if numbers else None
