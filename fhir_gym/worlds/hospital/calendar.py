"""Generate the Slots of the doctors' schedules and their Appointments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from fhir_gym.types import Resource
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.clinic import Clinician
from fhir_gym.worlds.hospital.people import Demographics
from fhir_gym.worlds.hospital.seeded_random import IdSequence, SeededRandom
from fhir_gym.worlds.hospital.times import NOW, at_hour, iso, minutes

_PAST_WEEKS, _COMING_WEEKS = 2, 5
_HOURS = (8, 9, 10, 11, 13, 14, 15, 16)
_LENGTH = 30  # minutes
_BUSY_PAST, _BUSY_COMING = 75, 40  # percentage of busy slots
_WAITLISTED = 8


def calendar_resources(
    seed: int, ids: IdSequence, staff: Sequence[Clinician], people: Sequence[Demographics]
) -> Iterator[Resource]:
    """Yield all Slots, then all Appointments.

    No patient has two appointments at the same time. Every busy slot has an appointment or a comment.
    """
    slots: list[Resource] = []
    appointments: list[Resource] = []
    taken: set[tuple[str, str]] = set()
    for doctor in staff:
        rng = SeededRandom(seed, "calendar", doctor.id)
        patients = [person for person in people if doctor.specialty.sees(person)]
        for start in _starts(rng):
            slot = _slot(ids.new("SLOT"), doctor, start)
            slots.append(slot)
            if not patients or not rng.percent(_BUSY_PAST if start < NOW else _BUSY_COMING):
                if patients and rng.percent(8):
                    appointments.append(_cancelled(rng, ids, doctor, rng.one(patients), slot, start))
                continue
            slot["status"] = "busy"
            person = rng.one(patients)
            if rng.percent(6) or (person.mrn, slot["start"]) in taken:
                slot["status"] = "busy-unavailable"
                slot["comment"] = "Department meeting"
                continue
            taken.add((person.mrn, slot["start"]))
            appointments.append(_booked(rng, ids, doctor, person, slot, start))
    yield from slots
    yield from appointments
    yield from _waitlist(SeededRandom(seed, "waitlist"), ids, staff, people)


def _starts(rng: SeededRandom) -> Iterator[datetime]:
    """Yield the start times of a doctor's slots: on three weekdays, for three or four hours, the same every week."""
    weekdays = sorted(rng.some(range(5), 3))
    hours = sorted(rng.some(_HOURS, rng.between(3, 4)))
    monday = NOW.date() - timedelta(days=NOW.weekday())
    for week in range(-_PAST_WEEKS, _COMING_WEEKS):
        for weekday in weekdays:
            for hour in hours:
                yield at_hour(monday + timedelta(weeks=week, days=weekday), hour)


def _slot(ident: str, doctor: Clinician, start: datetime) -> Resource:
    return {
        "resourceType": "Slot",
        "id": ident,
        "specialty": [r4.coded(r4.SNOMED, doctor.specialty.code, doctor.specialty.display)],
        "schedule": r4.ref("Schedule", doctor.schedule),
        "status": "free",
        "start": iso(start),
        "end": iso(start + minutes(_LENGTH)),
    }


def _appointment(
    rng: SeededRandom,
    ident: str,
    doctor: Clinician,
    person: Demographics,
    status: str,
    created: datetime,
    attends: str = "accepted",
) -> Resource:
    kind = rng.one(
        (("ROUTINE", "Routine appointment"), ("CHECKUP", "A routine check-up"), ("FOLLOWUP", "A follow up visit"))
    )
    return {
        "resourceType": "Appointment",
        "id": ident,
        "status": status,
        "specialty": [r4.coded(r4.SNOMED, doctor.specialty.code, doctor.specialty.display)],
        "appointmentType": r4.hl7_concept("v2-0276", *kind),
        "created": iso(created),
        "participant": [
            {"actor": r4.ref("Patient", person.mrn, person.name), "status": attends},
            {"actor": r4.ref("Practitioner", doctor.id, doctor.name), "status": "accepted"},
            {"actor": r4.ref("Location", doctor.location), "status": "accepted"},
        ],
    }


def _created(rng: SeededRandom, start: datetime, person: Demographics) -> datetime:
    """Draw a creation date up to six weeks before the appointment, not in the future and not before birth."""
    day = min(start, NOW).date() - timedelta(days=rng.between(3, 40))
    return min(at_hour(max(day, person.born), rng.between(8, 16), rng.between(0, 59)), NOW)


def _at(slot: Resource) -> Resource:
    return {
        "start": slot["start"],
        "end": slot["end"],
        "minutesDuration": _LENGTH,
        "slot": [r4.ref("Slot", slot["id"])],
    }


def _booked(
    rng: SeededRandom, ids: IdSequence, doctor: Clinician, person: Demographics, slot: Resource, start: datetime
) -> Resource:
    past = rng.weighted([("fulfilled", 90), ("noshow", 10)])
    coming = rng.weighted([("booked", 92), ("pending", 8)])
    status = past if start + minutes(_LENGTH) < NOW else coming
    attends = "needs-action" if status == "pending" else "accepted"
    appointment = _appointment(rng, ids.new("APT"), doctor, person, status, _created(rng, start, person), attends)
    return appointment | _at(slot)


def _cancelled(
    rng: SeededRandom, ids: IdSequence, doctor: Clinician, person: Demographics, slot: Resource, start: datetime
) -> Resource:
    """Build a cancelled appointment, which leaves its slot free."""
    created = _created(rng, start, person)
    reason = r4.hl7_concept("appointment-cancellation-reason", "pat", "Patient")
    appointment = _appointment(rng, ids.new("APT"), doctor, person, "cancelled", created)
    return appointment | {"cancelationReason": reason} | _at(slot)


def _waitlist(
    rng: SeededRandom, ids: IdSequence, staff: Sequence[Clinician], people: Sequence[Demographics]
) -> Iterator[Resource]:
    """Yield waitlisted appointments with a requested period."""
    for person in rng.some(people, _WAITLISTED):
        doctor = rng.one([doctor for doctor in staff if doctor.specialty.sees(person)])
        first = at_hour(NOW.date() + timedelta(days=rng.between(1, 10)), 8)
        created = _created(rng, NOW, person)
        yield _appointment(rng, ids.new("APT"), doctor, person, "waitlist", created) | {
            "requestedPeriod": [{"start": iso(first), "end": iso(first + timedelta(days=rng.between(3, 14)))}]
        }
