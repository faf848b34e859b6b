"""Tasks 15a, 15b and 15c: cancel an appointment and free its slot."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold
from fhir_gym.tasks.authoring import (
    IdAllocator,
    Person,
    at,
    confusable,
    draw_lookalikes,
    entries,
    find_patient,
    find_practitioner,
    instant,
    next_weekday,
)
from fhir_gym.tasks.packs.appointment.appointment_scene import (
    FIRST_HALF_HOUR,
    HALF_HOURS,
    Agenda,
    AppointmentScene,
    half_hour,
    new_doctors,
    new_schedules,
)
from fhir_gym.tasks.packs.appointment.appointment_task import (
    CANCELLATION_REASON,
    RELEASED_SLOT,
    AppointmentTask,
    BookingParams,
    cancellation_checks,
    put_status,
)
from fhir_gym.tasks.packs.appointment.bookings import (
    Booking,
    answered,
    booking_resource,
    earliest_match,
    new_booking,
    unique_match,
)
from fhir_gym.tasks.packs.appointment.clinic import slot_checks, slot_resource
from fhir_gym.tasks.packs.appointment.slot_scenes import DOCTOR, ProviderSchedule
from fhir_gym.types import Json, Resource

_MINUTES = 30
_MONDAY = 0
_LAST_HALF_HOUR = 47
_WORKING = range(FIRST_HALF_HOUR, FIRST_HALF_HOUR + HALF_HOURS)
_FEWEST_MISTAKABLE = 5
_DOCTORS, _BUSY, _MONDAY_DOCTORS = 2, 3, 4
_DAYS, _MOST = 30, 7
_SOMETIMES = 0.3
_NOT_BOOKED = ("cancelled", "pending", "proposed")
_OTHERS = 4
_CANCEL_INSTRUCTIONS = (
    "Set its status to cancelled and the status of its slot to free. Leave everything else as it is; create and "
    'delete nothing. Finish with FINISH(["<appointment id>", "<slot id>"]).'
)

Schedules = tuple[ProviderSchedule, ...]


class _Cancel(AppointmentTask[BookingParams, Booking]):
    """Cancel one appointment of a patient and free its slot."""

    gold_steps = 6
    removable_elements = RELEASED_SLOT
    harmless_additions = CANCELLATION_REASON
    patients: ClassVar[tuple[int, ...]] = (9, 10)

    @abstractmethod
    def draw_bookings(
        self, rng: random.Random, ids: IdAllocator, now: datetime, people: Sequence[Person], schedules: Schedules
    ) -> Iterator[Booking]:
        """Draw several appointments for each easily confused patient, and one for each of the other patients."""

    @abstractmethod
    def asked_of(self, scene: AppointmentScene, person: Person) -> Booking | None:
        """Return the appointment that a prompt about a patient refers to; None if a condition does not matter."""

    @abstractmethod
    def find(self, p: BookingParams, patient_id: str) -> Generator[Action, Json, Resource]:
        """Find the appointment of a patient."""

    @override
    def draw_scene(self, rng: random.Random, world: World) -> AppointmentScene:
        ids = IdAllocator(rng, world)
        new_id = partial(ids.new, "Patient")
        people = draw_lookalikes(rng, world, new_id, rng.choice(self.patients), fewest=_FEWEST_MISTAKABLE)
        schedules, others = self.draw_doctors(rng, world, ids)
        bookings = tuple(self.draw_bookings(rng, ids, world.now, people, schedules))
        return AppointmentScene(
            now=instant(world.now), people=people, schedules=schedules, bookings=bookings, others=others
        )

    def draw_doctors(self, rng: random.Random, world: World, ids: IdAllocator) -> tuple[Schedules, tuple[Person, ...]]:
        """Draw the schedules of some doctors, and other doctors who have no schedule."""
        return new_schedules(rng, world, ids, _DOCTORS), ()

    @override
    def candidates(self, scene: AppointmentScene) -> dict[str, list[Booking]]:
        bookings = (self.asked_of(scene, person) for person in confusable(scene.people))
        return {"": [booking for booking in bookings if booking is not None]}

    @override
    def params_for(self, rng: random.Random, world: World, scene: AppointmentScene, chosen: Booking) -> BookingParams:
        return BookingParams(scene=scene, booking=chosen)

    @override
    def prompt_values(self, p: BookingParams, world: World) -> dict[str, str]:
        return {**p.patient.model_dump(include={"given", "family", "birth_date"}), "patient": p.patient.name}

    @override
    def gold(self, p: BookingParams) -> Gold:
        patient_id = yield from find_patient(p.patient)
        appointment = yield from self.find(p, patient_id)
        yield put_status(appointment, "cancelled")
        taken = yield Get(f"/{appointment['slot'][0]['reference']}")
        yield put_status(taken, "free")
        yield Finish([appointment["id"], taken["id"]])

    @override
    def near_misses(self, p: BookingParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        others = [booking for booking in p.scene.bookings if booking.id != p.booking.id and booking.slot.id]
        mine = [booking for booking in others if booking.patient == p.patient.id]
        for decoy in (*mine, *[booking for booking in others if booking not in mine][:_OTHERS]):
            changes = [put_status(booking_resource(decoy), "cancelled"), put_status(slot_resource(decoy.slot), "free")]
            finish = Finish([decoy.id, decoy.slot.id])
            yield f"cancels the {decoy.status} one at {decoy.slot.start}", [*changes, finish]

    @override
    def expected_changes(self, p: BookingParams) -> tuple[ExpectedChange, ...]:
        slot_id = p.booking.slot.id
        return (ExpectedChange("updated", "Appointment", p.booking.id), ExpectedChange("updated", "Slot", slot_id))

    @override
    def required_records(self, p: BookingParams) -> tuple[str, ...]:
        return (f"Appointment/{p.booking.id}", f"Slot/{p.booking.slot.id}")

    @override
    def checks(self, p: BookingParams, end: FinishedEpisode) -> Iterator[Check]:
        yield from cancellation_checks(end, p.booking.id)
        yield from slot_checks(end, p.booking.slot, "free")
        yield answered(end, Appointment=p.booking.id, Slot=p.booking.slot.id)


class _CancelNext(_Cancel):
    """Cancel the patient's earliest appointment after the current time."""

    sees_another_first: ClassVar[bool] = False

    @override
    def draw_bookings(
        self, rng: random.Random, ids: IdAllocator, now: datetime, people: Sequence[Person], schedules: Schedules
    ) -> Iterator[Booking]:
        ahead = rng.sample(range(HALF_HOURS, _DAYS * HALF_HOURS), len(people) * _MOST)
        confusable_ids = {person.id for person in confusable(people)}
        ago = rng.sample(range(1, _DAYS * HALF_HOURS), len(people))
        for person in people:
            own, other = rng.sample(schedules, 2)
            if person.id not in confusable_ids:
                yield new_booking(rng, ids, person, own, half_hour(now, min(ahead.pop(), ahead.pop())), _MINUTES)
                continue
            yield new_booking(rng, ids, person, own, half_hour(now, -ago.pop()), _MINUTES, in_slot=False)
            plan = [(own, rng.choice(_NOT_BOOKED), False)]
            plan += [(other, "booked", True)] if self.sees_another_first else []
            plan.append((own, "booked", True))
            plan += [(own, "booked", rng.random() < _SOMETIMES) for _ in range(rng.randrange(1, 4))]
            for (schedule, status, in_slot), number in zip(plan, sorted(ahead.pop() for _ in plan), strict=True):
                yield new_booking(rng, ids, person, schedule, half_hour(now, number), _MINUTES, status, in_slot=in_slot)


