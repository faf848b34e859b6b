"""Grade an episode: evidence, the checks of each grading, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fhir_gym.arguments import require_name
from fhir_gym.errors import TaskError
from fhir_gym.tasks.core.params import Params
from fhir_gym.tasks.core.task import ExpectedChange, Task
from fhir_gym.tasks.core.variation import Variation
from fhir_gym.tasks.grading.checks import Check
from fhir_gym.tasks.grading.comparison import same_record
from fhir_gym.tasks.grading.counterfactuals import BudgetedSession, shows_counterfactual
from fhir_gym.tasks.grading.end_state import FinishedEpisode, LoggedRequest, OpenScratchSession
from fhir_gym.tasks.grading.responses import ParsedResponses
from fhir_gym.tasks.grading.tool_usage import ToolUsage, measure, prohibited_uses
from fhir_gym.tasks.grading.unrequested_content import added_meaning
from fhir_gym.tasks.grading.verdict import Evidence, Verdict, explain, missing_records
from fhir_gym.types import Json, Resource

if TYPE_CHECKING:
    from fhir_gym.fhir import Change, Session

Grading = Literal["state", "evidence", "official"]
"""Name of a grading; see `grade`."""
GRADINGS: tuple[Grading, ...] = ("state", "evidence", "official")
"""All gradings."""

ANSWER_FORM = "answer form"
NOTHING_ELSE = "nothing else changed"
NOTHING_REVERSED = "nothing changes the meaning"
PROHIBITED = "no prohibited tool"
EVIDENCE = "evidence"

_DRAWS = 3
"""Number of draws of each counterfactual. A look that shows one of them by luck does not show all."""
_BEFORE = " before the first change"
_MOST_COMPARED = 50
"""Maximum number of similar changes that the grader compares to find the requested change."""


@dataclass(frozen=True, slots=True)
class SharedFindings:
    """The parts of a verdict that do not depend on the answer, so that several answers can share them.

    Attributes:
        evidence: The evidence for the answer.
        process: The agent's tool usage.
        idle: Names of the checks that an agent passes by answering ``FINISH([])`` at once.
    """

    evidence: Evidence
    process: ToolUsage
    idle: tuple[str, ...]


def grade(
    task: Task[Any],
    variation: Variation,
    end: FinishedEpisode,
    grading: Grading = "state",
    *,
    findings: SharedFindings | None = None,
    open_scratch: OpenScratchSession | None = None,
) -> Verdict:
    """Grade an episode.

    Args:
        task: The task.
        variation: The variation.
        end: The end state of the episode.
        grading: ``state`` requires evidence only if the task does (`Task.requires_evidence`). ``evidence`` always
            requires evidence. ``official`` applies the rules of the benchmark that the task comes from.
        findings: Parts of the verdict that the caller has computed. With `findings`, the verdict has no diagnosis.
        open_scratch: See `FinishedEpisode.open_scratch`; None for a new session.

    Raises:
        UnknownNameError: The task does not have the grading.
        TaskError: Two checks of the task have the same name.
    """
    require_grading(task, grading)
    open_scratch = open_scratch or end.open_scratch or _new_session(variation, end)
    end = replace(end, open_scratch=open_scratch, placed=partial(variation.placed, end.world))
    diagnosing = findings is None
    if findings is None:
        evidence = find_evidence(task, variation, end)
        idle = idle_checks(task, variation, end, grading)
        findings = SharedFindings(evidence, measure_tool_usage(task, end), idle)
    by_grading, score = _checks_by_grading(task, variation, end, findings.evidence)
    checks = by_grading[grading]
    exists = [check.passed for check in checks if check.level == "exists"]
    verdict = Verdict(
        success=all(check.passed for check in checks),
        light=all(exists) if exists else None,
        checks=checks,
        evidence=findings.evidence,
        process=findings.process,
        answer=end.answer,
        idle=findings.idle,
        explanation=explain(checks, findings.evidence),
        gradings={
            grading_name: all(check.passed for check in checks_of_grading)
            for grading_name, checks_of_grading in by_grading.items()
        },
        score=score,
    )
    return verdict.diagnosed(task.diagnose(variation.params, end, verdict)) if diagnosing else verdict


def idle_checks(task: Task[Any], variation: Variation, end: FinishedEpisode, grading: Grading) -> tuple[str, ...]:
    """Return the names of the checks that an agent passes by answering ``FINISH([])`` at once."""
    checks_by_grading = variation.idle_checks
    if grading not in checks_by_grading:
        idle = end.idle()
        by_grading, _ = _checks_by_grading(task, variation, idle, find_evidence(task, variation, idle))
        checks_by_grading[grading] = tuple(check.name for check in by_grading[grading] if check.passed)
    return checks_by_grading[grading]


def measure_tool_usage(task: Task[Any], end: FinishedEpisode) -> ToolUsage:
    """Measure how the agent used its tools."""
    return measure(
        end.requests,
        templates=task.required_tools,
        required=task.required_resources,
        prohibited=task.prohibited_tools,
        reference=None if task.judges_changes else min(map(len, task.required_tools), default=None),
    )


def require_grading(task: Task[Any], grading: str) -> None:
    """Check that a task has a grading.

    Raises:
        UnknownNameError: The task does not have the grading.
    """
    require_name(f"grading of task {task.key}", grading, task.gradings)


def _checks_by_grading(
    task: Task[Any], variation: Variation, end: FinishedEpisode, evidence: Evidence
) -> tuple[dict[Grading, tuple[Check, ...]], float | None]:
    """Return the checks for each grading of the task, and the task's own score."""
    params = variation.params
    own, score = task.scored_checks(params, end)
    checks = (*own, *_standard_checks(task, variation, end))
    check_name = "what decides it was looked up"
    looked = Check(name=EVIDENCE, passed=evidence.sufficient, expected=check_name, actual=evidence.note)
    checks_by_grading: dict[Grading, tuple[Check, ...]] = {"evidence": (*checks, looked)}
    checks_by_grading["state"] = checks_by_grading["evidence"] if task.requires_evidence(params) else checks
    if "official" in task.gradings:
        checks_by_grading["official"] = tuple(task.official(params, end))
    names = [check.name for check in checks_by_grading["evidence"]]
    if len(set(names)) != len(names):
        raise TaskError(f"task {task.key} has two checks of the same name: {names}")
    return {grading: checks_by_grading[grading] for grading in GRADINGS if grading in task.gradings}, score


