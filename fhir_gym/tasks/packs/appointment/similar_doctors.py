"""Draw doctors who have similar names and the same hours; a task chooses a doctor, a day and an hour for its prompt."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import permutations
from typing import NamedTuple

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import (
    IdAllocator,
    Person,
    at,
    is_new_name,
    new_names,
    new_person,
    next_weekday,
    parse_instant,
    person_called,
)
from fhir_gym.tasks.packs.appointment.slot_scenes import ProviderSchedule
from fhir_gym.types import Resource

ASKABLE, DISTRACTOR = "central", "further"
"""Kinds of times: a prompt could ask for the first kind; times of the second kind are easily mistaken for the first."""

_CONTACT = frozenset({"telecom", "address"})
_HOURS = range(8, 17)
_WEEK = timedelta(days=7)
_TRIES = 1_000
_EITHER_WAY = (
    *("Ashley", "Avery", "Bailey", "Blair", "Blake", "Cameron", "Casey", "Courtney", "Dale", "Ellis", "Hayden"),
    *("Jordan", "Kelly", "Kendall", "Leslie", "Lindsay", "Logan", "Marion", "Morgan", "Parker", "Quinn", "Reese"),
    *("Riley", "Shannon", "Sidney", "Taylor", "Tracy", "Tyler", "Whitney"),
)
"""Names that are given names of women and of men, and family names; none is the start of another."""
_KINDS = {"c": ASKABLE, "f": DISTRACTOR, "o": "other"}


class Row(NamedTuple):
    """A doctor's names and timetable.

    Attributes:
        given: Index of the given name.
        family: Index of the family name.
        plan: Five letters for the kinds of the doctor's times at five moments: ``c`` is `ASKABLE`, ``f`` is
            `DISTRACTOR`, ``o`` is another time, and a blank is no time. The moments are two hours of a day, the same
            hours a week earlier or later, and a third hour of the day.
    """

    given: int
    family: int
    plan: str


class DoctorTime(NamedTuple):
    """A time in a doctor's schedule.

    Attributes:
        row: Index of the doctor.
        moment: Index of the moment in the doctor's plan.
        schedule: The doctor's schedule.
        kind: `ASKABLE`, `DISTRACTOR` or ``other``.
    """

    row: int
    moment: int
    schedule: ProviderSchedule
    start: datetime
    kind: str


SIMILAR = (Row(0, 0, "ccffo"), Row(1, 0, "ccffo"), Row(0, 1, "cff o"), Row(1, 1, "ff   "))
"""Four doctors with two given names and two family names.

Each detail (given name, family name, day, hour) of a time that a prompt can ask for matters: another time differs only
in this detail.
"""

SWAPPED = tuple(
    Row(given, family, plan)
    for (given, family), plan in zip(permutations(range(3), 2), ("cffoo",) * 5 + ("f    ",), strict=True)
)
"""Six doctors with three names; each name is the given name of some doctors and the family name of others."""


def draw_doctor_times(
    rng: random.Random, world: World, ids: IdAllocator, rows: Sequence[Row], *, swapped: bool
) -> tuple[tuple[ProviderSchedule, ...], list[DoctorTime]]:
    """Draw doctors and the times in their schedules, on and around a day of next week.

    Args:
        rng: Random generator.
        world: The world, in which no doctor has the new names.
        ids: Allocates the ids.
        rows: The doctors' names and timetables.
        swapped: Whether the given names of some doctors are the family names of others.
    """
    schedules = tuple(
        ProviderSchedule(id=ids.new("Schedule"), provider=doctor) for doctor in _doctors(rng, world, ids, rows, swapped)
    )
    day = next_weekday(world.now, rng.randrange(7))
    *hours, third = rng.sample(_HOURS, 3)
    times = []
    for number, (row, schedule) in enumerate(zip(rows, schedules, strict=True)):
        other_day = day + rng.choice((-_WEEK, _WEEK))
        moments = [at(date, hour) for date in (day, other_day) for hour in hours] + [at(day, third)]
        times += [
            DoctorTime(number, moment, schedule, start, _KINDS[letter])
            for moment, (start, letter) in enumerate(zip(moments, row.plan, strict=True))
            if letter in _KINDS
        ]
    return schedules, times


def every_detail_matters(
    schedules: Sequence[ProviderSchedule], schedule: str, start: str, others: Collection[tuple[str, str]]
) -> bool:
    """Return whether every detail of a time matters: given name, family name, order of the names, day and hour.

    A detail matters if another time differs only in this detail. The order of the names must matter only if another
    doctor has the same names in the opposite order.

    Args:
        schedules: The schedules of all doctors.
        schedule: Id of the schedule that contains the time.
        start: Start of the time (instant).
        others: Schedule ids and starts of the other times.
    """
    doctors = {provider_schedule.id: provider_schedule.provider for provider_schedule in schedules}
    me = doctors[schedule]
    then = [doctors[other] for other, when in others if when == start and other != schedule]
    mine = [when for other, when in others if other == schedule and when != start]
    mirrors = [doctor for doctor in doctors.values() if (doctor.given, doctor.family) == (me.family, me.given)]
    return (
        any(person.family == me.family for person in then)
        and any(person.given == me.given for person in then)
        and all(mirror in then for mirror in mirrors)
        and any(when[:10] == start[:10] for when in mine)
        and any(when[10:] == start[10:] for when in mine)
    )


def weekday_of(start: str) -> int:
    """Return the weekday of an instant (Monday is 0)."""
    return parse_instant(start).weekday()


def without_contact(resources: Iterable[Resource]) -> list[Resource]:
    """Remove the contact details from resources, so that the server loads the resources faster."""
    return [
        {name: value for name, value in resource.items() if name not in _CONTACT} if "telecom" in resource else resource
        for resource in resources
    ]


def _doctors(rng: random.Random, world: World, ids: IdAllocator, rows: Sequence[Row], swapped: bool) -> list[Person]:
    if swapped:
        seed, names = _names_either_way(rng, world)
        givens, families = names, names
    else:
        shape = max(row.given for row in rows) + 1, max(row.family for row in rows) + 1
        seed, (givens, families) = new_names(rng, world, shape, "Practitioner")
        rng.shuffle(families)
    called = partial(person_called, gender=seed.gender, birth_date=seed.birth_date)
    return [called(rng, ids.new("Practitioner"), given=givens[row.given], family=families[row.family]) for row in rows]


def _names_either_way(rng: random.Random, world: World) -> tuple[Person, list[str]]:
    """Draw a person and three names; nobody in the world is called by two of the names."""
    for _ in range(_TRIES):
        names = rng.sample(_EITHER_WAY, 3)
        if all(is_new_name(world, "Practitioner", *pair) for pair in permutations(names, 2)):
            return new_person(rng, world, "", resource_type="Practitioner"), names
    raise TaskError(f"the world {world.manifest.name} has no unused doctors' names after {_TRIES} attempts")