class CancelAppointment(_CancelNext):
    """Cancel a patient's next appointment and free its slot.

    Starting state: nine or ten patients who share names and dates of birth, each with a booked appointment. The patient
        can be identified only by given name, family name and date of birth together.
    Decoys: each patient who can be identified only in this way also has a past appointment, later appointments, and,
        before the next booked appointment, an appointment that is not booked.
    Checks: the next appointment is cancelled and its slot is free, both otherwise unchanged. The answer names both.
    Light: the appointment and its slot were updated.
    Differs from FHIR-AgentEval: the right appointment must be cancelled. The answer is checked; the original compared
        the answer with itself. "Next" is defined.
    """

    key = "15a"
    title = "Cancel the next appointment"
    required_tools = (
        ("search", "read", "update", "update"),
        ("search", "update", "read", "update"),
        ("search", "read", "update", "read", "update"),
    )
    prompts = (
        "Please cancel the next appointment of {patient} (given name {given}, family name {family}, born "
        "{birth_date}) and free its slot.",
        "{patient} (family name {family}, given name {given}, born {birth_date}) cannot come to the next appointment. "
        "Please cancel it and make its slot available again.",
        "The patient with family name {family}, given name {given} and date of birth {birth_date} cannot make the next "
        "visit. Please cancel that appointment and release the slot.",
    )
    brief = (
        "Please cancel the next booked appointment of {patient}, born {birth_date}, and free its slot. Finish with "
        'FINISH(["<appointment id>", "<slot id>"]).'
    )
    answer_instructions = (
        'The "next" appointment is the one with status booked that starts earliest after the present. '
        f"{_CANCEL_INSTRUCTIONS}"
    )

    @override
    def asked_of(self, scene: AppointmentScene, person: Person) -> Booking | None:
        return earliest_match(
            scene.bookings,
            lambda booking: booking.patient == person.id,
            lambda booking: booking.status == "booked",
            lambda booking: booking.start > scene.now,
        )

    @override
    def find(self, p: BookingParams, patient_id: str) -> Generator[Action, Json, Resource]:
        query = {"patient": patient_id, "status": "booked", "date": f"gt{p.scene.now}", "_sort": "date"}
        return next(entries((yield Get("/Appointment", query))))


