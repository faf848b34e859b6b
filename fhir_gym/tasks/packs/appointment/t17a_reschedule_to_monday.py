"""Task 17a: move an appointment to a certain hour of next Monday."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Gold
from fhir_gym.tasks.authoring import (
    NAME,
    IdAllocator,
    Person,
    at,
    draw_lookalikes,
    entries,
    find_practitioner,
    instant,
    next_weekday,
    parse_instant,
    update_checks,
)
from fhir_gym.tasks.packs.appointment.appointment_scene import Agenda, AppointmentScene, new_doctors
from fhir_gym.tasks.packs.appointment.appointment_task import MoveParams, RescheduleTask, in_slot, put_status
from fhir_gym.tasks.packs.appointment.bookings import (
    NEW_REMARKS,
    Booking,
    answered,
    booking_resource,
    new_booking,
    new_slot,
    place_checks,
    unique_match,
)
from fhir_gym.tasks.packs.appointment.clinic import SlotRecord, slot_resource
from fhir_gym.tasks.packs.appointment.slot_scenes import DOCTOR, ProviderSchedule
from fhir_gym.types import Json, Resource

_MINUTES = 60
_HOURS = range(8, 17)
_MONDAY = 0
_PATIENTS, _DOCTORS = 3, 3
_COMMON_HOURS = 3
_OFTEN = 0.75
_TAKEN = ("busy", "busy-unavailable", "busy-tentative")


class RescheduleToMonday(RescheduleTask[MoveParams, Booking]):
    """Move a patient's appointment with a doctor to a certain hour of next Monday.

    Starting state: three patients, and three doctors who share given names and family names. Most pairs of a patient
        and a doctor have one future appointment with status booked. The patient's doctor has one free slot at the
        requested hour.
    Decoys: each such pair also has past appointments, and appointments that are not booked. The doctors have free and
        taken slots at this and other hours of that Monday, on the days before and after, a week later, and a week
        earlier (sometimes today).
    Checks: the appointment refers to the new slot, has the slot's start and end, and is otherwise unchanged. The old
        slot is free and the new slot is busy, both otherwise unchanged. The answer names the appointment and the new
        slot.
    Light: the appointment and both slots were updated.
    Differs from FHIR-AgentEval: the prompt names the hour. "Next Monday" is defined. The moved appointment must be the
        booked appointment with the doctor, and the rest of the appointment must stay unchanged. No other appointment
        may change. The original's light check passed almost always.
    """

    key = "17a"
    title = "Reschedule to next Monday"
    required_tools = (
        ("search", "search", "read", "update", "update", "update"),
        ("search", "search", "update", "update", "update"),
        ("search", "read", "search", "update", "update", "update"),
        ("search", "read", "read", "update", "update", "update"),
        ("search", "search", "read", "update", "read", "update", "update"),
    )
    prompts = (
        "Please move the appointment of {patient} (Patient/{id}) with Dr. {doctor} to next Monday at {hour}:00.",
        "{patient} (Patient/{id}) cannot come to the appointment with Dr. {doctor}. Please reschedule it to next "
        "Monday at {hour}:00.",
        "{patient} (Patient/{id}) has booked a visit with Dr. {doctor}. Please reschedule it for next Monday, "
        "{hour}:00.",
    )
    brief = (
        "Please move the upcoming booked appointment of {patient} (Patient/{id}) with Dr. {doctor} to the doctor's "
        "free slot at {hour}:00 next Monday (the first after today), and update both slots. Finish with "
        'FINISH(["<appointment id>", "<new slot id>"]).'
    )
    answer_instructions = (
        f"{DOCTOR}The appointment is the patient's appointment with this practitioner that has status booked and "
        'starts after the present. "Next Monday" is the first Monday strictly after today. Use the doctor\'s free slot '
        "that starts at that time. Change the appointment so that it refers to this slot only and has the slot's start "
        "and end; it stays booked. Set the status of this slot to busy and the status of the appointment's previous "
        "slot to free. Leave everything else as it is; create and delete nothing. Finish with "
        'FINISH(["<appointment id>", "<new slot id>"]).'
    )
    gold_steps = 8
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"comment": "Moved at the patient's wish"}
    }

    @override
    def draw_scene(self, rng: random.Random, world: World) -> AppointmentScene:
        ids = IdAllocator(rng, world)
        people = draw_lookalikes(rng, world, partial(ids.new, "Patient"), _PATIENTS, by=NAME)
        schedules, others = new_doctors(rng, world, ids, _DOCTORS)
        hours, agenda, starts = rng.sample(_HOURS, _COMMON_HOURS), Agenda(rng), _starts(world.now.date())
        slots = [
            slot
            for schedule in schedules
            for slot in _slots(rng, ids, next_weekday(world.now, _MONDAY), hours, schedule)
        ]
        for slot in slots:
            agenda.draw([each for each in schedules if each.id == slot.schedule], [parse_instant(slot.start)])
        return AppointmentScene(
            now=instant(world.now),
            people=people,
            schedules=schedules,
            bookings=tuple(
                booking
                for person in people
                for schedule in schedules
                if rng.random() < _OFTEN
                for booking in _bookings(rng, ids, starts, person, schedule, agenda)
            ),
            others=others,
            slots=tuple(slots),
        )

    @override
    def candidates(self, scene: AppointmentScene) -> dict[str, list[Booking]]:
        free = [schedule for schedule in scene.schedules if _free(scene, schedule)]
        bookings = (
            _only_booking(scene, person.id, schedule.provider.id) for person in scene.people for schedule in free
        )
        return {"": [booking for booking in bookings if booking is not None]}

    @override
    def params_for(self, rng: random.Random, world: World, scene: AppointmentScene, chosen: Booking) -> MoveParams:
        slot = rng.choice(_free(scene, scene.schedule_of(chosen.practitioner)))
        return MoveParams(scene=scene, booking=chosen, slot=slot)

    @override
    def prompt_values(self, p: MoveParams, world: World) -> dict[str, str]:
        return {"patient": p.patient.name, "id": p.patient.id, "doctor": p.doctor.name, "hour": p.slot.start[11:13]}

    @override
    def gold(self, p: MoveParams) -> Gold:
        doctor_id = yield from find_practitioner(p.doctor)
        with_doctor = {"patient": p.patient.id, "practitioner": doctor_id}
        query = {**with_doctor, "status": "booked", "date": f"gt{p.scene.now}"}
        appointment = next(entries((yield Get("/Appointment", query))))
        query = {"schedule.actor": f"Practitioner/{doctor_id}", "start": p.slot.start, "status": "free"}
        free = next(entries((yield Get("/Slot", query))))
        left = yield Get(f"/{appointment['slot'][0]['reference']}")
        yield put_status(free, "busy")
        yield Put(f"/Appointment/{appointment['id']}", in_slot(appointment, free))
        yield put_status(left, "free")
        yield Finish([appointment["id"], free["id"]])

    @override
    def near_misses(self, p: MoveParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        others = [slot for slot in p.scene.slots if slot.id != p.slot.id]
        for slot in others:
            if slot.schedule == p.slot.schedule or slot.start == p.slot.start:
                yield f"moves it to Slot/{slot.id}", _moving(p.booking, slot_resource(slot))
        for booking in p.scene.bookings:
            if booking.id != p.booking.id and (booking.patient == p.patient.id or booking.practitioner == p.doctor.id):
                yield f"moves the {booking.status} one at {booking.start}", _moving(booking, slot_resource(p.slot))
        (move, take, leave, _) = _moving(p.booking, slot_resource(p.slot))
        new_appointment = {**in_slot(booking_resource(p.booking), slot_resource(p.slot)), "id": "mine"}
        new = [
            Put("/Appointment/mine", new_appointment),
            put_status(booking_resource(p.booking), "cancelled"),
            take,
            leave,
        ]
        yield "cancels it and makes a new one", [*new, Finish(["mine", p.slot.id])]
        yield "answers the old slot", [move, take, leave, Finish([p.booking.id, p.booking.slot.id])]

    @override
    def checks(self, p: MoveParams, end: FinishedEpisode) -> Iterator[Check]:
        changing = ("slot", "start", "end")
        yield from update_checks(
            end, "Appointment", p.booking.id, changing=changing, may_add=NEW_REMARKS, called="appointment"
        )
        yield from place_checks(end, end.after_update("Appointment", p.booking.id), p.slot)
        yield from self.both_slot_checks(p, end)
        yield answered(end, Appointment=p.booking.id, Slot=p.slot.id)


def _starts(today: date) -> tuple[list[datetime], list[datetime]]:
    """Return the possible starts of past appointments, and of future ones, which are never on a Monday."""
    past, future = (
        [at(today + timedelta(days=number), hour) for number in numbers for hour in _HOURS]
        for numbers in (range(-59, 0), range(1, 14))
    )
    return past, [start for start in future if start.weekday() != _MONDAY]


def _bookings(
    rng: random.Random,
    ids: IdAllocator,
    starts: tuple[list[datetime], list[datetime]],
    person: Person,
    schedule: ProviderSchedule,
    agenda: Agenda,
) -> Iterator[Booking]:
    """Draw a patient's appointments with a doctor: one future, one or two past, and one or two that are not booked."""
    past, future = starts

    def booking(starts: list[datetime], status: str = "booked", *, in_slot: bool = False) -> Iterator[Booking]:
        time = agenda.draw([schedule], starts, person.id)
        if time is not None:
            yield new_booking(rng, ids, person, *time, _MINUTES, status, in_slot=in_slot)

    yield from booking(future, in_slot=True)
    for _ in range(rng.choice((1, 1, 2))):
        yield from booking(past)
    for _ in range(rng.choice((1, 1, 2))):
        yield from booking(future, rng.choice(("cancelled", "pending", "proposed")))


