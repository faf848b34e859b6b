"""Metrics of one episode and of many episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from fhir_gym.agents import Usage
from fhir_gym.rollouts import Rollout, TaskRecord

_Z = 1.959963984540054
"""Quantile of the normal distribution for a two-sided 95 % interval."""


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a proportion; it is also valid for few trials and near 0 and 1.

    Args:
        successes: Number of successes.
        trials: Number of trials; for 0 trials, the interval is (0, 1).
    """
    if trials == 0:
        return 0.0, 1.0
    share, z2 = successes / trials, _Z * _Z
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    # Where the formula gives exactly 0 or 1, rounding errors must not move the bound.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    return low, 1.0 if successes == trials else min(1.0, centre + half)


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
        requests: Number of turns that sent a request to the server.
        invalid: For each invalid action, the reason why it was invalid.
        usage: Token counts; None if no tokens were recorded.
        stop: Why the episode ended.
        replies: Kind and finish reason of each model reply.
        error: Message of a failure that was not the agent's fault; None without such a failure.
        checks: Names of the checks, and whether each check passed.
        gradings: For each grading, whether the episode is a success.
        label: The diagnosed error; None for a success and for an episode without a diagnosis.
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
    invalid: tuple[str, ...]
    usage: Usage | None
    stop: str
    replies: tuple[str, ...]
    error: str | None
    checks: tuple[tuple[str, bool], ...]
    gradings: tuple[tuple[str, bool], ...]
    label: str | None

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        """Return the metrics of a record."""
        task, verdict = rollout.task, rollout.verdict
        replies = [turn.reply for turn in rollout.turns if turn.reply is not None]
        return cls(
            agent=rollout.agent.name,
            settings=json.dumps(rollout.agent.settings, sort_keys=True, ensure_ascii=False),
            env_id=rollout.env_id,
            task=task,
            key=(rollout.env_id, task.key, task.variation, task.hash, rollout.repeat),
            conditions=(
                ("world", f"{rollout.world.name} {rollout.world.hash[:12]}"),
                ("grading", rollout.grading),
                ("max_steps", str(rollout.max_steps)),
                ("package", rollout.package_version),
            ),
            success=bool(rollout.success) if rollout.graded else None,
            light=rollout.light,
            reward=rollout.reward,
            steps=rollout.steps,
            requests=sum(turn.status != 0 for turn in rollout.turns),
            invalid=tuple(turn.error for turn in rollout.turns if turn.error is not None),
            usage=rollout.usage,
            stop=rollout.stop_reason,
            replies=tuple(f"{reply.kind} ({reply.finish_reason})" for reply in replies),
            error=rollout.error,
            checks=tuple((check.name, check.passed) for check in verdict.checks) if verdict else (),
            gradings=tuple(verdict.gradings.items()) if verdict else (),
            label=verdict.diagnosis.error if verdict and verdict.diagnosis else None,
        )

    @property
    def graded(self) -> bool:
        """Whether the episode has a verdict."""
        return self.success is not None

    @property
    def difficulty(self) -> str:
        """Difficulty of the task as a word."""
        return {1: "easy", 2: "medium", 3: "hard"}.get(self.task.difficulty, str(self.task.difficulty))


@dataclass(frozen=True, slots=True)
class Proportion:
    """A proportion with its 95 % interval."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        """The proportion; None if there were no trials."""
        return self.count / self.of if self.of else None

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        low, high = wilson(self.count, self.of)
        share = None if self.value is None else round(self.value, 6)
        return {"count": self.count, "of": self.of, "share": share, "low": round(low, 6), "high": round(high, 6)}


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
        invalid: Mean number of invalid actions.
        with_invalid: Number of episodes with at least one invalid action.
        prompt_tokens: Mean number of input tokens; None if no record counts them.
        completion_tokens: Mean number of output tokens; None if no record counts them.
    """

    episodes: int
    graded: int
    success: Proportion
    light: Proportion
    reward: float | None
    steps: float | None
    requests: float | None
    invalid: float | None
    with_invalid: int
    prompt_tokens: float | None
    completion_tokens: float | None

    @classmethod
    def of(cls, metrics: Sequence[EpisodeMetrics]) -> Self:
        """Return the metrics of several episodes."""
        graded = [one for one in metrics if one.graded]
        light = [one.light for one in graded if one.light is not None]
        usages = [one.usage for one in graded if one.usage is not None]
        return cls(
            episodes=len(metrics),
            graded=len(graded),
            success=Proportion(sum(one.success is True for one in graded), len(graded)),
            light=Proportion(sum(light), len(light)),
            reward=_mean(one.reward or 0.0 for one in graded),
            steps=_mean(one.steps for one in graded),
            requests=_mean(one.requests for one in graded),
            invalid=_mean(len(one.invalid) for one in graded),
            with_invalid=sum(bool(one.invalid) for one in graded),
            prompt_tokens=_mean(usage.prompt for usage in usages),
            completion_tokens=_mean(usage.completion for usage in usages),
        )

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.plain() if isinstance(value, Proportion) else value for name, value in values.items()}


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return round(math.fsum(found) / len(found), 6) if found else None
