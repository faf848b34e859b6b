"""Check tasks with the harness."""

from __future__ import annotations

from typing import Any

import pytest

from fhir_gym.fhir import World
from fhir_gym.soundness import TaskReport, check_task
from fhir_gym.tasks import Task
from fhir_gym.tasks.core import grader


def problems(report: TaskReport) -> str:
    """Return the failures and problems of a report as text."""
    shown = [f"{f.task}/{f.variation} {f.group}: {f.policy}: {f.problem}\n{f.explanation}" for f in report.failures[:5]]
    return "\n".join([*shown, *report.problems])


def unnoticed(task: Task[Any], world: World, monkeypatch: pytest.MonkeyPatch, variations: range) -> list[str]:
    """Return the checks that can be removed without making the task unsound."""

    def tried(number: int) -> tuple[bool, list[int]]:
        report = check_task(task, world, [number])
        names.update(dict.fromkeys(report.checks))
        return not report.failures, [tally.lightly for tally in report.tallies.values()]

    names: dict[str, None] = {}
    whole, as_it_is = grader._checks_by_grading, {number: tried(number) for number in variations}
    assert all(sound for sound, _ in as_it_is.values())
    found = []
    for name in tuple(names):

        def mutilated(*args: Any, name: str = name) -> Any:
            judged, score = whole(*args)
            return {
                grading: tuple(check for check in checks if check.name != name) for grading, checks in judged.items()
            }, score

        with monkeypatch.context() as patch:
            patch.setattr(grader, "_checks_by_grading", mutilated)
            if all(tried(number) == before for number, before in as_it_is.items()):
                found.append(name)
    return found
