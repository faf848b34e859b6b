"""Metrics of the episodes of one training step, overall and by task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Self

from fhir_gym.rollouts import Rollout
from fhir_gym.training.config import TaskName

STOP_REASONS = ("finished", "step_limit", "context_limit", "unfinished", "infra_error")
"""Why a training episode ends. ``unfinished``: the model stopped calling tools, or TRL's limit of tokens or tool calls
ended the conversation."""


@dataclass(frozen=True, slots=True)
class TrainingEpisode:
    """An episode that a model in training has played.

    Attributes:
        variation: Number of the variation.
        reward: The reward; None after an infrastructure failure.
        success: Whether the episode succeeded; None after an infrastructure failure.
        stop_reason: One of `STOP_REASONS`.
        steps: Number of actions.
        invalid_actions: Number of invalid actions.
        tokens_written: Number of tokens that the model wrote; None if not counted.
        error: The infrastructure failure, if there was one.
        explanation: The verdict's explanation; empty after an infrastructure failure.
    """

    task: TaskName
    variation: int
    reward: float | None
    success: bool | None
    stop_reason: str
    steps: int = 0
    invalid_actions: int = 0
    tokens_written: int | None = None
    error: str | None = None
    explanation: str = ""

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        """Return the episode of a rollout."""
        return cls(
            task=TaskName(rollout.env_id, rollout.task.key),
            variation=rollout.task.variation,
            reward=rollout.reward if rollout.graded else None,
            success=rollout.success if rollout.graded else None,
            stop_reason=rollout.stop_reason,
            steps=rollout.steps,
            invalid_actions=sum(turn.error is not None for turn in rollout.turns),
            tokens_written=None if rollout.usage is None else rollout.usage.completion,
            error=rollout.error,
            explanation="" if rollout.verdict is None else rollout.verdict.explanation,
        )

    @classmethod
    def of_info(cls, env_id: str, reward: float, info: Mapping[str, Any], stop_reason: str = "") -> Self:
        """Return an episode of a pack that ended with a reward and the info of its last step."""
        return cls(
            task=TaskName(env_id, info["task"]),
            variation=info["variation"],
            reward=reward,
            success=info["success"],
            stop_reason=stop_reason or info["stop_reason"],
            steps=info["step"],
            invalid_actions=info["invalid_actions"],
            explanation=info["verdict"]["explanation"],
        )

    @property
    def graded(self) -> bool:
        """Whether the episode has a reward."""
        return self.reward is not None


def has_variance(group: Iterable[TrainingEpisode]) -> bool:
    """Whether the graded episodes of a group have different rewards; otherwise GRPO learns nothing from the group."""
    return len({episode.reward for episode in group if episode.graded}) > 1


def batch_metrics(groups: Sequence[Sequence[TrainingEpisode]]) -> dict[str, float]:
    """Return the metrics of a batch.

    Only graded episodes count, except in ``episodes``, ``not_graded`` and the shares ``stop/<reason>``. Metrics by task
    are named ``task/<pack>/<key>/<metric>``.

    Args:
        groups: The episodes of each group; the members of a group share task, variation and phrasing.

    Examples:
        >>> name = TaskName("FHIRAgent/Appointment-v0", "01")
        >>> group = [TrainingEpisode(name, 0, reward, bool(reward), "finished", steps=2) for reward in (1.0, 0.0)]
        >>> metrics = batch_metrics([group])
        >>> metrics["success"], metrics["groups_without_variance"], metrics["task/Appointment-v0/01/success"]
        (0.5, 0.0, 0.5)
    """
    episodes = [episode for group in groups for episode in group]
    graded = [episode for episode in episodes if episode.graded]
    steps = sum(episode.steps for episode in graded)
    written = [episode.tokens_written for episode in graded if episode.tokens_written is not None]
    stops = Counter(episode.stop_reason for episode in episodes)
    metrics: dict[str, float] = {
        "episodes": len(episodes),
        "not_graded": len(episodes) - len(graded),
        **_results(groups),
        **({"steps": steps / len(graded)} if graded else {}),
        **({"invalid_rate": sum(episode.invalid_actions for episode in graded) / steps} if steps else {}),
        **({"tokens_written": sum(written) / len(written)} if written else {}),
        **{f"stop/{reason}": stops[reason] / len(episodes) for reason in STOP_REASONS if stops[reason]},
    }
    by_task: dict[TaskName, list[Sequence[TrainingEpisode]]] = {}
    for group in groups:
        if group:
            by_task.setdefault(group[0].task, []).append(group)
    for name, own in sorted(by_task.items()):
        pack = name.env_id.rpartition("/")[2]
        metrics |= {f"task/{pack}/{name.task}/{key}": value for key, value in _results(own).items()}
    return {name: round(value, 6) for name, value in metrics.items()}


def _results(groups: Sequence[Sequence[TrainingEpisode]]) -> dict[str, float]:
    """Return success, reward and the share of groups without variance; nothing without graded episodes."""
    graded = [[episode for episode in group if episode.graded] for group in groups]
    rewards = [episode.reward or 0.0 for group in graded for episode in group]
    repeated = [group for group in graded if len(group) > 1]
    if not rewards:
        return {}
    return {
        "success": sum(bool(episode.success) for group in graded for episode in group) / len(rewards),
        "reward": fsum(rewards) / len(rewards),
        **(
            {"groups_without_variance": sum(not has_variance(group) for group in repeated) / len(repeated)}
            if repeated
            else {}
        ),
    }
