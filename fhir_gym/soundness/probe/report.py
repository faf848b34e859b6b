"""Results of the probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MOST_COMMON = 0.6
"""Highest share of the variations that may have the same answer."""
LEARNERS = 3
"""Number of learners that search for the target; the bound is corrected for this number."""


@dataclass(frozen=True, slots=True)
class RankerReport:
    """How often learners that never see the prompt find the target record.

    Attributes:
        kind: Resource type of the target.
        tried: Number of test scenes.
        top: Share of scenes in which the target is the learner's first choice among the qualifying records.
        top_within: Like `top`, for a learner trained on qualifying records only.
        top_rule: Like `top`, for the single feature that was best in training.
        top_of_all: Share of scenes in which the target is the learner's first choice among all candidates.
        fair: Mean success rate of a random guess among the qualifying records.
        qualifying: Mean number of qualifying records.
        bound: Highest share that chance can explain.
        ceiling: Absolute limit for `top`.
        telling: The single features that predict the target best, with their success rates.
    """

    kind: str
    tried: int
    top: float
    top_within: float
    top_rule: float
    top_of_all: float
    fair: float
    qualifying: float
    bound: float
    ceiling: float = 1.0
    telling: tuple[tuple[str, float], ...] = ()

    @property
    def best(self) -> float:
        """The success rate of the best learner."""
        return max(self.top, self.top_within, self.top_rule)

    @property
    def leaks(self) -> bool:
        """Whether a learner finds the target more often than fair guesses can."""
        return self.best > self.bound or self.top > self.ceiling


@dataclass(frozen=True, slots=True)
class BlindReport:
    """How often a learner predicts the answer from counts.

    Tasks that share their prompts have one report together.

    Attributes:
        tasks: Keys of the tasks.
        question: What the learner predicts: ``the answer``, or whether the answer is the usual one (``the usual
            answer or another``). Both are tried; the report shows the worse result.
        tried: Number of test scenes.
        right: Share of right predictions.
        majority: The most frequent answer in the test scenes.
        share: Share of the test scenes with the most frequent answer.
        share_of_all: Share of all scenes, including training scenes, with their most frequent answer.
        classes: Number of distinct answers.
        bound: Highest share of right predictions that chance can explain.
    """

    tasks: tuple[str, ...]
    question: str
    tried: int
    right: float
    majority: str
    share: float
    share_of_all: float
    classes: int
    bound: float

    @property
    def leaks(self) -> bool:
        """Whether the counts predict the answer better than a constant guess of the most frequent answer."""
        return self.right > self.bound

    @property
    def lopsided(self) -> bool:
        """Whether the same answer is right in too many scenes."""
        return self.classes > 1 and self.share_of_all > MOST_COMMON


@dataclass(frozen=True, slots=True)
class TaskProbe:
    """Results for one task.

    Attributes:
        env: Env id.
        task: Key of the task.
        declared: Whether the task's variations declare their target and the qualifying records. Otherwise the target
            is the record that the reference solution uses, and all seeded records of its type qualify.
        ranker: Results of predicting the target; None if too few variations have a single target.
        blind: Results of predicting the answer.
        mismatches: Variations whose declared target disagrees with the reference solution, with the reason.
    """

    env: str
    task: str
    declared: bool
    ranker: RankerReport | None
    blind: BlindReport
    mismatches: tuple[str, ...] = ()

    @property
    def problems(self) -> list[str]:
        """The problems of the task."""
        lines = []
        if self.ranker is not None and self.ranker.leaks:
            lines.append("the target is found without the prompt")
        if self.blind.leaks:
            lines.append(f"{self.blind.question} is guessed from counts")
        if self.blind.lopsided:
            lines.append(f"one answer is right in {self.blind.share_of_all:.0%} of the variations")
        return lines + [f"wrong target: {mismatch}" for mismatch in self.mismatches]

    @property
    def sound(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Results for several tasks.

    Attributes:
        tasks: One report per task.
    """

    tasks: tuple[TaskProbe, ...]

    @property
    def sound(self) -> bool:
        """Whether all tasks are sound."""
        return all(task.sound for task in self.tasks)

    columns = (
        *("env", "task", "declared", "type", "top %", "within %", "rule %", "fair %", "bound %", "of all %"),
        *("candidates", "finds it", "guess %", "majority %", "bound %", "answers", "guesses it"),
    )
    """Column headings of the table."""

    def rows(self) -> list[tuple[str, ...]]:
        """The rows of the table."""
        return [_row(task) for task in self.tasks]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-serialisable data."""
        return {
            "sound": self.sound,
            "tasks": [{**asdict(task), "sound": task.sound, "problems": task.problems} for task in self.tasks],
        }


def _row(task: TaskProbe) -> tuple[str, ...]:
    rank, blind = task.ranker, task.blind
    ranked: Sequence[str] = [""] * 9
    if rank is not None:
        bound = min(rank.bound, rank.ceiling)
        shares = (rank.top, rank.top_within, rank.top_rule, rank.fair, bound, rank.top_of_all)
        ranked = [rank.kind, *map(_percent, shares), f"{rank.qualifying:.1f}", "YES" if rank.leaks else "no"]
    return (
        task.env.rpartition("/")[2],
        task.task,
        "yes" if task.declared else "no",
        *ranked,
        *(_percent(share) for share in (blind.right, blind.share, blind.bound)),
        str(blind.classes),
        "YES" if blind.leaks else "lopsided" if blind.lopsided else "no",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
