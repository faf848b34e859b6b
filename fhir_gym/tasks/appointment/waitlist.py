"""Waitlist entries: appointments without a time that say when the patient would like to come."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from datetime import UTC, date

from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.appointment.bookings import Booking, booked
from fhir_gym.tasks.appointment.clinic import slot
from fhir_gym.tasks.appointment.openings import Diary, clinic_resources
from fhir_gym.tasks.bundles import reference
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.clock import parse_instant
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, new_person, other_given, patient, relative_with, swapped
from fhir_gym.types import Json, Resource

__all__ = [
    "WAITING",
    "Waiting",
    "WaitlistParams",
    "day_of",
    "waiting_participants",
    "waitlist_cast",
    "waitlist_setup",
    "waitlist_words",
    "waitlisted",
    "window_checks",
]

WAITING = "An entry of the waitlist is an Appointment with status waitlist. "
_DATE = len("2000-01-01")


class Waiting(Params):
    """One entry of the waitlist.

    Attributes:
        id: Id of the appointment.
        patient: Id of the patient.
        practitioner: Id of the practitioner.
        start: Start of the requested period, a date or an instant.
        end: Its end.
        description: What the appointment is for.
        status: Status of the appointment.
    """

    id: str
    patient: str
    practitioner: str
    start: str
    end: str
    description: str
    status: str = "waitlist"


def waiting_participants(patient_id: str, practitioner_id: str) -> list[Resource]:
    """A patient who wants to come and a practitioner who was not asked yet."""
    return [
        {"actor": reference("Patient", patient_id), "status": "accepted"},
        {"actor": reference("Practitioner", practitioner_id), "status": "needs-action"},
    ]


def waitlisted(waiting: Waiting) -> Resource:
    """The Appointment."""
    return {
        "resourceType": "Appointment",
        "id": waiting.id,
        "status": waiting.status,
        "description": waiting.description,
        "participant": waiting_participants(waiting.patient, waiting.practitioner),
        "requestedPeriod": [{"start": waiting.start, "end": waiting.end}],
    }


class WaitlistParams(Params):
    """Values that tasks 16a, 16b and 16c share.

    Attributes:
        patient: Who waits.
        other: Another patient.
        diaries: The schedules of the doctor, of a practitioner of swapped name, and of one of the same family name.
        waiting: Entries of the waitlist that are none of the task's business, and such as were.
        bookings: Appointments that have a time.
    """

    patient: Person
    other: Person
    diaries: tuple[Diary, Diary, Diary]
    waiting: tuple[Waiting, ...]
    bookings: tuple[Booking, ...]

    @property
    def doctor(self) -> Person:
        """For whom the patient waits."""
        return self.diaries[0].provider


def waitlist_cast(rng: random.Random, world: World, ids: Ids) -> tuple[Person, Person, tuple[Diary, Diary, Diary]]:
    """Two patients of the same family name, a practitioner and two who are easily mistaken for them."""
    person = new_person(rng, world, ids.new())
    other = relative_with(rng, person, ids.new(), given=other_given(rng, person))
    doctor = new_person(rng, world, ids.new(), resource_type="Practitioner")
    mirrored = swapped(rng, doctor, ids.new())
    kin = relative_with(rng, doctor, ids.new(), given=other_given(rng, doctor))
    first, second, third = (Diary(id=ids.new(), provider=one) for one in (doctor, mirrored, kin))
    return person, other, (first, second, third)


def waitlist_setup(p: WaitlistParams, world: World) -> list[Resource]:
    """People, schedules, and what is on file of them."""
    return [
        patient(p.patient),
        patient(p.other),
        *clinic_resources((), p.diaries, world),
        *map(waitlisted, p.waiting),
        *(slot(one.opening) for one in p.bookings),
        *map(booked, p.bookings),
    ]


def waitlist_words(p: WaitlistParams) -> dict[str, str]:
    """Names and the patient's id."""
    return {"patient": p.patient.name, "id": p.patient.id, "doctor": p.doctor.name}


def day_of(value: Json) -> str | None:
    """The day (UTC) of a date or of a moment with a zone; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        if len(value) == _DATE:
            return date.fromisoformat(value).isoformat()
        return parse_instant(value).astimezone(UTC).date().isoformat()
    except (ValueError, OverflowError):
        return None


def window_checks(periods: Json, first: str, last: Collection[str]) -> Iterator[Check]:
    """Checks that one period is asked for, from a day to one of some days.

    Args:
        periods: The value of ``Appointment.requestedPeriod``.
        first: The day on which it must start.
        last: The days on which it may end.
    """
    windows = [one for one in periods if isinstance(one, dict)] if isinstance(periods, list) else []
    yield equal("start of the requested period", [day_of(one.get("start")) for one in windows], [first])
    ends = [day_of(one.get("end")) for one in windows]
    right = len(ends) == 1 and ends[0] in last
    yield Check(name="end of the requested period", passed=right, expected=sorted(last), actual=ends)
