"""From the end of an episode to its verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fhir_gym.errors import TaskError, UnknownNameError
from fhir_gym.tasks.checks import Check
from fhir_gym.tasks.compare import differences
from fhir_gym.tasks.endstate import EndState, LoggedRequest
from fhir_gym.tasks.evidence import Evidence, unread, would_have_seen
from fhir_gym.tasks.meaning import added_meaning
from fhir_gym.tasks.process import Process, measure, prohibited_uses
from fhir_gym.tasks.task import Task, Touch, Variation
from fhir_gym.tasks.verdict import Verdict, explain
from fhir_gym.types import Json, Resource

if TYPE_CHECKING:
    from fhir_gym.fhir.session import Session

__all__ = [
    "ANSWER_FORM",
    "EVIDENCE",
    "GRADINGS",
    "NOTHING_ELSE",
    "NOTHING_REVERSED",
    "PROHIBITED",
    "Findings",
    "Grading",
    "find_evidence",
    "find_process",
    "grade",
    "idle_checks",
    "require_grading",
]

Grading = Literal["state", "evidence", "official"]
GRADINGS: tuple[Grading, ...] = ("state", "evidence", "official")

ANSWER_FORM = "answer form"
NOTHING_ELSE = "nothing else changed"
NOTHING_REVERSED = "nothing changes the meaning"
PROHIBITED = "no prohibited tool"
EVIDENCE = "evidence"

_BEFORE = " before the first change"


@dataclass(frozen=True, slots=True)
class Findings:
    """What a verdict says besides its checks; the same whatever is answered after the same requests.

    Attributes:
        evidence: Whether the agent saw what its answer rests on.
        process: How it worked.
        idle: Names of the checks that an agent answering ``FINISH([])`` at once would have passed.
    """

    evidence: Evidence
    process: Process
    idle: tuple[str, ...]


def grade(
    task: Task[Any],
    variation: Variation,
    end: EndState,
    grading: Grading = "state",
    *,
    findings: Findings | None = None,
) -> Verdict:
    """Judge an episode.

    Args:
        task: The task.
        variation: The variation that was asked.
        end: How the episode ended.
        grading: ``state``: evidence is reported, and counts only where the answer is that there is nothing;
            ``evidence``: it always counts; ``official``: the verdict of the benchmark the task comes from.
        findings: What is known of the episode already, for those who judge many; then there is no diagnosis.

    Raises:
        UnknownNameError: There is no such grading, or the task does not have it.
        TaskError: The task names two checks alike.
    """
    require_grading(task, grading)
    diagnosing = findings is None
    if findings is None:
        evidence = find_evidence(task, variation, end)
        findings = Findings(evidence, find_process(task, end), idle_checks(task, variation, end, grading))
    judged = _judged(task, variation, end, findings.evidence)
    checks = judged[grading]
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
        gradings={one: all(check.passed for check in found) for one, found in judged.items()},
    )
    return verdict.diagnosed(task.diagnose(variation.params, end, verdict)) if diagnosing else verdict


def idle_checks(task: Task[Any], variation: Variation, end: EndState, grading: Grading) -> tuple[str, ...]:
    """Names of the checks that an agent answering ``FINISH([])`` at once would have passed."""
    idle = end.idle()
    checks = _judged(task, variation, idle, find_evidence(task, variation, idle))[grading]
    return tuple(check.name for check in checks if check.passed)


def find_process(task: Task[Any], end: EndState) -> Process:
    """How the agent worked."""
    return measure(
        end.requests,
        templates=task.required_tools,
        required=task.required_resources,
        prohibited=task.prohibited_tools,
    )


def require_grading(task: Task[Any], grading: str) -> None:
    """Refuse a grading that a task does not have.

    Raises:
        UnknownNameError: It does not have it.
    """
    if grading not in task.gradings:
        raise UnknownNameError(f"grading of task {task.key}", grading, task.gradings)


def _judged(
    task: Task[Any], variation: Variation, end: EndState, evidence: Evidence
) -> dict[Grading, tuple[Check, ...]]:
    """The checks of every grading the task has."""
    params = variation.params
    checks = (*task.checks(params, end), *_standard_checks(task, variation, end))
    wanted = "what decides it was looked up"
    looked = Check(name=EVIDENCE, passed=evidence.sufficient, expected=wanted, actual=evidence.note)
    found: dict[Grading, tuple[Check, ...]] = {"evidence": (*checks, looked)}
    found["state"] = found["evidence"] if task.must_look(params) else checks
    if "official" in task.gradings:
        found["official"] = tuple(task.official(params, end))
    names = [check.name for check in found["evidence"]]
    if len(set(names)) != len(names):
        raise TaskError(f"task {task.key} names two checks alike: {names}")
    return {one: found[one] for one in GRADINGS if one in task.gradings}


def _standard_checks(task: Task[Any], variation: Variation, end: EndState) -> Iterator[Check]:
    problem = task.answer.problem(end.answer, end.base_url)
    yield Check(name=ANSWER_FORM, passed=problem is None, expected=task.answer.words, actual=problem or end.answer)
    touches = task.touches(variation.params)
    surplus = _surplus(end, touches)
    yield Check(name=NOTHING_ELSE, passed=not surplus, expected=[], actual=surplus)
    if touches:
        added: list[Json] = [*added_meaning(task.asked, end)]
        yield Check(name=NOTHING_REVERSED, passed=not added, expected=[], actual=added)
    used = list(prohibited_uses(end.requests, task.prohibited_tools))
    yield Check(name=PROHIBITED, passed=not used, expected=[], actual=used)


def _surplus(end: EndState, touches: tuple[Touch, ...]) -> list[str]:
    """Changes that no touch of the task covers, each touch covering one."""
    open_touches = sorted(touches, key=lambda touch: touch.id is None)
    surplus = []
    for change in end.changes:
        if change.before and change.after and _same_content(change.before, change.after):
            continue  # changed and changed back
        for touch in open_touches:
            same = (touch.kind, touch.resource_type) == (change.kind, change.resource_type)
            if same and touch.id in (None, change.id):
                open_touches.remove(touch)
                break
        else:
            surplus.append(f"{change.kind} {change.resource_type}/{change.id}")
    return surplus


def _same_content(before: Resource, after: Resource) -> bool:
    return before.get("text") == after.get("text") and not differences(before, after)


def find_evidence(
    task: Task[Any], variation: Variation, end: EndState, scratch: Callable[[], Session] | None = None
) -> Evidence:
    """Whether the agent saw what its answer rests on.

    Args:
        task: The task.
        variation: The variation that was asked.
        end: How the episode ended.
        scratch: Gives a session that holds the variation's start and its phantoms, and is not closed here.
    """
    params = variation.params
    rests_on = task.rests_on(params)
    looks, when = (_before_changes(end), _BEFORE) if task.looks_first else (end.requests, "")
    missing = unread(looks, rests_on, task.decisive)
    phantoms = task.phantom(params, end.world) if task.must_look(params) else []
    if not phantoms:
        return Evidence.of(missing, None, when) if rests_on else Evidence(sufficient=True, note="no look-up is needed.")
    if not looks:
        return Evidence.of(missing, False, when)
    known = task.counted(params)
    if scratch is not None:
        return Evidence.of(missing, would_have_seen(looks, phantoms, scratch(), known), when)
    with end.world.session(base_url=end.base_url) as session:
        session.load([*variation.setup, *phantoms], next_id=variation.next_id)
        return Evidence.of(missing, would_have_seen(looks, phantoms, session, known), when)


def _before_changes(end: EndState) -> tuple[LoggedRequest, ...]:
    """The requests up to the first one that changed something, whatever it was answered."""
    requests = end.requests
    changing = (n for n, one in enumerate(requests) if any(done.effect for done in one.response.done))
    return requests[: next(changing, len(requests))]