def _slots(
    rng: random.Random, ids: IdAllocator, monday: date, hours: Sequence[int], schedule: ProviderSchedule
) -> Iterator[SlotRecord]:
    """Draw a doctor's free and taken slots at some hours of that Monday, and at one of these hours on other days."""

    def slot(days: int, hour: int, status: str = "free") -> SlotRecord:
        return new_slot(ids, schedule, at(monday + timedelta(days=days), hour), _MINUTES, status)

    for hour in hours:
        is_free = rng.random() < _OFTEN
        if is_free:
            yield slot(0, hour)
        if rng.random() < _OFTEN:
            yield slot(0, hour, "entered-in-error" if is_free else rng.choice(_TAKEN))
    yield from (slot(days, rng.choice(hours)) for days in (-7, -2, -1, 1, 7))


def _only_booking(scene: AppointmentScene, patient: str, doctor: str) -> Booking | None:
    """Return a patient's only booked future appointment with a doctor; None if a condition does not matter."""
    return unique_match(
        scene.bookings,
        lambda booking: booking.patient == patient,
        lambda booking: booking.practitioner == doctor,
        lambda booking: booking.status == "booked",
        lambda booking: booking.start > scene.now,
    )


def _free(scene: AppointmentScene, schedule: ProviderSchedule) -> list[SlotRecord]:
    """Return the doctor's free slots on that Monday that can be identified only by doctor, time and status together."""
    day = next_weekday(parse_instant(scene.now), _MONDAY).isoformat()
    starts = dict.fromkeys(slot.start for slot in scene.slots if slot.start.startswith(day))
    slots = (_free_at(scene, schedule, start) for start in starts)
    return [slot for slot in slots if slot is not None]


def _free_at(scene: AppointmentScene, schedule: ProviderSchedule, start: str) -> SlotRecord | None:
    return unique_match(
        scene.slots,
        lambda slot: slot.start == start,
        lambda slot: slot.schedule == schedule.id,
        lambda slot: slot.status == "free",
    )


def _moving(booking: Booking, free: Resource) -> list[Action]:
    """Return the actions that move an appointment, and the answer."""
    move = Put(f"/Appointment/{booking.id}", in_slot(booking_resource(booking), free))
    return [
        move,
        put_status(free, "busy"),
        put_status(slot_resource(booking.slot), "free"),
        Finish([booking.id, free["id"]]),
    ]


TASKS = (RescheduleToMonday,)
