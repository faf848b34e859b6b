"""Scenes with patients, doctors, appointments, slots and waitlist entries.

A waitlist entry is an appointment that has no time, only the period that the patient requests.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial

from fhir_gym.fhir import World
from fhir_gym.tasks import Check, Params, equal
from fhir_gym.tasks.authoring import (
    NAME,
    IdAllocator,
    Person,
    at,
    confusable,
    draw_lookalikes,
    new_person,
    parse_instant,
    patient_resource,
    practitioner_resource,
    reference,
)
from fhir_gym.tasks.packs.appointment.bookings import Booking, booking_resource, draw_reason
from fhir_gym.tasks.packs.appointment.clinic import SlotRecord, slot_resource
from fhir_gym.tasks.packs.appointment.slot_scenes import Place, ProviderSchedule, clinic_resources
from fhir_gym.types import Json, Resource, objects_in

WAITLIST = "A waitlist entry is an Appointment with status waitlist. "
_DATE = len("2000-01-01")


class WaitlistEntry(Params):
    """One waitlist entry.

    Attributes:
        id: Id of the appointment.
        patient: Id of the patient.
        practitioner: Id of the practitioner.
        start: Start of the requested period, a date or an instant.
        end: End of the requested period.
        description: Reason for the appointment.
        status: Status of the appointment.
    """

    id: str
    patient: str
    practitioner: str
    start: str
    end: str
    description: str
    status: str = "waitlist"

    @property
    def target(self) -> str:
        """Reference to the Appointment."""
        return f"Appointment/{self.id}"


def new_waitlist_entry(
    rng: random.Random,
    ids: IdAllocator,
    patient: Person,
    doctor: Person,
    start: str,
    end: str,
    status: str = "waitlist",
) -> WaitlistEntry:
    """Draw a waitlist entry; `start` and `end` are dates or instants."""
    return WaitlistEntry(
        id=ids.new("Appointment"),
        patient=patient.id,
        practitioner=doctor.id,
        start=start,
        end=end,
        description=draw_reason(rng),
        status=status,
    )


def waiting_participants(patient_id: str, practitioner_id: str) -> list[Resource]:
    """Build the participants of an entry: the patient has accepted, but the practitioner has not answered yet."""
    return [
        {"actor": reference("Patient", patient_id), "status": "accepted"},
        {"actor": reference("Practitioner", practitioner_id), "status": "needs-action"},
    ]


def waitlist_resource(waiting: WaitlistEntry) -> Resource:
    """Build the Appointment of a waitlist entry."""
    return {
        "resourceType": "Appointment",
        "id": waiting.id,
        "status": waiting.status,
        "description": waiting.description,
        "participant": waiting_participants(waiting.patient, waiting.practitioner),
        "requestedPeriod": [{"start": waiting.start, "end": waiting.end}],
    }


def day_of(value: Json) -> str | None:
    """Return the UTC day of a date or of a dateTime with a time zone; return None for any other value."""
    if not isinstance(value, str):
        return None
    try:
        if len(value) == _DATE:
            return date.fromisoformat(value).isoformat()
        return parse_instant(value).astimezone(UTC).date().isoformat()
    except (ValueError, OverflowError):
        return None


def window_checks(periods: Json, first: str, last: Collection[str]) -> Iterator[Check]:
    """Yield checks of the start and end of the requested period.

    Args:
        periods: The value of ``Appointment.requestedPeriod``.
        first: The expected first day.
        last: The accepted last days.
    """
    windows = objects_in(periods)
    yield equal("start of the requested period", [day_of(window.get("start")) for window in windows], [first])
    ends = [day_of(window.get("end")) for window in windows]
    right = len(ends) == 1 and ends[0] in last
    yield Check(name="end of the requested period", passed=right, expected=sorted(last), actual=ends)


FIRST_HALF_HOUR, HALF_HOURS = 16, 18
"""Number of half hours from midnight to the start of a working day, and number of half hours in a working day."""

_DOCTORS, _CONFUSABLE = 6, 4


class AppointmentScene(Params):
    """The records of a practice that a task adds.

    Attributes:
        now: Current time (instant).
        people: The patients.
        schedules: Schedules of doctors.
        bookings: Appointments that have a time, with their slots.
        waiting: Waitlist entries, including cancelled entries.
        slots: Slots other than those of `bookings`.
        places: Places where the doctors work.
        others: Doctors without a schedule.
    """

    now: str
    people: tuple[Person, ...]
    schedules: tuple[ProviderSchedule, ...]
    bookings: tuple[Booking, ...]
    waiting: tuple[WaitlistEntry, ...] = ()
    slots: tuple[SlotRecord, ...] = ()
    places: tuple[Place, ...] = ()
    others: tuple[Person, ...] = ()

    def patient(self, id: str) -> Person:
        """Return the patient with an id."""
        return next(person for person in self.people if person.id == id)

    def schedule_of(self, practitioner: str) -> ProviderSchedule:
        """Return the schedule of the doctor with an id."""
        return next(schedule for schedule in self.schedules if schedule.provider.id == practitioner)

    def resources(self, world: World) -> list[Resource]:
        """Return all resources of the scene."""
        return [
            *map(patient_resource, self.people),
            *clinic_resources(self.places, self.schedules, world),
            *map(practitioner_resource, self.others),
            *(slot_resource(booking.slot) for booking in self.bookings if booking.slot.id),
            *map(slot_resource, self.slots),
            *map(booking_resource, self.bookings),
            *map(waitlist_resource, self.waiting),
        ]


class Agenda:
    """The times at which doctors and patients are occupied, so that nobody has two appointments at the same time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._occupied: dict[str, set[datetime]] = {}

    def draw(
        self, schedules: Iterable[ProviderSchedule], starts: Sequence[datetime], patient: str = ""
    ) -> tuple[ProviderSchedule, datetime] | None:
        """Draw a time at which neither the doctor nor the patient is occupied; from then on, both are.

        Args:
            schedules: The schedules to choose from.
            starts: The starts to choose from.
            patient: Id of the patient; empty if the time is for no patient.
        """
        times: list[tuple[ProviderSchedule, datetime]] = []
        for schedule in schedules:
            occupied = self._occupied_by(schedule.id) | self._occupied_by(patient)
            times += [(schedule, start) for start in starts if start not in occupied]
        if not times:
            return None
        schedule, start = self._rng.choice(times)
        for who in filter(None, (schedule.id, patient)):
            self._occupied_by(who).add(start)
        return schedule, start

    def _occupied_by(self, who: str) -> set[datetime]:
        return self._occupied.setdefault(who, set())


