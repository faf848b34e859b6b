"""Compare the verdicts of policies with their expected results."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fhir_gym.actions import Action
from fhir_gym.soundness.policy_groups import Expected
from fhir_gym.soundness.policy_runner import WRITES, Policy, PolicyRun, script
from fhir_gym.soundness.report import Failure, Tally, TaskReport
from fhir_gym.tasks.core.grader import EVIDENCE, NOTHING_ELSE, PROHIBITED
from fhir_gym.tasks.core.task import Task
from fhir_gym.tasks.grading import LetteredAnswer
from fhir_gym.tasks.grading.comparison import same_record
from fhir_gym.types import Json, Resource

_WRITE_TOOLS = frozenset({"create", "update", "patch", "delete"})
_NUMBER = re.compile(r"\d+ ")
_CONSTANT = frozenset({"idle", "constant answer", "guessed number"})


class VerdictChecker:
    """Compares verdicts with expected results and fills a task's report."""

    def __init__(self, task: Task[Any]) -> None:
        self._task = task
        self._has_letters = isinstance(task.answer, LetteredAnswer)
        self._gold: tuple[list[tuple[Action, Json]], Json] = ([], None)
        self._left_by_gold: Mapping[str, Resource | None] = {}
        self._events_of_gold: list[tuple[str, str]] = []
        self._writes_of_gold: list[tuple[str, str, str]] = []
        self.report = TaskReport(task.pack, task.key, task.kind)

    def gold(self, number: int, run: PolicyRun) -> None:
        """Check that the reference solution passes full and light validation within its declared number of steps."""
        report, verdict = self.report, run.verdict
        report.variations += 1
        report.gold_steps = max(report.gold_steps, len(run.actions))
        answer = json.dumps(verdict.answer)
        report.answers[answer] = report.answers.get(answer, 0) + 1
        # Outcomes by letter are often the same.
        if EVIDENCE not in {check.name for check in verdict.checks} and not self._has_letters:
            report.sufficient[answer] = report.sufficient.get(answer, 0) + 1
        self._gold, self._left_by_gold, self._events_of_gold = _deeds(run), _left(run), _events(run)
        self._writes_of_gold = _accepted_writes(run)
        for check in verdict.checks:
            name = self._unnumbered(check.name)
            if name not in report.checks and not self._is_redundant(name):
                report.checks.append(name)
        policy = Policy("gold", "gold", script(()))
        self.policy(number, policy, run)
        if verdict.light is False:
            self._fail(number, policy, run, "light validation rejects it")
        if len(run.actions) > self._task.gold_steps:
            self._fail(
                number,
                policy,
                run,
                f"it takes {len(run.actions)} actions, more than gold_steps ({self._task.gold_steps})",
            )
        if len(verdict.idle) == len(verdict.checks):
            self._fail(number, policy, run, "an idle agent passes every check")

    def policy(self, number: int, policy: Policy, run: PolicyRun) -> None:
        """Compare the verdict of an episode with the policy's expected result."""
        success, expected = run.verdict.success, policy.expected
        is_golds = self._is_golds(expected, run)
        tally = self.report.tallies.setdefault(policy.group, Tally())
        tally.runs += 1
        tally.passed += success
        tally.rightly += success and is_golds
        tally.lightly += run.verdict.light is True
        if expected == "pass" and not success:
            self._fail(number, policy, run, "refused")
        if success and expected not in ("pass", "may pass") and not is_golds:
            self._fail(number, policy, run, "accepted")
        if policy.group in _CONSTANT:
            self._constant(number, policy, run)
        if not success and not is_golds and expected not in ("pass", "may pass"):
            self._cover(run)

    def _is_golds(self, expected: Expected, run: PolicyRun) -> bool:
        """Whether an episode that should fail did the same as the reference solution, or left the same records.

        If other people acted differently or in another order because of it, something else may have been right.
        """
        if expected == "fail unless refused":
            return self._task.is_live and _accepted_writes(run) == self._writes_of_gold
        if expected not in ("fail unless gold's", "fail unless replaced"):
            return False
        if _events(run) != self._events_of_gold:
            return True
        if expected == "fail unless gold's" and _deeds(run) == self._gold:
            return True
        # In a live task, some actions of the reference solution may be useless, because a request is withdrawn.
        may_replace = expected == "fail unless replaced" or self._task.is_live
        return may_replace and run.end.answer == self._gold[1] and _same_records(_left(run), self._left_by_gold)

    def _constant(self, number: int, policy: Policy, run: PolicyRun) -> None:
        if run.verdict.success:
            self.report.constants[run.name] = self.report.constants.get(run.name, 0) + 1
            if self._task.kind == "action" and policy.expected == "may pass":
                self._fail(number, policy, run, "accepted, although the task requires a write")
        elif run.verdict.light:
            self._fail(number, policy, run, "light validation accepts it")
        if policy.group == "idle" and run.verdict.reward("dense") > 0:
            self._fail(number, policy, run, "it gets a dense reward above 0")

    def _is_redundant(self, name: str) -> bool:
        """Whether this check can never fail alone.

        If all write tools are prohibited, each extra write also fails the check for prohibited tools. If no tool is
        prohibited, the check for prohibited tools cannot fail.
        """
        prohibited = set(self._task.prohibited_tools)
        return (name == NOTHING_ELSE and prohibited >= _WRITE_TOOLS) or (name == PROHIBITED and not prohibited)

    def _cover(self, run: PolicyRun) -> None:
        """Record a check that failed alone, among all checks or among the checks of light validation."""
        failed = run.verdict.failed
        lightly = [check for check in failed if check.level == "exists"]
        for few in (failed, lightly):
            names = [self._unnumbered(check.name) for check in few]
            if len(names) == 1 and names[0] not in self.report.covered:
                self.report.covered.append(names[0])

    def _unnumbered(self, name: str) -> str:
        """Return the name of a check; in live tasks, where the requests of each variation differ, without numbers."""
        return _NUMBER.sub("", name) if self._task.is_live else name

    def _fail(self, number: int, policy: Policy, run: PolicyRun, problem: str) -> None:
        self.report.failures.append(
            Failure(
                self._task.pack,
                self._task.key,
                number,
                policy.group,
                run.name,
                problem,
                policy.grading,
                tuple(action.text() for action in run.actions),
                run.verdict.explanation,
            )
        )


