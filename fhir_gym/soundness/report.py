"""Results of soundness checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from fhir_gym.soundness.policy_groups import GROUPS, Group
from fhir_gym.tasks import get_pack

_LARGEST_SHARE = 0.01
"""Highest success rate that a constant answer may have in an environment."""
_MAY_COINCIDE = 2
"""Maximum number of variations that may share an answer with ids.

Ids are drawn anew for each variation, so more equal answers are not a coincidence.
"""
_REPORTED: tuple[Group, ...] = ("says none", "first hit", "hasty search", "guessed number")
"""Groups whose success rate has its own column in the task table."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An episode with a wrong verdict, and the data to replay the episode.

    Attributes:
        env: Env id.
        task: Key of the task.
        variation: Number of the variation.
        group: Group of the policy.
        policy: Name of the policy.
        problem: Why the verdict is wrong.
        grading: How the episode was graded.
        actions: The actions as text.
        explanation: Explanation of the verdict.
    """

    env: str
    task: str
    variation: int
    group: Group
    policy: str
    problem: str
    grading: str
    actions: tuple[str, ...]
    explanation: str


@dataclass(slots=True)
class Tally:
    """Episode counts of a group of policies.

    Attributes:
        runs: Number of episodes.
        passed: Number of successes.
        rightly: Number of successes that had the same writes and answer as the reference solution.
        lightly: Number of episodes that light validation accepts.
    """

    runs: int = 0
    passed: int = 0
    rightly: int = 0
    lightly: int = 0

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.runs += other.runs
        self.passed += other.passed
        self.rightly += other.rightly
        self.lightly += other.lightly

    @property
    def share(self) -> float:
        """The success rate."""
        return self.passed / self.runs if self.runs else 0.0


@dataclass(slots=True)
class TaskReport:
    """Results for one task.

    Attributes:
        env: Env id.
        task: Key of the task.
        kind: ``query`` or ``action``.
        variations: Number of variations.
        tallies: Episode counts for each group of policies.
        gold_steps: Number of actions in the longest reference episode.
        checks: Names of all checks.
        covered: Names of the checks that at least once rejected a wrong episode alone.
        answers: Maps each right answer (as JSON) to its number of variations.
        sufficient: Like `answers`, for variations that require no evidence and whose answer is not outcomes by letter.
        constants: Maps each constant answer to its number of successes.
        setup_ms: CPU time in milliseconds for drawing and opening each variation.
        failures: Episodes with wrong verdicts.
    """

    env: str
    task: str
    kind: str = "query"
    variations: int = 0
    tallies: dict[Group, Tally] = field(default_factory=dict)
    gold_steps: int = 0
    checks: list[str] = field(default_factory=list)
    covered: list[str] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    sufficient: dict[str, int] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    setup_ms: list[float] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: TaskReport) -> None:
        """Add the results for other variations of the same task."""
        self.variations += other.variations
        for group, tally in other.tallies.items():
            self.tallies.setdefault(group, Tally()).add(tally)
        self.gold_steps = max(self.gold_steps, other.gold_steps)
        self.checks += [name for name in other.checks if name not in self.checks]
        self.covered += [name for name in other.covered if name not in self.covered]
        self.answers = dict(Counter(self.answers) + Counter(other.answers))
        self.sufficient = dict(Counter(self.sufficient) + Counter(other.sufficient))
        self.constants = dict(Counter(self.constants) + Counter(other.constants))
        self.setup_ms += other.setup_ms
        self.failures += other.failures

    @property
    def uncovered(self) -> list[str]:
        """Names of the checks that never rejected a wrong episode alone."""
        return [name for name in self.checks if name not in self.covered]

    @property
    def common_answer(self) -> float:
        """Share of variations with the most common answer."""
        return max(self.answers.values(), default=0) / self.variations if self.variations else 0.0

    @property
    def original_calls(self) -> tuple[int, int] | None:
        """Minimum and maximum number of requests of the published task; None for a task without published numbers."""
        return get_pack(self.env).published_calls.get(self.task)

    @property
    def problems(self) -> list[str]:
        """Problems of the task that are not failures of single episodes."""
        problems = []
        if self.uncovered:
            problems.append(f"checks that never rejected a wrong episode alone: {', '.join(self.uncovered)}")
        if (calls := self.original_calls) and not calls[0] - 1 <= self.gold_steps - 1 <= calls[1] + 1:
            problems.append(
                f"the solution needs {self.gold_steps - 1} requests, the published task {calls[0]} to {calls[1]}"
            )
        for answer, count in self.sufficient.items():
            if count > _MAY_COINCIDE and '"' in answer:
                problems.append(f"{count} variations have the answer {answer}")
        return problems

    @property
    def sound(self) -> bool:
        """Whether there are no failures and no problems."""
        return not self.failures and not self.problems


@dataclass(frozen=True, slots=True)
class SoundnessReport:
    """Results for several tasks.

    Attributes:
        world: Name of the world.
        tasks: One report per task.
        whole: Env ids of the packs with all tasks checked.
    """

    world: str
    tasks: tuple[TaskReport, ...]
    whole: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether every task is sound and no constant answer succeeds too often in an environment."""
        return all(task.sound for task in self.tasks) and not self.problems

    @property
    def problems(self) -> list[str]:
        """Problems that concern a whole environment."""
        return [
            f"{env}: an agent that always {name} succeeds in {share:.1%} of the episodes"
            for env in self.whole
            for name, share in [self.best_constant(env)]
            if share > _LARGEST_SHARE
        ]

    def best_constant(self, env: str) -> tuple[str, float]:
        """The most successful constant answer in an environment, and its success rate."""
        tasks = [task for task in self.tasks if task.env == env]
        totals: Counter[str] = sum((Counter(task.constants) for task in tasks), Counter())
        name, count = max(totals.items(), key=lambda item: item[1], default=("none", 0))
        return name, count / max(1, sum(task.variations for task in tasks))

    @property
    def columns(self) -> tuple[str, ...]:
        """Column headings of the task table."""
        shares = (f"{group} %" for group in _REPORTED)
        counts = ("gold", "equivalents", "wrong ways")
        return ("env", "task", *counts, *shares, "same answer %", "steps", "setup ms", "checks needed", "sound")

    def rows(self) -> list[tuple[str, ...]]:
        """The rows of the task table: one row per task with its success counts."""
        return [_row(task) for task in self.tasks]

    group_columns = ("env", "policies", "do", "must", "succeeded", "of", "%")
    """Column headings of the policy table."""

    def group_rows(self) -> list[tuple[str, ...]]:
        """The rows of the policy table: the success rate of each group in each environment."""
        rows: list[tuple[str, ...]] = []
        for env in dict.fromkeys(task.env for task in self.tasks):
            tasks = [task for task in self.tasks if task.env == env]
            for group, (expected, about) in GROUPS.items():
                tally = _sum(task.tallies[group] for task in tasks if group in task.tallies)
                if tally.runs:
                    counts = (str(tally.passed), str(tally.runs), f"{tally.share:.2%}")
                    rows.append((env, group, about, expected, *counts))
        return rows

    summary_columns = ("env", "tasks", "variations", "gold %", "checks needed", "best constant", "its share", "sound")
    """Column headings of the environment table."""

    def summary_rows(self) -> list[tuple[str, ...]]:
        """The rows of the environment table: totals over all tasks."""
        rows: list[tuple[str, ...]] = []
        for env in dict.fromkeys(task.env for task in self.tasks):
            tasks = [task for task in self.tasks if task.env == env]
            gold = _sum(task.tallies["gold"] for task in tasks if "gold" in task.tallies)
            needed, checks = (sum(len(names) for names in lists) for lists in zip(*map(_needed, tasks), strict=True))
            name, share = self.best_constant(env)
            sound = all(task.sound for task in tasks) and not any(problem.startswith(env) for problem in self.problems)
            done = str(sum(task.variations for task in tasks))
            counts = (str(len(tasks)), done, f"{gold.share:.1%}", f"{needed}/{checks}")
            rows.append((env, *counts, name, f"{share:.2%}", "yes" if sound else "NO"))
        return rows

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-serialisable data."""
        envs = dict.fromkeys(task.env for task in self.tasks)
        best = {env: dict(zip(("policy", "share"), self.best_constant(env), strict=True)) for env in envs}
        return {
            "world": self.world,
            "sound": self.sound,
            "problems": self.problems,
            "best_constant": best,
            "groups": {group: {"must": must, "does": about} for group, (must, about) in GROUPS.items()},
            "tasks": [_plain(task) for task in self.tasks],
        }


def merge_reports(reports: Sequence[SoundnessReport]) -> SoundnessReport:
    """Merge the reports of several worlds."""
    return SoundnessReport(
        ", ".join(report.world for report in reports),
        tuple(task for report in reports for task in report.tasks),
        tuple(env for report in reports for env in report.whole),
    )


def _sum(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return total


def _needed(task: TaskReport) -> tuple[list[str], list[str]]:
    """The checks that rejected a wrong episode alone, and all checks."""
    return [name for name in task.checks if name in task.covered], task.checks


def _row(task: TaskReport) -> tuple[str, ...]:
    def counted(*groups: Group) -> str:
        tally = _sum(task.tallies[group] for group in groups if group in task.tallies)
        return f"{tally.passed}/{tally.runs}"

    wrong: list[Group] = [g for g, (must, _) in GROUPS.items() if must.startswith("fail") and g not in _REPORTED]
    failed = _sum(task.tallies[group] for group in wrong if group in task.tallies)
    calls = task.original_calls
    original = "" if calls is None else f" ({calls[0]})" if calls[0] == calls[1] else f" ({calls[0]}-{calls[1]})"
    shares = (f"{task.tallies[g].share:.0%}" if g in task.tallies else "" for g in _REPORTED)
    return (
        task.env.rpartition("/")[2],
        task.task,
        counted("gold"),
        counted("equivalent"),
        f"{failed.passed - failed.rightly}/{failed.runs - failed.rightly}",
        *shares,
        f"{task.common_answer:.0%}",
        f"{task.gold_steps - 1}{original}",
        f"{median(task.setup_ms):.1f}" if task.setup_ms else "",
        "/".join(str(len(names)) for names in _needed(task)),
        "yes" if task.sound else "NO",
    )


def _plain(task: TaskReport) -> dict[str, Any]:
    data = asdict(task)
    data["setup_ms"] = median(task.setup_ms) if task.setup_ms else None
    data["answers"], data["sufficient"] = len(task.answers), len(task.sufficient)
    more = {"common_answer": task.common_answer, "original_calls": task.original_calls, "uncovered": task.uncovered}
    return {**data, **more, "problems": task.problems, "sound": task.sound}
