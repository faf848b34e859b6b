"""The success of an agent on the variations of several tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from math import fsum
from statistics import fmean
from typing import Any, Self

from fhir_gym.evaluation import Attempts, ClusteredMean, clustered_mean, rate_interval, wilson
from fhir_gym.rollouts import Rollout


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one graded episode.

    Attributes:
        env_id: The pack.
        task: Key of the task.
        variation: Number of the variation.
        success: Whether the episode succeeded.
        metrics: Further numbers, such as ``steps`` and ``reward``; an evaluation has their means.
    """

    env_id: str
    task: str
    variation: int
    success: bool
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        """Return the outcome of a graded rollout."""
        metrics = {
            "reward": rollout.reward or 0.0,
            "steps": float(rollout.steps),
            "invalid_actions": float(sum(turn.error is not None for turn in rollout.turns)),
            "truncated": float(rollout.stop_reason != "finished"),
        }
        if rollout.usage is not None:
            metrics |= {"tokens_read": float(rollout.usage.prompt), "tokens_written": float(rollout.usage.completion)}
        return cls(rollout.env_id, rollout.task.key, rollout.task.variation, bool(rollout.success), metrics)


@dataclass(frozen=True, slots=True)
class TaskSuccess:
    """The successes of one task.

    Attributes:
        env_id: The pack.
        task: Key of the task.
        successes: Number of successful episodes.
        episodes: Number of episodes.
        interval: The 95 % interval of the success rate; see `Evaluation.interval`.
    """

    env_id: str
    task: str
    successes: int
    episodes: int
    interval: tuple[float, float]

    @property
    def success(self) -> float:
        """Share of successful episodes."""
        return self.successes / self.episodes


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Successes by variation, and means of further metrics. Only graded episodes count.

    Attributes:
        attempts: The attempts at each variation.
        metrics: Mean of each metric over the episodes that have it.
        not_graded: Number of episodes without a verdict, because the server or the model's provider failed.

    Examples:
        >>> outcomes = [Outcome("pack", "01", 1000, True), Outcome("pack", "01", 1001, False)]
        >>> Evaluation.from_outcomes(outcomes).success
        0.5
    """

    attempts: tuple[Attempts, ...]
    metrics: Mapping[str, float]
    not_graded: int = 0

    @classmethod
    def from_outcomes(cls, outcomes: Iterable[Outcome], not_graded: int = 0) -> Self:
        """Count outcomes by variation."""
        counts: dict[tuple[str, str, int], list[int]] = {}
        values: dict[str, list[float]] = {}
        for outcome in outcomes:
            count = counts.setdefault((outcome.env_id, outcome.task, outcome.variation), [0, 0])
            count[0] += outcome.success
            count[1] += 1
            for name, value in outcome.metrics.items():
                values.setdefault(name, []).append(value)
        attempts = tuple(Attempts(*key, *counts[key]) for key in sorted(counts))
        metrics = {name: round(fsum(numbers) / len(numbers), 6) for name, numbers in sorted(values.items())}
        if metrics.get("steps"):
            metrics["invalid_rate"] = round(metrics.get("invalid_actions", 0.0) / metrics["steps"], 6)
        return cls(attempts, metrics, not_graded)

    @classmethod
    def from_rollouts(cls, rollouts: Iterable[Rollout]) -> Self:
        """Count rollouts by variation; those without a verdict are counted separately."""
        outcomes, not_graded = [], 0
        for rollout in rollouts:
            if rollout.graded:
                outcomes.append(Outcome.of(rollout))
            else:
                not_graded += 1
        return cls.from_outcomes(outcomes, not_graded)

    @classmethod
    def pooled(cls, evaluations: Iterable[Self]) -> Self:
        """Return several evaluations as one; metrics are weighted with the numbers of episodes.

        The attempts of different runs at one variation stay apart, so they do not count as repeats.
        """
        listed = list(evaluations)
        values: dict[str, list[tuple[float, int]]] = {}
        for evaluation in listed:
            for name, value in evaluation.metrics.items():
                values.setdefault(name, []).append((value, evaluation.episodes))
        metrics = {
            name: round(
                fsum(value * weight for value, weight in weighted) / max(1, sum(weight for _, weight in weighted)), 6
            )
            for name, weighted in sorted(values.items())
        }
        attempts = tuple(task_attempts for evaluation in listed for task_attempts in evaluation.attempts)
        return cls(attempts, metrics, sum(evaluation.not_graded for evaluation in listed))

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Read the result of `plain`."""
        attempts = tuple(Attempts(*row) for row in data["attempts"])
        return cls(attempts, dict(data["metrics"]), int(data["not_graded"]))

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        attempts = [list(astuple(variation)) for variation in self.attempts]
        return {"attempts": attempts, "metrics": dict(self.metrics), "not_graded": self.not_graded}

    @property
    def successes(self) -> int:
        """Number of successful episodes."""
        return sum(task_attempts.successes for task_attempts in self.attempts)

    @property
    def episodes(self) -> int:
        """Number of graded episodes."""
        return sum(task_attempts.episodes for task_attempts in self.attempts)

    @property
    def success(self) -> float:
        """Share of successful episodes; 0 without episodes."""
        return self.successes / self.episodes if self.episodes else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the success rate.

        It is Wilson's interval if each variation has one episode. The episodes of one variation, of several attempts
        or of pooled runs, are not independent, so the interval is clustered by variation if there are such.
        """
        clusters = self._by_variation()
        if all(len(cluster) <= 1 for cluster in clusters.values()):
            return wilson(self.successes, self.episodes)
        interval = rate_interval(clusters.values())
        return interval.low, interval.high

    def difference(self, other: Evaluation) -> ClusteredMean | None:
        """Return the mean difference to another evaluation in the success rate of a variation.

        Each variation that both evaluated has the same weight. Without common variations, the result is None.
        """
        own, reference = self._by_variation(), other._by_variation()
        return clustered_mean([fmean(own[key]) - fmean(reference[key])] for key in own if key in reference)

    def _by_variation(self) -> dict[tuple[str, str, int], list[bool]]:
        """Return the outcomes of each variation that has a graded episode."""
        outcomes: dict[tuple[str, str, int], list[bool]] = {}
        for task_attempts in self.attempts:
            own = outcomes.setdefault((task_attempts.env_id, task_attempts.task, task_attempts.variation), [])
            own += [True] * task_attempts.successes + [False] * (task_attempts.episodes - task_attempts.successes)
        return outcomes

    @property
    def tasks(self) -> tuple[TaskSuccess, ...]:
        """The successes by task, sorted."""
        tasks: dict[tuple[str, str], list[Attempts]] = {}
        for task_attempts in self.attempts:
            tasks.setdefault((task_attempts.env_id, task_attempts.task), []).append(task_attempts)
        own = {key: Evaluation(tuple(attempts), {}) for key, attempts in sorted(tasks.items())}
        return tuple(TaskSuccess(*key, task.successes, task.episodes, task.interval) for key, task in own.items())

    def tasks_at(self, share: float) -> int:
        """Return the number of tasks with at least this success rate."""
        return sum(task.success >= share for task in self.tasks)