class CancelWithProvider(_CancelNext):
    """Cancel a patient's next appointment with one of two doctors, and free its slot.

    Starting state: patients as in 15a, and doctors who share given names and family names.
    Decoys: as in 15a. Before the requested appointment, the patient has an appointment with another doctor, and the
        doctor has an appointment with another patient.
    Checks: the next appointment with the doctor is cancelled and its slot is free, both otherwise unchanged. The answer
        names both.
    Light: the appointment and its slot were updated.
    Differs from FHIR-AgentEval: the freed slot and the answer must belong to the cancelled appointment. All other
        appointments must stay, not only the appointment with the other practitioner. "Next" is defined.
    """

    key = "15b"
    title = "Cancel the next appointment with a provider"
    required_tools = (("search", "read", "update", "update"), ("search", "update", "read", "update"))
    prompts = (
        "Please cancel the next appointment of {patient} (given name {given}, family name {family}, born "
        "{birth_date}) with Dr. {doctor} and free its slot.",
        "{patient} (family name {family}, given name {given}, born {birth_date}) cannot come to the next visit to "
        "Dr. {doctor}. Please cancel that appointment and make its slot available again.",
        "The patient with family name {family}, given name {given} and date of birth {birth_date} is calling off the "
        "next visit to Dr. {doctor}. Please cancel that appointment and release the slot.",
    )
    brief = (
        "Please cancel the next booked appointment of {patient}, born {birth_date}, with Dr. {doctor}, and free its "
        'slot. Finish with FINISH(["<appointment id>", "<slot id>"]).'
    )
    answer_instructions = (
        f'{DOCTOR}The "next" appointment with the doctor is the one with status booked in which the patient and this '
        f"practitioner take part and which starts earliest after the present. {_CANCEL_INSTRUCTIONS}"
    )
    gold_steps = 7
    sees_another_first = True

    @override
    def draw_doctors(self, rng: random.Random, world: World, ids: IdAllocator) -> tuple[Schedules, tuple[Person, ...]]:
        return new_doctors(rng, world, ids, _BUSY)

    @override
    def asked_of(self, scene: AppointmentScene, person: Person) -> Booking | None:
        bookings = (_earliest_with(scene, person.id, schedule.provider.id) for schedule in scene.schedules)
        return next((booking for booking in bookings if booking is not None), None)

    @override
    def prompt_values(self, p: BookingParams, world: World) -> dict[str, str]:
        return {**super().prompt_values(p, world), "doctor": p.doctor.name}

    @override
    def find(self, p: BookingParams, patient_id: str) -> Generator[Action, Json, Resource]:
        doctor_id = yield from find_practitioner(p.doctor)
        with_doctor = {"patient": patient_id, "practitioner": doctor_id}
        query = {**with_doctor, "status": "booked", "date": f"gt{p.scene.now}", "_sort": "date"}
        return next(entries((yield Get("/Appointment", query))))