def _standard_checks(task: Task[Any], variation: Variation, end: FinishedEpisode) -> Iterator[Check]:
    problem = task.answer.problem(end.answer, end.base_url)
    yield Check(
        name=ANSWER_FORM, passed=problem is None, expected=task.answer.description, actual=problem or end.answer
    )
    if not task.judges_changes:
        yield from _change_checks(task, variation.params, end)
    used = list(prohibited_uses(end.requests, task.prohibited_tools))
    yield Check(name=PROHIBITED, passed=not used, expected=[], actual=used)


def _change_checks(task: Task[Any], params: Params, end: FinishedEpisode) -> Iterator[Check]:
    surplus = _unexpected_changes(task, params, end)
    yield Check(name=NOTHING_ELSE, passed=not surplus, expected=[], actual=surplus)
    if task.expected_changes(params):
        added: list[Json] = [*added_meaning(task.requested_elements, end)]
        yield Check(name=NOTHING_REVERSED, passed=not added, expected=[], actual=added)


def _unexpected_changes(task: Task[Any], params: Params, end: FinishedEpisode) -> list[str]:
    """Describe the changes that the task did not expect. Each expected change allows at most one change."""
    changes = [change for change in end.changes if not _is_unchanged(change)]
    covered: set[tuple[str, str]] = set()
    for expected, count in sorted(Counter(task.expected_changes(params)).items(), key=lambda item: item[0].id is None):
        fitting = [change for change in changes if _fits(expected, change) and _name(change) not in covered]
        covered |= {_name(change) for change in _most_useful(task, params, end, fitting, count)}
    return [_described(change) for change in changes if _name(change) not in covered or _is_put_back(change)]


