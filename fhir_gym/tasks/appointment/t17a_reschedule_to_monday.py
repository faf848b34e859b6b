"""Task 17a: move an appointment to next Monday."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get, Put
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.bookings import (
    NEW_REMARKS,
    Booking,
    answered,
    booked,
    find_practitioner,
    new_booking,
    new_opening,
    place_checks,
)
from fhir_gym.tasks.appointment.clinic import Opening, moved_opening, slot, slot_checks
from fhir_gym.tasks.appointment.openings import DOCTOR, Diary, clinic_resources
from fhir_gym.tasks.bundles import entries, reference
from fhir_gym.tasks.checks import Check
from fhir_gym.tasks.clock import at, instant, next_weekday
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.outcomes import updated
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, new_person, other_given, patient, relative_with, swapped
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = ["TASKS", "RescheduleToMonday", "RescheduleToMondayParams"]

_MINUTES = 60
_HOURS = range(8, 17)
_MONDAY = 0


class RescheduleToMondayParams(Params):
    """Values of task 17a.

    Attributes:
        now: The present, an instant.
        patient: Whose appointment.
        other: Another patient.
        diaries: The schedules of the doctor and of a practitioner of swapped name.
        booking: The appointment to move.
        others: Other appointments.
        target: The slot to move it to.
        decoys: Other slots.
    """

    now: str
    patient: Person
    other: Person
    diaries: tuple[Diary, Diary]
    booking: Booking
    others: tuple[Booking, ...]
    target: Opening
    decoys: tuple[Opening, ...]

    @property
    def doctor(self) -> Person:
        """With whom the appointment is."""
        return self.diaries[0].provider


class RescheduleToMonday(Task[RescheduleToMondayParams]):
    """Move a patient's appointment with a doctor to an hour of next Monday.

    Starting state: the patient's booked appointment with the doctor, its busy slot, the doctor's free slot at that
        hour.
    Decoys: the patient's booked appointment with a practitioner of swapped name, who is free at that hour too; the
        patient's cancelled and past appointments with the doctor; one of another patient; slots of the doctor at that
        hour that are blocked, on the days before and after, a week later and a week earlier, which is today where
        today is a Monday; free and busy ones at other hours of the day.
    Checks: the appointment in the new slot with its times and else unchanged; the old slot free, the new one busy,
        both else unchanged; the answer names the appointment and the new slot.
    Light: the appointment and both slots were updated.
    Differs from FHIR-AgentEval: the hour is told; "next Monday" is defined; the appointment that moves must be the one
        that was booked with the doctor, and keep everything else; no other may change (light passed there for nearly
        everything).
    """

    key = "17a"
    title = "Reschedule to next Monday"
    category = "Scheduling & Appointments"
    difficulty = 3
    kind = "action"
    required_tools = (
        ("search", "search", "read", "update", "update", "update"),
        ("search", "search", "update", "update", "update"),
        ("search", "read", "search", "update", "update", "update"),
        ("search", "read", "read", "update", "update", "update"),
        ("search", "search", "read", "update", "read", "update", "update"),
    )
    required_resources = ("Appointment", "Slot")
    prohibited_tools = ("create", "delete")
    prompts = (
        "Move the appointment of {patient} (Patient/{id}) with Dr. {doctor} to next Monday at {hour}:00.",
        "Patient/{id}, {patient}, has an appointment with Dr. {doctor} and cannot come then. Please reschedule it to "
        "{hour}:00 next Monday.",
        "Reschedule to next Monday, {hour}:00, what {patient} (Patient/{id}) has booked with Dr. {doctor}.",
    )
    ending = (
        f"{DOCTOR}The appointment is the one of the patient with that practitioner that has status booked and starts "
        'after the present instant. "Next Monday" means the first Monday strictly after today\'s date. Use the '
        "doctor's free slot that starts at that time: change the appointment so that it refers to this slot alone and "
        "has the slot's start and end; it stays booked. Set the status of this slot to busy and the status of the slot "
        "it was in before to free. Leave everything else as it is, create and delete nothing. Finish with "
        'FINISH(["<appointment id>", "<new slot id>"]).'
    )
    answer = IdsAnswer(("Appointment", "Slot"))
    gold_steps = 8
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {"Appointment": {"comment": "Moved at the patient's wish"}}

    def sample(self, rng: random.Random, world: World) -> RescheduleToMondayParams:
        """Draw people and times."""
        ids = Ids(rng, world, 40)
        person = new_person(rng, world, ids.new())
        other = relative_with(rng, person, ids.new(), given=other_given(rng, person))
        doctor = new_person(rng, world, ids.new(), resource_type="Practitioner")
        diaries = (
            Diary(id=ids.new(), provider=doctor),
            Diary(id=ids.new(), provider=swapped(rng, doctor, ids.new())),
        )
        today, monday = world.now.date(), next_weekday(world.now, _MONDAY)
        hour, free_hour, busy_hour = rng.sample(_HOURS, 3)
        target = new_opening(ids, diaries[0], at(monday, hour), _MINUTES)
        to_come = [n for n in range(1, 14) if (today + timedelta(days=n)).weekday() != _MONDAY]
        days = rng.sample(to_come, 4)

        def booking(who: Person, diary: Diary, days: int, status: str = "booked") -> Booking:
            start = at(today + timedelta(days=days), rng.choice(_HOURS))
            return new_booking(rng, ids, who, diary, start, _MINUTES, status)

        return RescheduleToMondayParams(
            now=instant(world.now),
            patient=person,
            other=other,
            diaries=diaries,
            booking=booking(person, diaries[0], days[0]),
            others=(
                booking(person, diaries[1], days[1]),
                booking(person, diaries[0], days[2], "cancelled"),
                booking(person, diaries[0], -rng.randrange(2, 60)),
                booking(other, diaries[0], days[3]),
            ),
            target=target,
            decoys=(
                moved_opening(target, ids.new(), schedule=diaries[1].id),
                moved_opening(target, ids.new(), status="busy-unavailable"),
                moved_opening(target, ids.new(), start=at(monday, free_hour)),
                moved_opening(target, ids.new(), start=at(monday, busy_hour), status="busy"),
                *(moved_opening(target, ids.new(), start=at(monday + timedelta(days=n), hour)) for n in (-7, -1, 1, 7)),
            ),
        )

    def setup(self, p: RescheduleToMondayParams, world: World) -> list[Resource]:
        """People, schedules, slots, appointments."""
        bookings = (p.booking, *p.others)
        return [
            patient(p.patient),
            patient(p.other),
            *clinic_resources((), p.diaries, world),
            *map(slot, (p.target, *p.decoys, *(one.opening for one in bookings))),
            *map(booked, bookings),
        ]

    def words(self, p: RescheduleToMondayParams, world: World) -> dict[str, str]:
        """Names, the patient's id, and the hour."""
        return {
            "patient": p.patient.name,
            "id": p.patient.id,
            "doctor": p.doctor.name,
            "hour": p.target.start[11:13],
        }

    def gold(self, p: RescheduleToMondayParams, fhir: Fhir) -> Gold:
        """Find doctor, appointment and slots; move; take the new slot, free the old one."""
        doctor_id = yield from find_practitioner(p.doctor)
        with_doctor = {"patient": p.patient.id, "practitioner": doctor_id}
        query = {**with_doctor, "status": "booked", "date": f"gt{p.now}"}
        found = next(entries((yield Get("/Appointment", query))))
        query = {"schedule.actor": f"Practitioner/{doctor_id}", "start": p.target.start, "status": "free"}
        free = next(entries((yield Get("/Slot", query))))
        left = yield Get(f"/{found['slot'][0]['reference']}")
        yield Put(f"/Slot/{free['id']}", {**free, "status": "busy"})
        yield Put(f"/Appointment/{found['id']}", _moved(found, free))
        yield Put(f"/Slot/{left['id']}", {**left, "status": "free"})
        yield Finish([found["id"], free["id"]])

    def near_misses(self, p: RescheduleToMondayParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Another slot, or another appointment, moved consistently; a new appointment."""
        for opening in p.decoys:
            yield f"moves it to Slot/{opening.id}", _moving(p.booking, slot(opening))
        for one in p.others:
            yield f"moves the {one.status} one at {one.opening.start}", _moving(one, slot(p.target))
        (move, take, leave, _) = _moving(p.booking, slot(p.target))
        made = {**_moved(booked(p.booking), slot(p.target)), "id": "mine"}
        off = Put(f"/Appointment/{p.booking.id}", {**booked(p.booking), "status": "cancelled"})
        new = [Put("/Appointment/mine", made), off, take, leave]
        yield "cancels it and makes a new one", [*new, Finish(["mine", p.target.id])]
        yield "answers the old slot", [move, take, leave, Finish([p.booking.id, p.booking.opening.id])]

    def touches(self, p: RescheduleToMondayParams) -> tuple[Touch, ...]:
        """The appointment and both slots."""
        slots = (Touch("updated", "Slot", one.id) for one in (p.booking.opening, p.target))
        return (Touch("updated", "Appointment", p.booking.id), *slots)

    def rests_on(self, p: RescheduleToMondayParams) -> tuple[str, ...]:
        """The appointment and both slots."""
        return (f"Appointment/{p.booking.id}", f"Slot/{p.booking.opening.id}", f"Slot/{p.target.id}")

    def checks(self, p: RescheduleToMondayParams, end: EndState) -> Iterator[Check]:
        """The appointment, the slots, the answer."""
        changing = ("slot", "start", "end")
        yield from updated(
            end, "Appointment", p.booking.id, changing=changing, may_add=NEW_REMARKS, called="appointment"
        )
        yield from place_checks(end, end.after_update("Appointment", p.booking.id), p.target)
        yield from slot_checks(end, p.booking.opening, "free", called="old slot")
        yield from slot_checks(end, p.target, "busy", called="new slot")
        yield answered(end, Appointment=p.booking.id, Slot=p.target.id)


def _moved(appointment: Resource, free: Resource) -> Resource:
    """An appointment in another slot."""
    return {
        **appointment,
        "slot": [reference("Slot", free["id"])],
        "start": free["start"],
        "end": free["end"],
    }


def _moving(booking: Booking, free: Resource) -> list[Action]:
    """All that moves an appointment, and the answer."""
    left = booking.opening
    return [
        Put(f"/Appointment/{booking.id}", _moved(booked(booking), free)),
        Put(f"/Slot/{free['id']}", {**free, "status": "busy"}),
        Put(f"/Slot/{left.id}", {**slot(left), "status": "free"}),
        Finish([booking.id, free["id"]]),
    ]


TASKS = (RescheduleToMonday,)