class CancelMondayAppointment(_Cancel):
    """Cancel a patient's appointment next Monday and free its slot.

    Starting state: nine patients who share names and dates of birth, each with one booked appointment on that Monday.
        The patient can be identified only by given name, family name and date of birth together.
    Decoys: each patient who can be identified only in this way has other appointments with status booked: on the days
        before and after (often in the half hour next to midnight), a week later, and a week earlier (sometimes today).
        Two more of the patient's appointments on that Monday are not booked.
    Checks: the appointment is cancelled and its slot is free, both otherwise unchanged. The answer names both.
    Light: the appointment and its slot were updated.
    Differs from FHIR-AgentEval: the right appointment must be cancelled and the right slot freed; the original accepted
        any cancelled appointment and any free slot, and its light check passed without any action. "Next Monday" is
        defined.
    """

    key = "15c"
    patients = (9,)
    title = "Cancel the next Monday appointment"
    required_tools = (
        ("search", "search", "update", "read", "update"),
        ("search", "update", "read", "update"),
        ("search", "search", "read", "update", "read", "update"),
        ("search", "update", "update"),
    )
    prompts = (
        "Please cancel next Monday's appointment of {patient} (given name {given}, family name {family}, born "
        "{birth_date}) and free its slot.",
        "{patient} (family name {family}, given name {given}, born {birth_date}) has an appointment next Monday and "
        "cannot come. Please cancel it and make its slot available again.",
        "The patient with family name {family}, given name {given} and date of birth {birth_date} cannot make next "
        "Monday's visit. Please cancel the appointment and release the slot.",
    )
    brief = (
        "Please cancel the booked appointment of {patient}, born {birth_date}, next Monday (the first after today), "
        'and free its slot. Finish with FINISH(["<appointment id>", "<slot id>"]).'
    )
    answer_instructions = (
        '"Next Monday" is the first Monday strictly after today. The appointment is the one with status booked that '
        f"starts on that day. {_CANCEL_INSTRUCTIONS}"
    )

    @override
    def draw_doctors(self, rng: random.Random, world: World, ids: IdAllocator) -> tuple[Schedules, tuple[Person, ...]]:
        return new_schedules(rng, world, ids, _MONDAY_DOCTORS), ()

    @override
    def draw_bookings(
        self, rng: random.Random, ids: IdAllocator, now: datetime, people: Sequence[Person], schedules: Schedules
    ) -> Iterator[Booking]:
        monday, agenda = at(next_weekday(now, _MONDAY), 0), Agenda(rng)

        def booking(person: Person, days: int, status: str = "booked", edge: int | None = None) -> Booking:
            # Often use the given half hour at the edge of the day.
            hours = [_WORKING] if edge is None or rng.random() < 0.5 else [(edge,), _WORKING]
            starts = ([monday + timedelta(days=days, minutes=30 * half) for half in halves] for halves in hours)
            schedule, start = next(filter(None, (agenda.draw(schedules, some, person.id) for some in starts)))
            in_slot = status == "booked" and start > now and (days == 0 or rng.random() < _SOMETIMES)
            return new_booking(rng, ids, person, schedule, start, _MINUTES, status, in_slot=in_slot)

        confusable_ids = {person.id for person in confusable(people)}
        for person in people:
            yield booking(person, 0)
            if person.id not in confusable_ids:
                continue
            yield from (booking(person, 0, rng.choice(_NOT_BOOKED)) for _ in range(2))
            yield from (booking(person, days) for days in (-7, 7))
            yield booking(person, -1, edge=_LAST_HALF_HOUR)
            yield booking(person, 1, edge=0)

    @override
    def asked_of(self, scene: AppointmentScene, person: Person) -> Booking | None:
        day = next_weekday(datetime.fromisoformat(scene.now), _MONDAY).isoformat()
        return unique_match(
            scene.bookings,
            lambda booking: booking.patient == person.id,
            lambda booking: booking.status == "booked",
            lambda booking: booking.start.startswith(day),
        )

    @override
    def find(self, p: BookingParams, patient_id: str) -> Generator[Action, Json, Resource]:
        day = next_weekday(datetime.fromisoformat(p.scene.now), _MONDAY).isoformat()
        return next(entries((yield Get("/Appointment", {"patient": patient_id, "status": "booked", "date": day}))))


def _earliest_with(scene: AppointmentScene, patient: str, doctor: str) -> Booking | None:
    """Return a patient's earliest future booked appointment with a doctor; None if a condition does not matter."""
    return earliest_match(
        scene.bookings,
        lambda booking: booking.patient == patient,
        lambda booking: booking.practitioner == doctor,
        lambda booking: booking.status == "booked",
        lambda booking: booking.start > scene.now,
    )


TASKS = (CancelAppointment, CancelWithProvider, CancelMondayAppointment)