def _deeds(run: PolicyRun) -> tuple[list[tuple[Action, Json]], Json]:
    """The writes, with their contents, and the answer of an episode."""
    writes = [action for action in run.actions if action.kind in WRITES]
    return [(replace(write, body=None), _content(write.body)) for write in writes], run.end.answer


def _content(body: str | None) -> Json:
    """The content of a body: two texts of the same JSON are equal."""
    try:
        return json.loads(body or "null")
    except ValueError:
        return body


def _left(run: PolicyRun) -> dict[str, Resource | None]:
    """The written records as the episode leaves them, by reference, without those that it leaves as they were."""
    return {
        f"{change.resource_type}/{change.id}": change.after
        for change in run.end.changes
        if change.before is None or change.after is None or not same_record(change.before, change.after)
    }


def _events(run: PolicyRun) -> list[tuple[str, str]]:
    """What other people did, in order: the names of the events and the URLs.

    Somebody who acts later than in the reference episode acts differently, too: other ids are assigned.
    """
    return [(request.event, request.logged.action.url) for request in run.end.timeline if request.event]


def _accepted_writes(run: PolicyRun) -> list[tuple[str, str, str]]:
    """The agent's writes that the server did not refuse, in order: the interaction, the type and the id."""
    done = (interaction for logged in run.end.requests for interaction in logged.response.done)
    return [
        (interaction.kind, interaction.resource_type, interaction.id)
        for interaction in done
        if not interaction.looks and interaction.status < 400
    ]


def _same_records(some: Mapping[str, Resource | None], others: Mapping[str, Resource | None]) -> bool:
    """Whether two episodes wrote the same records and leave them identical."""
    return some.keys() == others.keys() and all(
        resource is other or (resource is not None and other is not None and same_record(resource, other))
        for resource, other in ((some[name], others[name]) for name in some)
    )
