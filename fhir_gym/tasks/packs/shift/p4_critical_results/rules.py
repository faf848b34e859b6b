"""The rules for critical results: for which results a Task is due, and what it says; and the judgement of the Tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property

from typing_extensions import override

from fhir_gym.tasks.authoring import instant, parse_instant
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import has_coding, same_moment
from fhir_gym.tasks.packs.shift.kind import Judgement, Request, RequestContent
from fhir_gym.tasks.packs.shift.laboratory import VALID, LabResult
from fhir_gym.tasks.packs.shift.p4_critical_results.scene import (
    CHILD_AGE,
    CRITICAL,
    CRITICAL_TESTS,
    MINUTES,
    NOTICE,
    PRIORITY,
    TEST_OF,
    VOID,
    CriticalScene,
    StayResult,
    is_critical,
    result_of_stay,
    target_id,
)
from fhir_gym.tasks.packs.shift.patient_records import moment_of, name_of, other_values
from fhir_gym.tasks.packs.shift.policies import Library
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, SweepJudge
from fhir_gym.types import Json, Resource

STATUS_IGNORED = "status ignored"
UNITS_IGNORED = "units ignored"
AGE_IGNORED = "age ignored"
TASKS_IGNORED = "existing Tasks ignored"
TIME_OF_SPECIMEN = "time of the specimen"
MISTAKES = (STATUS_IGNORED, UNITS_IGNORED, AGE_IGNORED, TASKS_IGNORED, TIME_OF_SPECIMEN)
"""Mistakes that change which results need a Task."""


class CriticalContent(RequestContent):
    """Which results are to be checked.

    Attributes:
        department: Display of the department's service.
        since: Results that were issued after this moment are new (instant).
    """

    department: str
    since: str


class CriticalRequest(Request):
    """The request to check the new results of a department."""

    ask: CriticalContent


def results_due(
    scene: CriticalScene, ask: CriticalContent, now: datetime, library: Library | None = None, mistake: str = ""
) -> dict[str, Resource]:
    """Return the Tasks of a request, by the ids of the results.

    Args:
        scene: The hospital.
        ask: The request.
        now: The moment for which the policies are valid.
        library: The policies, if they are not those of the hospital.
        mistake: One of `MISTAKES`, or an empty text.
    """
    department = scene.department(ask.department)
    values = (library or scene.library).values(CRITICAL.code, department.service.code, now)
    reported = set() if mistake == TASKS_IGNORED else reported_by(scene.tasks)
    return {
        result.id: notice_of(result, scene.roles_on_call[department.id], values)
        for result in scene.results_of[department.id]
        if result.id not in reported and is_new_and_critical(result, ask, values, scene.born[result.patient], mistake)
    }


def is_new_and_critical(
    result: LabResult, ask: CriticalContent, values: Mapping[str, str], born: date, mistake: str = ""
) -> bool:
    """Whether a result is new and critical."""
    code = result.code
    if (
        code not in TEST_OF
        or (result.taken if mistake == TIME_OF_SPECIMEN else result.issued) <= ask.since
        or (result.status not in VALID and mistake != STATUS_IGNORED)
    ):
        return False
    test = CRITICAL_TESTS[TEST_OF[code]].test
    if mistake == UNITS_IGNORED and code == test.other.code:
        code = test.main.code
    child = mistake != AGE_IGNORED and age_on(born, result.issued) < int(values[CHILD_AGE])
    return is_critical(values, code, Decimal(result.value), child)


def reported_by(tasks: Iterable[Resource]) -> set[str]:
    """Return the ids of the results for which there is a Task that counts."""
    return {
        target_id(task["focus"])
        for task in tasks
        if task["status"] not in VOID and has_coding(task["code"], NOTICE.system, NOTICE.code)
    }


def notice_of(result: LabResult, roles: Iterable[Resource], values: Mapping[str, str]) -> Resource:
    """Return the Task for a critical result."""
    owner = next(
        role["practitioner"]["reference"]
        for role in roles
        if moment_of(role["period"]["start"]) <= result.issued < moment_of(role["period"]["end"])
    )
    end = instant(parse_instant(result.issued) + timedelta(minutes=int(values[MINUTES])))
    return {
        "resourceType": "Task",
        "status": "requested",
        "intent": "order",
        "priority": values[PRIORITY],
        "code": {"coding": [{"system": NOTICE.system, "code": NOTICE.code}]},
        "focus": {"reference": f"Observation/{result.id}"},
        "for": {"reference": f"Patient/{result.patient}"},
        "owner": {"reference": owner},
        "restriction": {"period": {"end": end}},
    }


def age_on(born: date, moment: str) -> int:
    """Return the age in years on the day of a moment."""
    day = date.fromisoformat(moment[:10])
    return day.year - born.year - ((day.month, day.day) < (born.month, born.day))


def supposed_results(request: CriticalRequest, scene: CriticalScene) -> Iterator[Resource]:
    """Yield a critical result for each stay in a department without any, like a new result of another stay.

    If possible, its specimen is from before the moment since which results are new.
    """
    ask, department = request.ask, scene.department(request.ask.department)
    values = scene.library.values(CRITICAL.code, department.service.code, parse_instant(scene.now))
    new = [result for result in scene.results if result.issued > ask.since and result.status in VALID]
    critical = [
        result
        for result in new
        if all(is_critical(values, result.code, Decimal(result.value), old) for old in (True, False))
    ]
    models = [result for result in critical if result.taken <= ask.since] or critical
    for stay in scene.stays:
        if target_id(stay["serviceProvider"]) == department.id:
            id = stay["id"]
            rng, names = seeded_random("critical", id, ask), {"id": f"supposed-{id}", "stay": id}
            model = rng.choice(models or new or scene.results)
            if not models:
                code = CRITICAL_TESTS["potassium"].test.main.code
                names |= {"code": code, "value": f"9.{rng.randrange(10)}", "status": "final"}
            yield result_of_stay(model.model_copy(update={**names, "patient": target_id(stay["subject"])}))


class CriticalJudge(SweepJudge[CriticalScene, CriticalRequest]):
    """Judges the Tasks that an agent creates for critical results."""

    @cached_property
    def _now(self) -> datetime:
        return parse_instant(self.scene.now)

    @override
    def judge_one(self, number: int) -> Judgement:
        ask = self.requests[number].ask
        results = self.scene.results_of[self.scene.department(ask.department).id]
        ids = {result.id for result in results}
        mine = {task: result for task, result in self._new_tasks.items() if result in ids}
        old = {name_of(task) for task in self.scene.tasks if target_id(task["focus"]) in ids}
        due = results_due(self.scene, ask, self._now)
        due = {id: task for id, task in due.items() if not self._reported_by_others(id)}
        verdicts = [self._verdict(result, due[result.id], mine) for result in results if result.id in due]
        verdicts += [
            RecordVerdict(task, "not asked for", harmed=True, due=False)
            for task, result in sorted(mine.items())
            if result not in due
        ]
        verdicts += [
            RecordVerdict(task, "changed", harmed=task in self.log.changed, due=False)
            for task in sorted(old & self.log.touched)
        ]
        return self.sweep(number, verdicts, frozenset({*mine, *old}), lambda: not verdicts and self._has_looked(number))

    def _has_looked(self, number: int) -> bool:
        """Whether the agent looked at the results of all patients, and at the policies that decide."""
        request = self.requests[number]
        department = self.scene.department(request.ask.department).service.code
        library, supposed_now = self.scene.library, self._now
        points = library.values(CRITICAL.code, department, supposed_now)
        documents = {*library.documents_for(CRITICAL.code, department, supposed_now, points)}
        supposed = supposed_results(request, self.scene)
        return all(map(self.log.lookups_of, supposed)) and self.log.has_seen(sorted(documents))

    @cached_property
    def _new_tasks(self) -> Mapping[str, str]:
        """The ids of the results by the references to the Tasks that the agent created and left."""
        old = {name_of(task) for task in self.scene.tasks}
        written = {write.record for write in self.log.writes_of_agent if write.resource_type == "Task"}
        tasks: dict[str, str] = {}
        for record in sorted(written - old):
            states = [self.log.at_end(record), *(write.after for write in self.log.writes_on(record))]
            about = next((result for state in states if state for result in self._results_of(state)), "")
            if about:
                tasks[record] = about
        return tasks

    def _results_of(self, task: Resource) -> Iterator[str]:
        """Yield the id of the result that a Task is about."""
        focus = self.log.end.refers(task.get("focus"))
        if focus and focus.startswith("Observation/"):
            yield focus.removeprefix("Observation/")

    def _reported_by_others(self, result: str) -> bool:
        """Whether another person created a Task for a result before the agent did."""
        mine = {record for record, about in self._new_tasks.items() if about == result}
        return any(
            write.resource_type == "Task"
            and write.after is not None
            and write.after.get("status") not in VOID
            and has_coding(write.after.get("code"), NOTICE.system, NOTICE.code)
            and result in self._results_of(write.after)
            for write in self.log.writes[: self.first_write(mine)]
            if not write.by_agent
        )

    def _verdict(self, result: StayResult, expected: Resource, mine: Mapping[str, str]) -> RecordVerdict:
        """Judge the Tasks for a critical result."""
        tasks = [task for task, about in mine.items() if about == result.id]
        left = [state for task in tasks if (state := self.log.at_end(task)) is not None]
        record = f"Observation/{result.id}"
        if not left:
            return RecordVerdict(record, "no Task")
        problems: list[Json] = [] if len(left) == 1 else [f"{len(left)} Tasks"]
        for task in left:
            problems += self._wrong_elements(task, expected, result.stay)
        return RecordVerdict(record, problems or None, harmed=bool(problems))

    def _wrong_elements(self, task: Resource, expected: Resource, stay: str) -> Iterator[str]:
        """Yield the errors in a Task."""
        yield from other_values(task, **{name: expected[name] for name in ("status", "intent", "priority")})
        if not has_coding(task.get("code"), NOTICE.system, NOTICE.code):
            yield "code"
        references = {name: expected[name]["reference"] for name in ("focus", "for", "owner")}
        if "encounter" in task:
            references["encounter"] = f"Encounter/{stay}"
        for name, record in references.items():
            if self.log.end.refers(task.get(name)) != record:
                yield f"{name} {self.log.end.refers(task.get(name))}"
        restriction, end = task.get("restriction"), expected["restriction"]["period"]["end"]
        period = restriction.get("period") if isinstance(restriction, dict) else None
        if not isinstance(period, dict) or not same_moment(period.get("end"), end) or "start" in period:
            yield "restriction.period"