def _fits(expected: ExpectedChange, change: Change) -> bool:
    kind_and_type = (expected.kind, expected.resource_type)
    return kind_and_type == (change.kind, change.resource_type) and expected.id in (None, change.id)


def _name(change: Change) -> tuple[str, str]:
    return change.resource_type, change.id


def _most_useful(
    task: Task[Any], params: Params, end: FinishedEpisode, changes: list[Change], count: int
) -> list[Change]:
    """Grade each change alone, and return the `count` changes that pass the most checks of the task."""
    if len(changes) <= count:
        return changes

    def passed_checks(change: Change) -> int:
        rest = {_name(other) for other in changes} - {_name(change)}
        kept = (agent_change for agent_change in end.changes if _name(agent_change) not in rest)
        return sum(check.passed for check in task.checks(params, replace(end, changes=tuple(kept))))

    return sorted(changes[:_MOST_COMPARED], key=passed_checks, reverse=True)[:count]


def _is_unchanged(change: Change) -> bool:
    """Whether every version that the episode wrote equals the record before the episode."""
    before = change.before
    return bool(
        before
        and change.versions
        and all(version is not None and same_record(before, version) for version in change.versions)
    )


def _is_put_back(change: Change) -> bool:
    """Whether an existing record was deleted and created again."""
    return change.kind == "updated" and None in change.versions


def _described(change: Change) -> str:
    back = change.before and change.after and same_record(change.before, change.after)
    how = ", deleted in between" if _is_put_back(change) else ", and back" if back else ""
    return f"{change.kind} {change.resource_type}/{change.id}{how}"


def find_evidence(task: Task[Any], variation: Variation, end: FinishedEpisode) -> Evidence:
    """Find out whether the agent retrieved every record that its answer depends on.

    Args:
        task: The task.
        variation: The variation.
        end: The end state of the episode.
    """
    params = variation.params
    required_records = task.required_records(params)
    requests, when = (_before_changes(end), _BEFORE) if task.evidence_before_changes else (end.requests, "")
    missing = missing_records(requests, required_records, task.evidence_fields)
    counterfactuals = task.counterfactual(params, end.world) if task.requires_evidence(params) else []
    if not counterfactuals:
        return (
            Evidence.of(missing, None, when)
            if required_records
            else Evidence(sufficient=True, note="no look-up is needed.")
        )
    if not requests:
        return Evidence.of(missing, False, when)

    open_scratch, counted = end.open_scratch or _new_session(variation, end), task.counted_records(params)
    parsed = end.parsed or ParsedResponses()

    def shows(supposed: Resource, draw: int) -> bool:
        (placed,) = variation.placed(end.world, [supposed], draw).values()
        with open_scratch([placed]) as session:
            return shows_counterfactual(
                requests, placed, BudgetedSession(session), counted, partial(task.may_match, params), parsed
            )

    saw = all(shows(supposed, draw) for supposed in counterfactuals for draw in range(_DRAWS))
    return Evidence.of(missing, saw, when)


def _new_session(variation: Variation, end: FinishedEpisode) -> OpenScratchSession:
    @contextmanager
    def open_scratch(records: Sequence[Resource]) -> Iterator[Session]:
        with variation.open_session(end.world, base_url=end.base_url) as session:
            session.load(records, keep_next_id=True)
            yield session

    return open_scratch


def _before_changes(end: FinishedEpisode) -> tuple[LoggedRequest, ...]:
    """Return the requests before the first request that changed the server."""
    requests = end.requests
    changing = (n for n, request in enumerate(requests) if any(done.effect for done in request.response.done))
    return requests[: next(changing, len(requests))]
