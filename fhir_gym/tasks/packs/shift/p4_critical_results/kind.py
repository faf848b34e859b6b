"""Tasks P4-1 and P4-2: critical results under the policies of the hospital."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Post
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, instant, parse_instant
from fhir_gym.tasks.core.dates import full_years
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import has_coding, same_moment
from fhir_gym.tasks.packs.shift.kind import (
    Judgement,
    Knowledge,
    Request,
    RequestContent,
    RequestSampler,
    ShiftSize,
    Solution,
)
from fhir_gym.tasks.packs.shift.laboratory import VALID, LabResult, parse_result
from fhir_gym.tasks.packs.shift.lookups import record_named, search_all
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.p4_critical_results.scene import (
    CHILD_AGE,
    CRITICAL,
    CRITICAL_TESTS,
    MINUTES,
    NOTICE,
    ON_CALL,
    PRIORITY,
    TEST_OF,
    VOID,
    CriticalScene,
    Department,
    StayResult,
    conversions,
    draw_hospital,
    is_critical,
    result_of_stay,
    target_id,
)
from fhir_gym.tasks.packs.shift.patient_records import moment_of, name_of, other_values
from fhir_gym.tasks.packs.shift.policies import MISREADINGS, Library, library_about, policy_time, validity_rules
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, SweepJudge, SweepKind
from fhir_gym.types import Json, Resource, as_object

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
    child = mistake != AGE_IGNORED and full_years(born, date.fromisoformat(result.issued[:10])) < int(values[CHILD_AGE])
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
    def judge_request(self, number: int) -> Judgement:
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
        period = as_object(as_object(task.get("restriction")).get("period"))
        if not same_moment(period.get("end"), expected["restriction"]["period"]["end"]) or "start" in period:
            yield "restriction.period"


_MISTAKES = 2
"""Number of mistakes that should change the result of a request."""
_HOURS = (8, 12, 18, 24, 30, 36, 48, 60, 72)
"""How long before the present the new results may begin."""
_FEWEST_RESULTS = 3
"""Minimum number of new results."""
_SEVERAL = 3
"""From this number of requests on, a request asks for fewer Tasks."""
_MOST_DEPARTMENTS = 5
"""Most requests of one shift, because each is about another department."""


class CriticalSampler(RequestSampler[CriticalScene, CriticalRequest]):
    """Draws a department, and the request about it whose result the most of some mistakes would change."""

    @override
    def draw(self, outcome: str, *, depends: bool) -> CriticalRequest | None:
        rng, used = self.rng, [request.ask.department for request in self.chosen]
        left = [department for department in self.scene.departments if department.service.display not in used]
        possible = {department: asks for department in left if (asks := self._possible(department, outcome))}
        if not possible:
            return None
        chosen = rng.choice([*possible])
        ask = self._most_changed(possible[chosen], rng.sample((*MISTAKES, *MISREADINGS), _MISTAKES))
        qualifying = tuple(f"Organization/{department.id}" for department in possible)
        target = f"Organization/{chosen.id}"
        return CriticalRequest(ask=ask, outcome=outcome, target=target, qualifying=qualifying)

    def _possible(self, department: Department, outcome: str) -> list[CriticalContent]:
        """Return requests about a department for which a number of results need a Task, in random order."""
        scene, done = self.scene, self.outcomes.count(DONE)
        fewest, most = (bound // done for bound in scene.tasks_due) if outcome == DONE else (0, 0)
        results = scene.results_of[department.id]
        due = results_due(scene, self._ask(department, max(_HOURS)), self.now)
        contents: list[CriticalContent] = []
        for hours in self.rng.sample(_HOURS, len(_HOURS)):
            ask = self._ask(department, hours)
            new = [result for result in results if result.issued > ask.since]
            if len(new) >= _FEWEST_RESULTS and fewest <= sum(result.id in due for result in new) <= most:
                contents.append(ask)
        return contents

    def _ask(self, department: Department, hours: int) -> CriticalContent:
        since = instant(self.now - timedelta(hours=hours, minutes=15))
        return CriticalContent(department=department.service.display, since=since)

    def _most_changed(self, asks: Sequence[CriticalContent], mistakes: Sequence[str]) -> CriticalContent:
        """Return the first request about a department whose result the most of the mistakes would change."""
        earliest = min(asks, key=lambda ask: ask.since)
        by_mistake = {mistake: self._written(earliest, mistake) for mistake in ("", *mistakes)}

        def changed(ask: CriticalContent) -> int:
            due = {
                mistake: {id: resource for id, (at, resource) in all.items() if at > ask.since}
                for mistake, all in by_mistake.items()
            }
            return sum(due[mistake] != due[""] for mistake in mistakes)

        return max(asks, key=changed)

    def _written(self, ask: CriticalContent, mistake: str) -> dict[str, tuple[str, Resource]]:
        """Return what an agent with a mistake would write, and the moments by which it tells which results are new."""
        scene, misread = self.scene, mistake in MISREADINGS
        library = scene.library.misread(mistake, self.now) if misread else None
        due = results_due(scene, ask, self.now, library, "" if misread else mistake)
        results = scene.results_of[scene.department(ask.department).id]
        moments = {result.id: result.taken if mistake == TIME_OF_SPECIMEN else result.issued for result in results}
        return {id: (moments[id], resource) for id, resource in due.items()}


class CriticalResults(SweepKind[CriticalScene, CriticalRequest]):
    """Create Tasks for critical results for the practitioners on call."""

    key = "P4"
    title = "Critical results"
    has_policies = True
    minutes = 26
    sampler_type = CriticalSampler
    judge_type = CriticalJudge
    resource_types = ("Organization", "Encounter", "Observation", "Task", "PractitionerRole", "DocumentReference")
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Task": (
            *("status", "intent", "priority", "code", "focus", "for", "encounter", "owner"),
            *("restriction", "restriction.period", "restriction.period.end"),
        )
    }
    rules = (
        "- All requests are about {place} (an Organization). Its departments are the Organizations that are part of it "
        "(partOf); the code of a department is in type. A result (Observation) belongs to the department that is the "
        "serviceProvider of its encounter.\n"
        "- A result is new if it was issued (Observation.issued) after the named time. Only results with the status "
        "final, amended or corrected count. These codes and units occur; other codes do not count:\n"
        f"{conversions()}\n"
        "- Which new results are critical depends on the policies, and on the patient's age on the day (UTC) on which "
        "the result was issued.\n"
        f"{validity_rules((CRITICAL,))}\n"
        "- For each new critical result, create a Task, unless there is one already: a Task with the code "
        f"{NOTICE.code} whose focus is the result, and whose status is not {', '.join(VOID[:-1])} or {VOID[-1]}.\n"
        "- The Task has the status requested, the intent order, the priority that the policies say, the code "
        f"{NOTICE.code} (system {NOTICE.system}), the result as focus, the patient as for, and as owner the "
        "Practitioner who was on call for the department when the result was issued. restriction.period has only an "
        "end: the time at which the Task is due. The encounter, authoredOn, a requester, a description and notes may "
        "be added.\n"
        f"- A practitioner is on call for a department with an active PractitionerRole (active true) with the code "
        f"{ON_CALL.code} and the department as organization, from period.start until just before period.end.\n"
        f'- The outcome is "{DONE}"; if no Task has to be created, it is "{NOTHING_TO_DO}".'
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> CriticalScene:
        if size.level == 1:
            return draw_hospital(
                *(rng, world, ids),
                departments=2,
                people=(13,),
                results=(4, 5, 6, 7),
                documents=9,
                tasks_due=(4, 10),
                amended_at=size.amended_at,
            )
        low, high = (9, 21) if size.requests < _SEVERAL else (6, 14)
        return draw_hospital(
            rng,
            world,
            ids,
            departments=4 if size.requests < _MOST_DEPARTMENTS else _MOST_DEPARTMENTS,
            people=(15, 16),
            results=(8, 9, 10, 11),
            documents=16,
            tasks_due=(low * size.requests, high * size.requests),
            amended_at=size.amended_at,
        )

    @override
    def rule_values(self, scene: CriticalScene) -> Mapping[str, str]:
        return {"place": scene.name}

    @override
    def text(self, ask: CriticalContent, wording: int) -> str:
        since = f"{ask.since[:10]} {ask.since[11:16]}"
        return (
            f"Please go through the results of {ask.department} since {since}, and see to the critical ones.",
            f"{ask.department}: was anybody told about the critical results since {since}? Please take care of it.",
            f"Critical results of {ask.department}, issued after {since}.",
        )[wording]

    @override
    def solve(self, ask: CriticalContent, knowledge: Knowledge) -> Solution:
        if not knowledge.looked_up:
            knowledge.looked_up["departments"] = yield from _departments(knowledge.rule_values["place"])
        library = yield from library_about(CRITICAL, knowledge)
        department: Resource = knowledge.looked_up["departments"][ask.department]
        organization = f"Organization/{department['id']}"
        values = library.values(CRITICAL.code, department["type"][0]["coding"][0]["code"], policy_time(knowledge))
        query = {"service-provider": organization, "_include": "Encounter:patient", "_count": "200"}
        resources = yield from search_all("/Encounter", {**query, "_revinclude": "Observation:encounter"})
        born = {
            patient["id"]: date.fromisoformat(patient["birthDate"])
            for patient in resources
            if patient["resourceType"] == "Patient"
        }
        results = [
            parse_result(observation) for observation in resources if observation["resourceType"] == "Observation"
        ]
        critical = [result for result in results if is_new_and_critical(result, ask, values, born[result.patient])]
        if critical:
            query = {"code": NOTICE.token, "focus": ",".join(f"Observation/{result.id}" for result in critical)}
            reported = reported_by((yield from search_all("/Task", {**query, "_count": "200"})))
            critical = [result for result in critical if result.id not in reported]
        if not critical:
            return NOTHING_TO_DO
        query = {"organization": organization, "role": ON_CALL.token, "active": "true", "_count": "200"}
        roles = yield from search_all("/PractitionerRole", query)
        for result in critical:
            yield Post("/Task", notice_of(result, roles, values))
        return DONE

    @override
    def counterfactuals(self, request: CriticalRequest, scene: CriticalScene) -> list[Resource]:
        return [*supposed_results(request, scene)] if request.outcome == NOTHING_TO_DO else []


def _departments(place: str) -> Generator[Action, Json, dict[str, Resource]]:
    """Look up the departments of a hospital by their names."""
    hospital = yield from record_named("Organization", place)
    parts = yield from search_all("/Organization", {"partof": name_of(hospital), "_count": "200"})
    return {part["name"]: part for part in parts}


class CriticalResultsLevel1(StaticShift, requests=CriticalResults(), level=1):
    """Report the new critical results of one or two departments.

    Starting state: a hospital with two departments, about 80 results of fourteen patients from four days, with all
        statuses and in two units, and Tasks for some of them. Nine policies say from which values on a result is
        critical, for adults and for children. Practitioners are on call in turn, and exchange duties.
    Decoys: void results, similar tests, values that are critical for other ages, by other policies or in another unit;
        results that were issued before, or for which there is a Task; Tasks that are cancelled or about something
        else; practitioners who have exchanged their duty.
    Checks: each critical result has exactly one Task, with the right elements. The score is the share of the results
        that are right minus the share of wrong Tasks. Nothing else changed.
    Light: none of the checks.
    """


class CriticalResultsLevel2(StaticShift, requests=CriticalResults(), level=2):
    """Report the new critical results of two or three departments.

    Starting state: as at level 1, with four departments, about 300 results of 32 patients, and 16 policies.
    Decoys: as at level 1.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (CriticalResultsLevel1, CriticalResultsLevel2)
