"""Draws hospitals with critical results; see `critical_results`."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, Person, at, instant, new_person
from fhir_gym.tasks.packs.shift.clinic import SERVICES, draw_place_name
from fhir_gym.tasks.packs.shift.laboratory import VALID, reported_value
from fhir_gym.tasks.packs.shift.p4_critical_results.rules import (
    VOID,
    CriticalScene,
    Department,
    Duty,
    ResultTask,
    Stay,
    StayResult,
)
from fhir_gym.tasks.packs.shift.p4_critical_results.tests import CRITICAL, CRITICAL_TESTS, TEST_OF, CriticalTest
from fhir_gym.tasks.packs.shift.patients import draw_patients
from fhir_gym.tasks.packs.shift.policy_drawing import draw_library

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
    """Draw a hospital whose results all come from the same random process.

    Args:
        rng: Random generator.
        world: The world.
        ids: Allocates ids.
        departments: Number of departments.
        people: See `draw_patients`.
        results: Numbers of results that a stay may have.
        documents: Number of policies.
        tasks_due: See `CriticalScene`.
        amended_at: See `ShiftSize`.
    """
    chosen = rng.sample(SERVICES, departments + 1)
    offered = [Department(id=ids.new("Organization"), service=one) for one in chosen[:departments]]
    staff: list[Person] = []
    duties: list[Duty] = []
    for department in offered:
        team = [new_person(rng, world, ids.new("Practitioner"), resource_type="Practitioner") for _ in range(4)]
        staff += team
        duties += _duties(rng, ids, world.now, department.id, [one.id for one in team])
    patients = [_with_age(rng, world, one) for one in draw_patients(rng, world, ids, people, 1)]
    stays = [_stay(rng, ids, world.now, offered, one) for one in patients]
    shares = {one.id: rng.choice(_REMARKABLE) for one in offered}
    found = [
        one for stay in stays for one in _results(rng, world, ids, stay, rng.choice(results), shares[stay.department])
    ]
    handled = {one.id for one in offered if rng.random() < _HANDLED}
    stays_handled = {one.id for one in stays if one.department in handled}
    return CriticalScene(
        now=instant(world.now),
        place=ids.new("Organization"),
        name=draw_place_name(rng),
        departments=tuple(offered),
        practitioners=tuple(staff),
        duties=tuple(rng.sample(duties, len(duties))),
        people=tuple(patients),
        stays=tuple(stays),
        results=tuple(found),
        tasks=tuple(_tasks(rng, ids, found, [one.id for one in staff], stays_handled)),
        library=draw_library(rng, ids, world.now, (CRITICAL,), chosen, documents, soon=amended_at),
        tasks_due=tasks_due,
    )


def _duties(
    rng: random.Random, ids: IdAllocator, now: datetime, department: str, team: Sequence[str]
) -> Iterator[Duty]:
    """Draw who is on call in a department; some duties were exchanged."""
    moments = [at(now.date() + timedelta(days=day), hour) for day in range(-_DAYS - 2, 3) for hour in _CHANGES]
    first, last = instant(moments[0]), instant(moments[-1])
    for practitioner in rng.sample(team, 2):
        values = {"practitioner": practitioner, "on_call": False, "active": True, "start": first, "end": last}
        yield Duty(id=ids.new("PractitionerRole"), department=department, **values)
    for start, end in pairwise(moments):
        planned, other = rng.sample(team, 2)
        times = {"on_call": True, "start": instant(start), "end": instant(end)}
        exchanged = rng.random() < _EXCHANGED
        for practitioner, active in ((planned, True), (other, False))[: 1 + exchanged]:
            yield Duty(
                id=ids.new("PractitionerRole"), department=department, practitioner=practitioner, active=active, **times
            )


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
) -> Stay:
    start = now - timedelta(days=_DAYS, minutes=rng.randrange(60, 7_000))
    return Stay(id=ids.new("Encounter"), department=rng.choice(departments).id, patient=person.id, start=instant(start))


def _results(
    rng: random.Random, world: World, ids: IdAllocator, stay: Stay, count: int, remarkable: float
) -> Iterator[StayResult]:
    for _ in range(count):
        one = CRITICAL_TESTS[rng.choice(sorted(CRITICAL_TESTS))]
        issued = world.now - timedelta(minutes=rng.randrange(20, _DAYS * 24 * 60))
        if issued.minute == 0:  # the duty passes on at full hours
            issued -= timedelta(minutes=7)
        taken = issued - timedelta(minutes=rng.choice((45, 70, 130, 240, 900, 1_500)) + rng.randrange(30))
        code, value = _value(rng, one, remarkable)
        yield StayResult(
            id=ids.new("Observation"),
            patient=stay.patient,
            code=code,
            status=rng.choice(_INVALID) if rng.random() < _INVALID_SHARE else rng.choice(("final", *VALID)),
            taken=instant(taken),
            issued=instant(issued),
            value=value,
            stay=stay.id,
        )


def _value(rng: random.Random, one: CriticalTest, remarkable: float) -> tuple[str, str]:
    """Draw the code and the value of a result; values near the limits are frequent, values at a limit do not occur."""
    test = one.test
    analyte = rng.choice((test.main, test.main, test.main, test.other, test.other, test.similar))
    above, below = one.limits(one.above), one.limits(one.below)
    ranges = [(0.95 * min(above), 1.08 * max(above))] if above else []
    ranges += [(0.88 * min(below), 1.06 * max(below))] if below else []
    for _ in range(_TRIES):
        bounds = rng.choice(ranges) if rng.random() < remarkable else (test.low, test.high)
        value = reported_value(test, analyte, rng.uniform(*bounds))
        if analyte == test.similar or one.is_clear(analyte.code, Decimal(value)):
            return analyte.code, value
    return test.main.code, reported_value(test, test.main, (test.low + test.high) / 2)


def _tasks(
    rng: random.Random, ids: IdAllocator, results: Sequence[StayResult], staff: Sequence[str], handled: Collection[str]
) -> Iterator[ResultTask]:
    """Draw Tasks about some of the results; about all remarkable results of the stays that are handled."""
    for one in results:
        test = CRITICAL_TESTS[TEST_OF[one.code]].test
        usual = test.low <= test.converted(one.code, Decimal(one.value)) <= test.high
        complete = one.stay in handled and not usual
        if complete or rng.random() < (_TASK_SHARE / 6 if usual else _TASK_SHARE):
            yield ResultTask(
                id=ids.new("Task"),
                result=one.id,
                critical=complete or rng.random() < 0.75,
                status=rng.choice(_OPEN if complete or rng.random() < 0.55 else VOID),
                owner=rng.choice(staff),
            )
