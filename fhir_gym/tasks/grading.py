"""From the end of an episode to its verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from fhir_gym.errors import TaskError, UnknownNameError
from fhir_gym.tasks.checks import Check
from fhir_gym.tasks.compare import differences
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.evidence import Evidence, retrieved, would_have_seen
from fhir_gym.tasks.process import measure, tools_of
from fhir_gym.tasks.task import Task, Touch, Variation
from fhir_gym.tasks.verdict import Verdict, explain
from fhir_gym.types import Resource

__all__ = ["ANSWER_FORM", "EVIDENCE", "GRADINGS", "NOTHING_ELSE", "PROHIBITED", "Grading", "grade"]

Grading = Literal["state", "evidence"]
GRADINGS: tuple[Grading, ...] = ("state", "evidence")

ANSWER_FORM = "answer form"
NOTHING_ELSE = "nothing else changed"
PROHIBITED = "no prohibited tool"
EVIDENCE = "evidence"


def grade(task: Task[Any], variation: Variation, end: EndState, grading: Grading = "state") -> Verdict:
    """Judge an episode.

    Args:
        task: The task.
        variation: The variation that was asked.
        end: How the episode ended.
        grading: ``state``: evidence is reported, and counts only where the answer is that there is nothing;
            ``evidence``: it always counts.

    Raises:
        UnknownNameError: There is no such grading.
        TaskError: The task names two checks alike.
    """
    if grading not in GRADINGS:
        raise UnknownNameError("grading", grading, GRADINGS)
    evidence = _evidence(task, variation, end)
    checks = _all_checks(task, variation, end, evidence, grading)
    idle = end.idle()
    idle_checks = _all_checks(task, variation, idle, _evidence(task, variation, idle), grading)
    exists = [check.passed for check in checks if check.level == "exists"]
    return Verdict(
        success=all(check.passed for check in checks),
        light=all(exists) if exists else None,
        checks=checks,
        evidence=evidence,
        process=measure(
            end.requests,
            templates=task.required_tools,
            required=task.required_resources,
            prohibited=task.prohibited_tools,
        ),
        answer=end.answer,
        idle=tuple(check.name for check in idle_checks if check.passed),
        explanation=explain(checks, evidence),
    )


def _all_checks(
    task: Task[Any], variation: Variation, end: EndState, evidence: Evidence, grading: Grading
) -> tuple[Check, ...]:
    checks = [*task.checks(variation.params, end), *_standard_checks(task, variation, end)]
    if grading == "evidence" or task.must_look(variation.params):
        checks.append(
            Check(
                name=EVIDENCE,
                passed=evidence.sufficient,
                expected="what decides it was looked up",
                actual=evidence.note,
            )
        )
    names = [check.name for check in checks]
    if len(set(names)) != len(names):
        raise TaskError(f"task {task.key} names two checks alike: {names}")
    return tuple(checks)


def _standard_checks(task: Task[Any], variation: Variation, end: EndState) -> Iterator[Check]:
    problem = task.answer.problem(end.answer, end.base_url)
    yield Check(name=ANSWER_FORM, passed=problem is None, expected=task.answer.words, actual=problem or end.answer)
    surplus = _surplus(end, task.touches(variation.params))
    yield Check(name=NOTHING_ELSE, passed=not surplus, expected=[], actual=surplus)
    used = sorted({tool for tool in tools_of(end.requests) if tool in task.prohibited_tools})
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


def _evidence(task: Task[Any], variation: Variation, end: EndState) -> Evidence:
    rests_on = task.rests_on(variation.params)
    seen = retrieved(end.requests)
    missing = [record for record in rests_on if record not in seen]
    phantoms = task.phantom(variation.params, end.world) if task.must_look(variation.params) else []
    if not phantoms:
        return Evidence.of(missing, None) if rests_on else Evidence(sufficient=True, note="no look-up is needed.")
    if not end.requests:
        return Evidence.of(missing, False)
    scratch = end.world.session(base_url=end.base_url)
    try:
        scratch.load([*variation.setup, *phantoms], next_id=variation.next_id)
        return Evidence.of(missing, would_have_seen(end.requests, phantoms, scratch))
    finally:
        scratch.close()
