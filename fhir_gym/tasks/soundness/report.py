"""What a soundness run found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fhir_gym.tasks.soundness.arena import MAY_PASS, MUST_PASS, Group

__all__ = ["Failure", "SoundnessReport", "Tally", "TaskReport"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An episode that was judged wrongly, with all that is needed to play it again.

    Attributes:
        env: Env id.
        task: Key of the task.
        variation: Number of the variation.
        group: Kind of policy.
        policy: Which policy.
        problem: What was wrong with the judgement.
        grading: How it was graded.
        actions: What the policy did, as an agent would write it.
        explanation: The verdict in words.
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
    """How often a group of policies was played, and how often it succeeded."""

    runs: int = 0
    passed: int = 0


@dataclass(slots=True)
class TaskReport:
    """What was found about one task.

    Attributes:
        env: Env id.
        task: Its key.
        variations: How many variations were tried.
        tallies: Runs and successes by group of policies.
        gold_steps: Most actions the reference solution needed.
        checks: Names of all checks it yields.
        covered: Those without which some wrong episode would have been accepted.
        failures: Episodes that were judged wrongly.
    """

    env: str
    task: str
    variations: int = 0
    tallies: dict[Group, Tally] = field(default_factory=dict)
    gold_steps: int = 0
    checks: list[str] = field(default_factory=list)
    covered: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def uncovered(self) -> list[str]:
        """Checks whose loss nothing would have shown."""
        return [name for name in self.checks if name not in self.covered]

    @property
    def sound(self) -> bool:
        """Whether every episode was judged rightly and every check is needed."""
        return not self.failures and not self.uncovered


@dataclass(frozen=True, slots=True)
class SoundnessReport:
    """What was found about several tasks.

    Attributes:
        world: Name of the world they were tried on.
        tasks: One report each.
    """

    world: str
    tasks: tuple[TaskReport, ...]

    @property
    def sound(self) -> bool:
        """Whether all are sound."""
        return all(task.sound for task in self.tasks)

    @property
    def columns(self) -> tuple[str, ...]:
        """Heads of the table."""
        return ("env", "task", "variations", *self._groups(), "checks covered", "sound")

    def rows(self) -> list[tuple[str, ...]]:
        """The table, a row for each task: how many of each group succeeded, of how many."""
        return [
            (
                one.env,
                one.task,
                str(one.variations),
                *(f"{tally.passed}/{tally.runs}" for tally in (one.tallies.get(g, Tally()) for g in self._groups())),
                f"{len(one.checks) - len(one.uncovered)}/{len(one.checks)}",
                "yes" if one.sound else "NO",
            )
            for one in self.tasks
        ]

    def to_json(self) -> dict[str, Any]:
        """The whole report as plain data."""
        tasks = [{**asdict(one), "uncovered": one.uncovered, "sound": one.sound} for one in self.tasks]
        groups = {"must_pass": sorted(MUST_PASS), "may_pass": sorted(MAY_PASS)}
        return {"world": self.world, "sound": self.sound, **groups, "tasks": tasks}

    def _groups(self) -> list[Group]:
        return list(dict.fromkeys(group for task in self.tasks for group in task.tallies))
