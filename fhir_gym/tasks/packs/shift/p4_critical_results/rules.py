"""Departments with patients, laboratory results, practitioners on call, and Tasks for critical results."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple

from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import (
    Concept,
    Person,
    instant,
    parse_instant,
    patient_resource,
    practitioner_resource,
    reference,
)
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.packs.shift.kind import Request, RequestContent
from fhir_gym.tasks.packs.shift.laboratory import VALID, LabResult, observation_of
from fhir_gym.tasks.packs.shift.p4_critical_results.tests import (
    CHILD_AGE,
    CRITICAL,
    CRITICAL_TESTS,
    MINUTES,
    PRIORITY,
    TEST_OF,
    is_critical,
)
from fhir_gym.tasks.packs.shift.policies import Library, policy_resources
from fhir_gym.types import Json, Resource

NOTICE = Concept(system="http://example.org/task-codes", code="critical-result", display="Critical result")
ON_CALL = Concept(system="http://example.org/roles", code="on-call", display="On call")
_ATTENDING = Concept(system="http://example.org/roles", code="attending", display="Attending")
_FOLLOW_UP = Concept(system="http://example.org/task-codes", code="repeat-test", display="Repeat of a test")
_INPATIENT = {
    "system": "http://terminology.hl7.org/CodeSystem/v3-ActCode",
    "code": "IMP",
    "display": "inpatient encounter",
}
VOID = ("cancelled", "rejected", "failed", "entered-in-error")
"""Statuses of Tasks that do not count."""

STATUS_IGNORED = "status ignored"
UNITS_IGNORED = "units ignored"
AGE_IGNORED = "age ignored"
TASKS_IGNORED = "existing Tasks ignored"
TIME_OF_SPECIMEN = "time of the specimen"
MISTAKES = (STATUS_IGNORED, UNITS_IGNORED, AGE_IGNORED, TASKS_IGNORED, TIME_OF_SPECIMEN)
"""Mistakes that change which results need a Task."""


class Department(Params):
    """A department.

    Attributes:
        id: Id of the Organization.
        service: What the department is for; policies name it so.
    """

    id: str
    service: Concept


class Duty(Params):
    """A role of a practitioner in a department for some time.

    Attributes:
        id: Id of the PractitionerRole.
        department: Id of the department.
        practitioner: Id of the practitioner.
        on_call: Whether the practitioner is on call.
        active: Whether the role is active.
        start: Start, an instant.
        end: End, an instant.
    """

    id: str
    department: str
    practitioner: str
    on_call: bool
    active: bool
    start: str
    end: str


class Stay(Params):
    """The stay of a patient in a department.

    Attributes:
        id: Id of the Encounter.
        department: Id of the department.
        patient: Id of the patient.
        start: Start, an instant.
    """

    id: str
    department: str
    patient: str
    start: str


class StayResult(LabResult):
    """A result of a stay.

    Attributes:
        stay: Id of the Encounter.
    """

    stay: str


class ResultTask(Params):
    """A Task about a result.

    Attributes:
        id: Id of the Task.
        result: Id of the Observation.
        critical: Whether the Task has the code for critical results.
        status: Status of the Task.
        owner: Id of the practitioner.
    """

    id: str
    result: str
    critical: bool
    status: str
    owner: str


class Due(NamedTuple):
    """What the Task for a critical result says.

    Attributes:
        owner: Id of the practitioner on call.
        priority: Priority of the Task.
        end: When the Task is due, an instant.
    """

    owner: str
    priority: str
    end: str


class CriticalScene(Params):
    """The records of a hospital.

    Attributes:
        now: Current time, an instant.
        place: Id of the Organization.
        name: Name of the hospital.
        departments: The departments.
        practitioners: The practitioners of all departments.
        duties: The roles of the practitioners.
        people: The patients.
        stays: The stays.
        results: The results of all stays.
        tasks: The Tasks about results.
        library: The policies.
        tasks_due: Minimum and maximum number of Tasks that all requests together ask for.
    """

    now: str
    place: str
    name: str
    departments: tuple[Department, ...]
    practitioners: tuple[Person, ...]
    duties: tuple[Duty, ...]
    people: tuple[Person, ...]
    stays: tuple[Stay, ...]
    results: tuple[StayResult, ...]
    tasks: tuple[ResultTask, ...]
    library: Library
    tasks_due: tuple[int, int]

    def department(self, service: str) -> Department:
        """Return the department with the display of its service."""
        return next(one for one in self.departments if one.service.display == service)

    @cached_property
    def results_of(self) -> dict[str, list[StayResult]]:
        """The results by the id of the department."""
        departments = {one.id: one.department for one in self.stays}
        found: dict[str, list[StayResult]] = {one.id: [] for one in self.departments}
        for one in self.results:
            found[departments[one.stay]].append(one)
        return found

    def on_call(self, department: str, moment: str) -> str:
        """Return the id of the practitioner who is on call at a moment."""
        return next(
            one.practitioner
            for one in self.duties
            if one.department == department and one.on_call and one.active and one.start <= moment < one.end
        )


class CriticalContent(RequestContent):
    """Which results are to be checked.

    Attributes:
        department: Display of the department's service.
        since: Results that were issued after this moment are new, an instant.
    """

    department: str
    since: str


class CriticalRequest(Request):
    """The request to check the new results of a department."""

    ask: CriticalContent


def results_due(
    scene: CriticalScene, ask: CriticalContent, now: datetime, library: Library | None = None, mistake: str = ""
) -> dict[str, Due]:
    """Return what the Tasks of a request say, by the ids of the results.

    Args:
        scene: The hospital.
        ask: The request.
        now: The moment for which the policies are valid.
        library: The policies, if they are not those of the hospital.
        mistake: One of `MISTAKES`, or an empty text.
    """
    department = scene.department(ask.department)
    values = (library or scene.library).values(CRITICAL.code, department.service.code, now)
    born = {one.id: date.fromisoformat(one.birth_date) for one in scene.people}
    reported = {one.result for one in scene.tasks if one.critical and one.status not in VOID}
    found: dict[str, Due] = {}
    for one in scene.results_of[department.id]:
        if (
            (one.taken if mistake == TIME_OF_SPECIMEN else one.issued) <= ask.since
            or (one.status not in VALID and mistake != STATUS_IGNORED)
            or (one.id in reported and mistake != TASKS_IGNORED)
        ):
            continue
        child = age_on(born[one.patient], one.issued) < int(values[CHILD_AGE])
        code = (
            CRITICAL_TESTS[TEST_OF[one.code]].test.main.code if mistake == UNITS_IGNORED and is_other(one) else one.code
        )
        if is_critical(values, code, Decimal(one.value), child and mistake != AGE_IGNORED):
            end = instant(parse_instant(one.issued) + timedelta(minutes=int(values[MINUTES])))
            found[one.id] = Due(scene.on_call(department.id, one.issued), values[PRIORITY], end)
    return found


def is_other(result: LabResult) -> bool:
    """Whether a result has the other unit of its test."""
    return result.code == CRITICAL_TESTS[TEST_OF[result.code]].test.other.code


def age_on(born: date, moment: str) -> int:
    """Return the age in years on the day of a moment."""
    day = date.fromisoformat(moment[:10])
    return day.year - born.year - ((day.month, day.day) < (born.month, born.day))


def hospital_resources(scene: CriticalScene) -> list[Resource]:
    """Build the resources of a hospital."""
    results = {one.id: one for one in scene.results}
    found: list[Resource] = [
        {"resourceType": "Organization", "id": scene.place, "active": True, "name": scene.name},
        *(_department(one, scene.place) for one in scene.departments),
        *map(practitioner_resource, scene.practitioners),
        *map(_role, scene.duties),
        *map(patient_resource, scene.people),
        *map(_encounter, scene.stays),
        *map(result_of_stay, scene.results),
        *(_task(one, results[one.result]) for one in scene.tasks),
    ]
    return [*found, *policy_resources(scene.library, (CRITICAL,))]


def _department(one: Department, place: str) -> Resource:
    return {
        "resourceType": "Organization",
        "id": one.id,
        "active": True,
        "type": [one.service.concept],
        "name": one.service.display,
        "partOf": reference("Organization", place),
    }


def _role(one: Duty) -> Resource:
    return {
        "resourceType": "PractitionerRole",
        "id": one.id,
        "active": one.active,
        "period": {"start": one.start, "end": one.end},
        "practitioner": reference("Practitioner", one.practitioner),
        "organization": reference("Organization", one.department),
        "code": [(ON_CALL if one.on_call else _ATTENDING).concept],
    }


def _encounter(one: Stay) -> Resource:
    return {
        "resourceType": "Encounter",
        "id": one.id,
        "status": "in-progress",
        "class": {**_INPATIENT},
        "subject": reference("Patient", one.patient),
        "period": {"start": one.start},
        "serviceProvider": reference("Organization", one.department),
    }


def result_of_stay(one: StayResult) -> Resource:
    """Build the Observation of a result."""
    observation = observation_of(one, CRITICAL_TESTS[TEST_OF[one.code]].analytes[one.code])
    found: dict[str, Json] = {}
    for name, value in observation.items():
        found[name] = value
        if name == "subject":
            found["encounter"] = reference("Encounter", one.stay)
    return found


def _task(task: ResultTask, result: StayResult) -> Resource:
    return {
        "resourceType": "Task",
        "id": task.id,
        "status": task.status,
        "intent": "order",
        "code": (NOTICE if task.critical else _FOLLOW_UP).concept,
        "focus": reference("Observation", result.id),
        "for": reference("Patient", result.patient),
        "authoredOn": result.issued,
        "owner": reference("Practitioner", task.owner),
    }


def supposed_results(request: CriticalRequest, scene: CriticalScene) -> Iterator[Resource]:
    """Yield a critical result for each stay in a department without any, like a new result of another stay.

    If possible, its specimen is from before the moment since which results are new.
    """
    ask, department = request.ask, scene.department(request.ask.department)
    values = scene.library.values(CRITICAL.code, department.service.code, parse_instant(scene.now))
    new = [one for one in scene.results if one.issued > ask.since and one.status in VALID]
    critical = [
        one for one in new if all(is_critical(values, one.code, Decimal(one.value), old) for old in (True, False))
    ]
    models = [one for one in critical if one.taken <= ask.since] or critical
    for stay in scene.stays:
        if stay.department == department.id:
            rng, names = seeded_random("critical", stay.id, ask), {"id": f"supposed-{stay.id}", "stay": stay.id}
            model = rng.choice(models or new or scene.results)
            if not models:
                code = CRITICAL_TESTS["potassium"].test.main.code
                names |= {"code": code, "value": f"9.{rng.randrange(10)}", "status": "final"}
            yield result_of_stay(model.model_copy(update={**names, "patient": stay.patient}))
