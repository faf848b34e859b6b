"""Hospitals with laboratory results, practitioners on call, Tasks, and policies that say which values are critical."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import (
    Concept,
    IdAllocator,
    Person,
    at,
    instant,
    new_person,
    patient_resource,
    practitioner_resource,
    reference,
)
from fhir_gym.tasks.packs.shift.clinic import SERVICES, draw_place_name
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.laboratory import (
    TESTS,
    VALID,
    Analyte,
    LabResult,
    LabTest,
    observation_of,
    reported_value,
)
from fhir_gym.tasks.packs.shift.patients import draw_patients
from fhir_gym.tasks.packs.shift.policies import Library, policy_resources
from fhir_gym.tasks.packs.shift.policy_drawing import draw_library
from fhir_gym.tasks.packs.shift.policy_texts import Rule, Subject
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
ADULTS, CHILDREN = "adults", "children"
CHILD_AGE, MINUTES, PRIORITY = "child-age", "minutes", "priority"
_ALL = "all"
_CLOSE = Decimal("0.006")
"""No result is closer than this share to a limit that can be drawn, so that rounding never decides."""
_DAYS = 4
_CHILDREN = 0.45
_INVALID = ("preliminary", "preliminary", "entered-in-error", "cancelled")
_INVALID_SHARE = 0.2
_OPEN = ("requested", "accepted", "in-progress", "completed")
_TASK_SHARE = 0.3
_HANDLED = 0.25
"""Probability that somebody has created Tasks for all remarkable results of a department."""
_REMARKABLE = (0.35, 0.7, 0.8)
"""Possible shares of remarkable values among the results of a department."""
_EXCHANGED = 0.4
_TRIES = 50
_CHANGES = (7, 19)
"""Hours at which the duty of being on call passes to the next practitioner."""


@dataclass(frozen=True)
class CriticalTest:
    """A test and the limits of critical values that policies may have.

    Attributes:
        above: Possible limits, in the main unit, above which a value is critical; by the patients for whom they hold.
        below: Possible limits below which a value is critical.
    """

    test: LabTest
    above: Mapping[str, tuple[str, ...]]
    below: Mapping[str, tuple[str, ...]]

    @cached_property
    def analytes(self) -> dict[str, Analyte]:
        """The analytes of the test, and the similar one, by their codes."""
        return {analyte.code: analyte for analyte in (self.test.main, self.test.other, self.test.similar)}

    def limits(self, side: Mapping[str, tuple[str, ...]]) -> list[float]:
        """Return all limits of one side that can be drawn."""
        return [float(limit) for limits in side.values() for limit in limits]

    def is_clear(self, code: str, value: Decimal) -> bool:
        """Whether a value is clearly above or below each limit that can be drawn."""
        converted = self.test.converted(code, value)
        return not any(low <= converted <= high for low, high in self._close)

    @cached_property
    def _close(self) -> list[tuple[Decimal, Decimal]]:
        """The lowest and the highest value that is close to each limit that can be drawn."""
        limits = (Decimal(limit) for side in (self.above, self.below) for texts in side.values() for limit in texts)
        return [(limit - _CLOSE * limit, limit + _CLOSE * limit) for limit in limits]


def _test(main: Analyte, other: Analyte, similar: Analyte, factor: str, low: float, high: float) -> LabTest:
    return LabTest(main, other, similar, Decimal(factor), main.digits, low, high, ())


CRITICAL_TESTS = MappingProxyType(
    {
        "potassium": CriticalTest(
            _test(
                Analyte("2823-3", "Potassium [Moles/volume] in Serum or Plasma", "mmol/L", 1),
                Analyte("6298-4", "Potassium [Moles/volume] in Blood", "mmol/L", 1),
                Analyte("2828-2", "Potassium [Moles/volume] in Urine", "mmol/L", 0, 8),
                *("1", 3.4, 5.2),
            ),
            above={ADULTS: ("5.8", "6", "6.3", "6.6"), CHILDREN: ("6.1", "6.5", "6.9", "7.2")},
            below={_ALL: ("2.5", "2.7", "2.9", "3.1")},
        ),
        "sodium": CriticalTest(
            _test(
                Analyte("2951-2", "Sodium [Moles/volume] in Serum or Plasma", "mmol/L", 0),
                Analyte("2947-0", "Sodium [Moles/volume] in Blood", "mmol/L", 0),
                Analyte("2955-3", "Sodium [Moles/volume] in Urine", "mmol/L", 0, 0.6),
                *("1", 132, 146),
            ),
            above={_ALL: ("153", "156", "160", "164")},
            below={_ALL: ("114", "117", "121", "125")},
        ),
        "glucose": CriticalTest(
            _test(TESTS["glucose"].main, TESTS["glucose"].other, TESTS["glucose"].similar, "18.02", 70, 190),
            above={ADULTS: ("350", "400", "450", "500"), CHILDREN: ("240", "280", "320", "360")},
            below={ADULTS: ("42", "47", "53", "58"), CHILDREN: ("38", "43", "49", "55")},
        ),
        "hemoglobin": CriticalTest(
            _test(
                Analyte("718-7", "Hemoglobin [Mass/volume] in Blood", "g/dL", 1),
                Analyte("59260-0", "Hemoglobin [Moles/volume] in Blood", "mmol/L", 1),
                TESTS["HbA1c"].main,
                *("1.611", 9.8, 15.5),
            ),
            above={},
            below={ADULTS: ("6.4", "6.9", "7.4", "7.9"), CHILDREN: ("7.1", "7.7", "8.3", "9")},
        ),
        "creatinine": CriticalTest(
            _test(TESTS["creatinine"].main, TESTS["creatinine"].other, TESTS["creatinine"].similar, "0.0113", 0.5, 1.7),
            above={ADULTS: ("3.5", "4", "5", "6"), CHILDREN: ("1.8", "2.2", "2.6", "3")},
            below={},
        ),
    }
)
"""The tests by the names that policies use."""
TEST_OF = MappingProxyType(
    {code: name for name, critical_test in CRITICAL_TESTS.items() for code in critical_test.analytes}
)
"""The names of the tests by the codes of their analytes."""


def point(test: str, side: str, group: str) -> str:
    """Return the name of the point of policies that settles a limit.

    Args:
        test: Name of the test.
        side: ``above`` or ``below``.
        group: The patients for whom the limit holds.
    """
    return f"{test}-{side}-{group}"


def _limits() -> Iterator[Rule]:
    who = {ADULTS: "In adults, a", CHILDREN: "In children, a", _ALL: "At any age, a"}
    for name, critical_test in CRITICAL_TESTS.items():
        for side, limits in (("above", critical_test.above), ("below", critical_test.below)):
            for group, values in limits.items():
                sentence = f"{who[group]} {name} {side} {{value}} {critical_test.test.main.unit} is critical."
                yield Rule(point(name, side, group), sentence, values)


CRITICAL = Subject(
    "critical-results",
    "Critical results",
    (
        Rule(
            CHILD_AGE,
            "For critical results, patients under {value} years are children, all others adults.",
            ("12", "14", "16", "18"),
        ),
        *_limits(),
        Rule(PRIORITY, "The Task for a critical result has the priority {value}.", ("urgent", "asap", "stat")),
        Rule(MINUTES, "The Task is due {value} minutes after the result was issued.", ("15", "20", "30", "45", "60")),
    ),
)
"""The subject of policies about critical results."""


def is_critical(values: Mapping[str, str], code: str, value: Decimal, child: bool) -> bool:
    """Whether a result is critical."""
    name = TEST_OF[code]
    critical_test = CRITICAL_TESTS[name]
    if code == critical_test.test.similar.code:
        return False
    converted, group = critical_test.test.converted(code, value), CHILDREN if child else ADULTS
    above, below = (
        [values[point(name, side, who)] for who in (group, _ALL) if who in limits]
        for side, limits in (("above", critical_test.above), ("below", critical_test.below))
    )
    return any(converted > Decimal(limit) for limit in above) or any(converted < Decimal(limit) for limit in below)


def conversions() -> str:
    """Return the codes and units of the tests, for prompts."""
    lines = []
    for name, critical_test in CRITICAL_TESTS.items():
        main, other, factor = critical_test.test.main, critical_test.test.other, critical_test.test.factor
        same = f"{other.code} in {other.unit}" + (
            "" if factor == 1 else f"; the value in {main.unit} is {factor} times the value in {other.unit}"
        )
        lines.append(f"  - {name}: {main.code} in {main.unit}, and {same}")
    return "\n".join(lines)


class Department(Params):
    """A department.

    Attributes:
        service: What the department is for; policies name it so.
    """

    id: str
    service: Concept


class StayResult(LabResult):
    """A result of a stay.

    Attributes:
        stay: Id of the Encounter.
    """

    stay: str


class CriticalScene(ShiftScene):
    """The records of a hospital.

    Attributes:
        place: Id of the Organization.
        results: The results of all stays.
        tasks: The Tasks about results.
        tasks_due: Minimum and maximum number of Tasks that all requests together ask for.
    """

    now: str
    place: str
    name: str
    departments: tuple[Department, ...]
    practitioners: tuple[Person, ...]
    roles: tuple[Resource, ...]
    people: tuple[Person, ...]
    stays: tuple[Resource, ...]
    results: tuple[StayResult, ...]
    tasks: tuple[Resource, ...]
    library: Library
    tasks_due: tuple[int, int]

    def department(self, service: str) -> Department:
        """Return the department with the display of its service."""
        return next(department for department in self.departments if department.service.display == service)

    @cached_property
    def born(self) -> dict[str, date]:
        """The dates of birth of the patients by their ids."""
        return {person.id: date.fromisoformat(person.birth_date) for person in self.people}

    @cached_property
    def results_of(self) -> dict[str, list[StayResult]]:
        """The results by the id of the department."""
        departments = {stay["id"]: target_id(stay["serviceProvider"]) for stay in self.stays}
        results: dict[str, list[StayResult]] = {department.id: [] for department in self.departments}
        for result in self.results:
            results[departments[result.stay]].append(result)
        return results

    @cached_property
    def roles_on_call(self) -> dict[str, list[Resource]]:
        """The active roles of the practitioners on call, by the id of the department."""
        roles: dict[str, list[Resource]] = {department.id: [] for department in self.departments}
        for role in self.roles:
            if role["active"] and role["code"] == [ON_CALL.concept]:
                roles[target_id(role["organization"])].append(role)
        return roles

    @override
    def resources(self) -> list[Resource]:
        return [
            {"resourceType": "Organization", "id": self.place, "active": True, "name": self.name},
            *(_department(department, self.place) for department in self.departments),
            *map(practitioner_resource, self.practitioners),
            *({**role} for role in self.roles),
            *map(patient_resource, self.people),
            *({**stay} for stay in self.stays),
            *map(result_of_stay, self.results),
            *({**task} for task in self.tasks),
            *policy_resources(self.library, (CRITICAL,)),
        ]


def target_id(reference: Resource) -> str:
    """Return the id to which a Reference points."""
    return str(reference["reference"]).rpartition("/")[2]


def _department(department: Department, place: str) -> Resource:
    return {
        "resourceType": "Organization",
        "id": department.id,
        "active": True,
        "type": [department.service.concept],
        "name": department.service.display,
        "partOf": reference("Organization", place),
    }


def result_of_stay(result: StayResult) -> Resource:
    """Build the Observation of a result."""
    observation = observation_of(result, CRITICAL_TESTS[TEST_OF[result.code]].analytes[result.code])
    values: dict[str, Json] = {}
    for name, value in observation.items():
        values[name] = value
        if name == "subject":
            values["encounter"] = reference("Encounter", result.stay)
    return values


def draw_hospital(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    *,
    departments: int,
    people: Sequence[int],
    results: Sequence[int],
    documents: int,
    tasks_due: tuple[int, int],
    amended_at: Sequence[datetime] = (),
) -> CriticalScene:
    """Draw a hospital whose results all come from the same random process."""
    chosen = rng.sample(SERVICES, departments + 1)
    offered = [Department(id=ids.new("Organization"), service=service) for service in chosen[:departments]]
    staff: list[Person] = []
    roles: list[Resource] = []
    for department in offered:
        team = [new_person(rng, world, ids.new("Practitioner"), resource_type="Practitioner") for _ in range(4)]
        staff += team
        roles += _roles(rng, ids, world.now, department.id, [person.id for person in team])
    patients = [_with_age(rng, world, patient) for patient in draw_patients(rng, world, ids, people, 1)]
    stays = [_stay(rng, ids, world.now, offered, patient) for patient in patients]
    shares = {department.id: rng.choice(_REMARKABLE) for department in offered}
    stay_results = [
        result
        for stay in stays
        for result in _results(rng, world, ids, stay, rng.choice(results), shares[target_id(stay["serviceProvider"])])
    ]
    handled = {department.id for department in offered if rng.random() < _HANDLED}
    stays_handled = {stay["id"] for stay in stays if target_id(stay["serviceProvider"]) in handled}
    return CriticalScene(
        now=instant(world.now),
        place=ids.new("Organization"),
        name=draw_place_name(rng),
        departments=tuple(offered),
        practitioners=tuple(staff),
        roles=tuple(rng.sample(roles, len(roles))),
        people=tuple(patients),
        stays=tuple(stays),
        results=tuple(stay_results),
        tasks=tuple(_tasks(rng, ids, stay_results, [practitioner.id for practitioner in staff], stays_handled)),
        library=draw_library(rng, ids, world.now, (CRITICAL,), chosen, documents, soon=amended_at),
        tasks_due=tasks_due,
    )


def _roles(
    rng: random.Random, ids: IdAllocator, now: datetime, department: str, team: Sequence[str]
) -> Iterator[Resource]:
    """Draw who is on call in a department; some duties were exchanged."""

    def role(practitioner: str, kind: Concept, active: bool, start: datetime, end: datetime) -> Resource:
        return {
            "resourceType": "PractitionerRole",
            "id": ids.new("PractitionerRole"),
            "active": active,
            "period": {"start": instant(start), "end": instant(end)},
            "practitioner": reference("Practitioner", practitioner),
            "organization": reference("Organization", department),
            "code": [kind.concept],
        }

    moments = [at(now.date() + timedelta(days=day), hour) for day in range(-_DAYS - 2, 3) for hour in _CHANGES]
    for practitioner in rng.sample(team, 2):
        yield role(practitioner, _ATTENDING, True, moments[0], moments[-1])
    for start, end in pairwise(moments):
        planned, other = rng.sample(team, 2)
        exchanged = rng.random() < _EXCHANGED
        for practitioner, active in ((planned, True), (other, False))[: 1 + exchanged]:
            yield role(practitioner, ON_CALL, active, start, end)


def _with_age(rng: random.Random, world: World, person: Person) -> Person:
    """Give some of the patients the age of a child or of a young adult."""
    if rng.random() > _CHILDREN:
        return person
    today = world.now.date()
    # No birthday is near the present, so that the age is the same on all days with results.
    born = today - timedelta(days=rng.randint(6, 21) * 365 + rng.randint(40, 320))
    return person.model_copy(update={"birth_date": born.isoformat()})


def _stay(
    rng: random.Random, ids: IdAllocator, now: datetime, departments: Sequence[Department], person: Person
) -> Resource:
    start = now - timedelta(days=_DAYS, minutes=rng.randrange(60, 7_000))
    return {
        "resourceType": "Encounter",
        "id": ids.new("Encounter"),
        "status": "in-progress",
        "class": {**_INPATIENT},
        "subject": reference("Patient", person.id),
        "period": {"start": instant(start)},
        "serviceProvider": reference("Organization", rng.choice(departments).id),
    }


def _results(
    rng: random.Random, world: World, ids: IdAllocator, stay: Resource, count: int, remarkable: float
) -> Iterator[StayResult]:
    for _ in range(count):
        critical_test = CRITICAL_TESTS[rng.choice(sorted(CRITICAL_TESTS))]
        issued = world.now - timedelta(minutes=rng.randrange(20, _DAYS * 24 * 60))
        if issued.minute == 0:  # the duty passes on at full hours
            issued -= timedelta(minutes=7)
        taken = issued - timedelta(minutes=rng.choice((45, 70, 130, 240, 900, 1_500)) + rng.randrange(30))
        code, value = _value(rng, critical_test, remarkable)
        yield StayResult(
            id=ids.new("Observation"),
            patient=target_id(stay["subject"]),
            code=code,
            status=rng.choice(_INVALID) if rng.random() < _INVALID_SHARE else rng.choice(("final", *VALID)),
            taken=instant(taken),
            issued=instant(issued),
            value=value,
            stay=stay["id"],
        )


def _value(rng: random.Random, critical_test: CriticalTest, remarkable: float) -> tuple[str, str]:
    """Draw the code and the value of a result; values near the limits are frequent, values at a limit do not occur."""
    test = critical_test.test
    analyte = rng.choice((test.main, test.main, test.main, test.other, test.other, test.similar))
    above, below = critical_test.limits(critical_test.above), critical_test.limits(critical_test.below)
    ranges = [(0.95 * min(above), 1.08 * max(above))] if above else []
    ranges += [(0.88 * min(below), 1.06 * max(below))] if below else []
    for _ in range(_TRIES):
        bounds = rng.choice(ranges) if rng.random() < remarkable else (test.low, test.high)
        value = reported_value(test, analyte, rng.uniform(*bounds))
        if analyte == test.similar or critical_test.is_clear(analyte.code, Decimal(value)):
            return analyte.code, value
    return test.main.code, reported_value(test, test.main, (test.low + test.high) / 2)


def _tasks(
    rng: random.Random, ids: IdAllocator, results: Sequence[StayResult], staff: Sequence[str], handled: Collection[str]
) -> Iterator[Resource]:
    """Draw Tasks about some of the results; about all remarkable results of the stays that are handled."""
    for result in results:
        test = CRITICAL_TESTS[TEST_OF[result.code]].test
        usual = test.low <= test.converted(result.code, Decimal(result.value)) <= test.high
        complete = result.stay in handled and not usual
        if complete or rng.random() < (_TASK_SHARE / 6 if usual else _TASK_SHARE):
            id, critical = ids.new("Task"), complete or rng.random() < 0.75
            yield {
                "resourceType": "Task",
                "id": id,
                "status": rng.choice(_OPEN if complete or rng.random() < 0.55 else VOID),
                "intent": "order",
                "code": (NOTICE if critical else _FOLLOW_UP).concept,
                "focus": reference("Observation", result.id),
                "for": reference("Patient", result.patient),
                "authoredOn": result.issued,
                "owner": reference("Practitioner", rng.choice(staff)),
            }
