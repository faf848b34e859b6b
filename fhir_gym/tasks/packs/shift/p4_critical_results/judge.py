"""The judgement of Tasks for critical results, record by record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.grading import has_coding, same_moment
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.p4_critical_results.rules import (
    NOTICE,
    VOID,
    CriticalRequest,
    CriticalScene,
    Due,
    StayResult,
    results_due,
    supposed_results,
)
from fhir_gym.tasks.packs.shift.p4_critical_results.tests import CRITICAL
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, judge_sweep
from fhir_gym.types import Json, Resource


class CriticalJudge:
    """Judges the Tasks that an agent creates for critical results.

    Args:
        requests: The requests.
        scene: The hospital.
        log: What the agent wrote and looked up.
    """

    def __init__(self, requests: Sequence[CriticalRequest], scene: CriticalScene, log: EpisodeLog) -> None:
        self._requests, self._scene, self._log = requests, scene, log
        self._now = parse_instant(scene.now)

    def judge(self, answers: Sequence[str]) -> list[Judgement]:
        """Judge all requests."""
        return [self._judge(request, answer) for request, answer in zip(self._requests, answers, strict=True)]

    def _judge(self, request: CriticalRequest, answer: str) -> Judgement:
        department = self._scene.department(request.ask.department)
        results = self._scene.results_of[department.id]
        ids = {one.id for one in results}
        mine = {task: result for task, result in self._new_tasks.items() if result in ids}
        old = {f"Task/{one.id}" for one in self._scene.tasks if one.result in ids}
        claimed = frozenset({*mine, *old})
        due = results_due(self._scene, request.ask, self._now)
        due = {id: one for id, one in due.items() if not self._reported_by_others(id)}
        verdicts = [self._verdict(one, due[one.id], mine) for one in results if one.id in due]
        verdicts += [
            RecordVerdict(task, "not asked for", harmed=True, due=False)
            for task, result in sorted(mine.items())
            if result not in due
        ]
        verdicts += [
            RecordVerdict(one, "changed", harmed=one in self._log.changed, due=False)
            for one in sorted(old & self._log.touched)
        ]
        if due:
            return judge_sweep(verdicts, outcome=DONE, answer=answer, claimed=claimed)
        right = answer == NOTHING_TO_DO and not verdicts and self._has_looked(request)
        return Judgement.declined(request, answer, right, claimed, harmed=any(one.harmed for one in verdicts))

    def _has_looked(self, request: CriticalRequest) -> bool:
        """Whether the agent looked at the results of all patients, and at the policies that decide."""
        supposed = supposed_results(request, self._scene)
        department = self._scene.department(request.ask.department).service.code
        decisions = self._scene.library.decisions(CRITICAL.code, department, self._now).values()
        documents = {f"DocumentReference/{one.document}" for one in decisions}
        return all(self._log.lookups_of(one) for one in supposed) and self._log.has_seen(sorted(documents))

    @cached_property
    def _new_tasks(self) -> Mapping[str, str]:
        """The ids of the results by the references to the Tasks that the agent created and left."""
        old = {f"Task/{one.id}" for one in self._scene.tasks}
        written = {one.record for one in self._log.writes_of_agent if one.resource_type == "Task"}
        found: dict[str, str] = {}
        for record in sorted(written - old):
            states = [self._log.at_end(record), *(one.after for one in self._log.writes if one.record == record)]
            about = next((result for state in states if state for result in self._results_of(state)), "")
            if about:
                found[record] = about
        return found

    def _results_of(self, task: Resource) -> Iterator[str]:
        """Yield the id of the result that a Task is about."""
        focus = self._log.end.refers(task.get("focus"))
        if focus and focus.startswith("Observation/"):
            yield focus.removeprefix("Observation/")

    def _reported_by_others(self, result: str) -> bool:
        """Whether another person created a Task for a result before the agent did."""
        mine = (one for one in self._log.writes_of_agent if self._new_tasks.get(one.record) == result)
        first = min((one.number for one in mine), default=len(self._log.writes))
        return any(
            one.resource_type == "Task"
            and one.after is not None
            and one.after.get("status") not in VOID
            and has_coding(one.after.get("code"), NOTICE.system, NOTICE.code)
            and result in self._results_of(one.after)
            for one in self._log.writes[:first]
            if not one.by_agent
        )

    def _verdict(self, result: StayResult, due: Due, mine: Mapping[str, str]) -> RecordVerdict:
        """Judge the Tasks for a critical result."""
        tasks = [task for task, about in mine.items() if about == result.id]
        left = [(task, state) for task in tasks if (state := self._log.at_end(task)) is not None]
        record = f"Observation/{result.id}"
        if not left:
            return RecordVerdict(record, "no Task")
        problems: list[Json] = [] if len(left) == 1 else [f"{len(left)} Tasks"]
        for _, state in left:
            problems += self._wrong_elements(state, result, due)
        return RecordVerdict(record, problems or None, harmed=bool(problems))

    def _wrong_elements(self, task: Resource, result: StayResult, due: Due) -> Iterator[str]:
        """Yield what is wrong in a Task."""
        for name, wanted in (("status", "requested"), ("intent", "order"), ("priority", due.priority)):
            if task.get(name) != wanted:
                yield f"{name} {task.get(name)}"
        if not has_coding(task.get("code"), NOTICE.system, NOTICE.code):
            yield "code"
        references = {
            "focus": f"Observation/{result.id}",
            "for": f"Patient/{result.patient}",
            "owner": f"Practitioner/{due.owner}",
        }
        if "encounter" in task:
            references["encounter"] = f"Encounter/{result.stay}"
        for name, record in references.items():
            if self._log.end.refers(task.get(name)) != record:
                yield f"{name} {self._log.end.refers(task.get(name))}"
        restriction = task.get("restriction")
        period = restriction.get("period") if isinstance(restriction, dict) else None
        if not isinstance(period, dict) or not same_moment(period.get("end"), due.end) or "start" in period:
            yield "restriction.period"