def new_schedules(rng: random.Random, world: World, ids: IdAllocator, count: int) -> tuple[ProviderSchedule, ...]:
    """Draw schedules of new doctors."""
    doctors = (new_person(rng, world, ids.new("Practitioner"), resource_type="Practitioner") for _ in range(count))
    return tuple(ProviderSchedule(id=ids.new("Schedule"), provider=doctor) for doctor in doctors)


def new_doctors(
    rng: random.Random, world: World, ids: IdAllocator, busy: int
) -> tuple[tuple[ProviderSchedule, ...], tuple[Person, ...]]:
    """Draw doctors who share given names and family names.

    Returns the schedules of some doctors, and the other doctors, who have no schedule. A doctor who has a schedule can
    be identified only by given name and family name together.

    Args:
        rng: Random generator.
        world: The world, in which nobody has the new names.
        ids: Allocates the ids.
        busy: Number of doctors who have a schedule, at most four.
    """
    new_id = partial(ids.new, "Practitioner")
    doctors = draw_lookalikes(rng, world, new_id, _DOCTORS, by=NAME, fewest=_CONFUSABLE, resource_type="Practitioner")
    namesakes = rng.sample(confusable(doctors, NAME), busy)
    others = tuple(doctor for doctor in doctors if doctor not in namesakes)
    return tuple(ProviderSchedule(id=ids.new("Schedule"), provider=doctor) for doctor in namesakes), others


def half_hour(now: datetime, number: int) -> datetime:
    """Return the start of a half hour of working time; 0 is today's first half hour, 18 is tomorrow's."""
    days, half = divmod(number, HALF_HOURS)
    return at(now.date() + timedelta(days=days), 0) + timedelta(minutes=30 * (FIRST_HALF_HOUR + half))
