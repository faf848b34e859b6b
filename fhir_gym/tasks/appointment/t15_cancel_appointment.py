"""Tasks 15a, 15b and 15c: cancel an appointment and free its slot."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get, Put
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.bookings import (
    NEW_REMARKS,
    Booking,
    answered,
    booked,
    find_patient,
    find_practitioner,
    new_booking,
    new_opening,
)
from fhir_gym.tasks.appointment.clinic import Opening, slot, slot_checks
from fhir_gym.tasks.appointment.openings import DOCTOR, Diary, clinic_resources
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.clock import at, instant, next_weekday
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.outcomes import updated
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, namesake, new_person, patient, swapped
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = [
    "TASKS",
    "CancelAppointment",
    "CancelAppointmentParams",
    "CancelMondayAppointment",
    "CancelWithProvider",
]

_MINUTES = 30
_HALF_HOURS = range(16, 34)
_MONDAY = 0


class CancelAppointmentParams(Params):
    """Values of tasks 15a, 15b and 15c.

    Attributes:
        now: The present, an instant.
        patient: Whose appointment.
        namesake: Another patient of the same name.
        diaries: The schedules of the practitioners; the first one's owner has the appointment.
        target: The appointment.
        decoys: Others of the patient, and of the namesake.
        free: A free slot.
    """

    now: str
    patient: Person
    namesake: Person
    diaries: tuple[Diary, ...]
    target: Booking
    decoys: tuple[Booking, ...]
    free: Opening

    @property
    def doctor(self) -> Person:
        """With whom the appointment is."""
        return self.diaries[0].provider


class _Cast:
    """Who may have appointments with whom.

    Args:
        patient: The patient.
        namesake: Another one of the same name.
        diaries: Schedules of the practitioners.
    """

    def __init__(self, patient: Person, namesake: Person, diaries: tuple[Diary, ...]) -> None:
        self.patient = patient
        self.namesake = namesake
        self.diary = diaries[0]
        self.other_diary = diaries[1] if len(diaries) > 1 else None


class _Cancel(Task[CancelAppointmentParams]):
    """What cancelling an appointment is, whichever it is."""

    category = "Scheduling & Appointments"
    difficulty = 3
    kind = "action"
    required_resources = ("Appointment", "Slot")
    prohibited_tools = ("create", "delete")
    answer = IdsAnswer(("Appointment", "Slot"))
    gold_steps = 6
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"cancelationReason": {"text": "Patient called off"}}
    }
    doing: ClassVar[str] = (
        "Set its status to cancelled and the status of its slot to free; leave everything else as it is, delete and "
        'create nothing. Finish with FINISH(["<appointment id>", "<slot id>"]).'
    )

    @abstractmethod
    def bookings(self, rng: random.Random, ids: Ids, now: datetime, cast: _Cast) -> tuple[Booking, ...]:
        """The appointments: the one to cancel first."""

    @abstractmethod
    def find(self, p: CancelAppointmentParams, patient_id: str) -> Generator[Action, Json, Resource]:
        """Find the appointment of a patient."""

    def providers(self, rng: random.Random, doctor: Person, ids: Ids) -> tuple[Person, ...]:
        """The practitioners."""
        return (doctor,)

    def sample(self, rng: random.Random, world: World) -> CancelAppointmentParams:
        """Draw people and times."""
        ids = Ids(rng, world, 40)
        person = new_person(rng, world, ids.new())
        other = namesake(rng, person, ids.new())
        doctor = new_person(rng, world, ids.new(), resource_type="Practitioner")
        diaries = tuple(Diary(id=ids.new(), provider=one) for one in self.providers(rng, doctor, ids))
        target, *decoys = self.bookings(rng, ids, world.now, _Cast(person, other, diaries))
        spare = at(world.now.date() + timedelta(days=rng.randrange(1, 9)), rng.randrange(8, 17))
        return CancelAppointmentParams(
            now=instant(world.now),
            patient=person,
            namesake=other,
            diaries=diaries,
            target=target,
            decoys=tuple(decoys),
            free=new_opening(ids, diaries[0], spare, _MINUTES),
        )

    def setup(self, p: CancelAppointmentParams, world: World) -> list[Resource]:
        """People, schedules, slots, appointments."""
        bookings = (p.target, *p.decoys)
        return [
            patient(p.patient),
            patient(p.namesake),
            *clinic_resources((), p.diaries, world),
            *(slot(opening) for opening in (p.free, *(one.opening for one in bookings))),
            *map(booked, bookings),
        ]

    def words(self, p: CancelAppointmentParams, world: World) -> dict[str, str]:
        """Name and birth date."""
        return {**p.patient.model_dump(include={"given", "family", "birth_date"}), "patient": p.patient.name}

    def gold(self, p: CancelAppointmentParams, fhir: Fhir) -> Gold:
        """Find the patient and the appointment; cancel it; free the slot it names."""
        patient_id = yield from find_patient(p.patient)
        found = yield from self.find(p, patient_id)
        yield Put(f"/Appointment/{found['id']}", {**found, "status": "cancelled"})
        slot_id = found["slot"][0]["reference"].rpartition("/")[2]
        taken = yield Get(f"/Slot/{slot_id}")
        yield Put(f"/Slot/{slot_id}", {**taken, "status": "free"})
        yield Finish([found["id"], slot_id])

    def near_misses(self, p: CancelAppointmentParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Another appointment cancelled consistently."""
        for decoy in p.decoys:
            cancelled = {**booked(decoy), "status": "cancelled"}
            freed = {**slot(decoy.opening), "status": "free"}
            yield (
                f"cancels the {decoy.status} one at {decoy.opening.start}",
                [
                    Put(f"/Appointment/{decoy.id}", cancelled),
                    Put(f"/Slot/{decoy.opening.id}", freed),
                    Finish([decoy.id, decoy.opening.id]),
                ],
            )

    def touches(self, p: CancelAppointmentParams) -> tuple[Touch, ...]:
        """The appointment and its slot."""
        return (Touch("updated", "Appointment", p.target.id), Touch("updated", "Slot", p.target.opening.id))

    def rests_on(self, p: CancelAppointmentParams) -> tuple[str, ...]:
        """The appointment and its slot."""
        return (f"Appointment/{p.target.id}", f"Slot/{p.target.opening.id}")

    def checks(self, p: CancelAppointmentParams, end: EndState) -> Iterator[Check]:
        """The appointment, the slot, the answer."""
        may_add = ("cancelationReason", *NEW_REMARKS)
        yield from updated(end, "Appointment", p.target.id, changing=("status",), may_add=may_add, called="appointment")
        yield equal("appointment status", end.after_update("Appointment", p.target.id).get("status"), "cancelled")
        yield from slot_checks(end, p.target.opening, "free")
        yield answered(end, Appointment=p.target.id, Slot=p.target.opening.id)


class _CancelNext(_Cancel):
    """The earliest appointment after the present counts."""

    def bookings(self, rng: random.Random, ids: Ids, now: datetime, cast: _Cast) -> tuple[Booking, ...]:
        """The next one; a later and a past one; earlier ones that do not count. No two start on a day."""
        early = rng.sample(range(1, 10), 4)
        soon = max(early) + rng.randrange(1, 4)
        later, past = soon + rng.randrange(1, 8), -rng.randrange(1, 60)
        mine, other = cast.patient, cast.namesake

        def booking(person: Person, days: int, status: str = "booked", *, diary: Diary = cast.diary) -> Booking:
            start = at(now.date() + timedelta(days=days), rng.randrange(8, 17), rng.choice((0, 30)))
            return new_booking(rng, ids, person, diary, start, _MINUTES, status)

        bookings = (
            booking(mine, soon),
            booking(mine, later),
            booking(mine, past),
            booking(mine, early[0], "cancelled"),
            booking(mine, early[1], "proposed"),
            booking(other, early[2]),
        )
        if cast.other_diary is None:
            return bookings
        return (*bookings, booking(mine, early[3], diary=cast.other_diary))


class CancelAppointment(_CancelNext):
    """Cancel a patient's next appointment and free its slot.

    Starting state: the patient's next booked appointment and its slot.
    Decoys: a later booked appointment; one in the past; a cancelled and a proposed one before the next; an earlier one
        of a namesake; a free slot.
    Checks: that appointment cancelled, its slot free, both else unchanged, the answer names both.
    Light: the appointment and its slot were updated.
    Differs from FHIR-AgentEval: which appointment was cancelled counts, and the answer, which was compared with itself
        there; "next" is defined.
    """

    key = "15a"
    title = "Cancel the next appointment"
    required_tools = (
        ("search", "read", "update", "update"),
        ("search", "update", "read", "update"),
        ("search", "read", "update", "read", "update"),
    )
    prompts = (
        "Cancel the next appointment of {patient} (given name {given}, family name {family}, born {birth_date}) and "
        "free its slot.",
        "{patient}, born {birth_date}, cannot come to the next appointment (family name {family}, given name {given}). "
        "Please cancel it and make its slot available again.",
        "The patient with family name {family}, given name {given} and date of birth {birth_date} calls off the next "
        "visit: cancel that appointment and release the slot.",
    )
    ending = (
        'The "next" appointment is the one with status booked that starts earliest after the present instant. '
        f"{_Cancel.doing}"
    )

    def find(self, p: CancelAppointmentParams, patient_id: str) -> Generator[Action, Json, Resource]:
        """The first one that is booked and to come."""
        query = {"patient": patient_id, "status": "booked", "date": f"gt{p.now}", "_sort": "date"}
        return next(entries((yield Get("/Appointment", query))))


class CancelWithProvider(_CancelNext):
    """Cancel a patient's next appointment with one of two doctors, and free its slot.

    Starting state: the patient's next booked appointment with the doctor and its slot.
    Decoys: an earlier booked appointment with a practitioner of swapped name; a later one with the doctor, and one in
        the past; a cancelled and a proposed one before the next; an earlier one of a namesake; a free slot.
    Checks: that appointment cancelled, its slot free, both else unchanged, the answer names both.
    Light: the appointment and its slot were updated.
    Differs from FHIR-AgentEval: the slot that is freed and answered must be that of the appointment; all other
        appointments must stay, not only one with the other practitioner; "next" is defined.
    """

    key = "15b"
    title = "Cancel the next appointment with a provider"
    required_tools = (("search", "read", "update", "update"), ("search", "update", "read", "update"))
    prompts = (
        "Cancel the next appointment of {patient} (given name {given}, family name {family}, born {birth_date}) with "
        "Dr. {doctor} and free its slot.",
        "{patient}, born {birth_date} (family name {family}, given name {given}), will not come to the next visit to "
        "Dr. {doctor}. Please cancel that appointment and make its slot available again.",
        "Call off what the patient with family name {family}, given name {given} and date of birth {birth_date} has "
        "booked next with Dr. {doctor}, and release the slot.",
    )
    ending = (
        f'{DOCTOR}The "next" appointment with the doctor is the one with status booked in which the patient and that '
        f"practitioner take part and which starts earliest after the present instant. {_Cancel.doing}"
    )
    gold_steps = 7

    def providers(self, rng: random.Random, doctor: Person, ids: Ids) -> tuple[Person, ...]:
        """The doctor and one of swapped name."""
        return doctor, swapped(rng, doctor, ids.new())

    def words(self, p: CancelAppointmentParams, world: World) -> dict[str, str]:
        """Names and birth date."""
        return {**super().words(p, world), "doctor": p.doctor.name}

    def find(self, p: CancelAppointmentParams, patient_id: str) -> Generator[Action, Json, Resource]:
        """The first one with the doctor that is booked and to come."""
        doctor_id = yield from find_practitioner(p.doctor)
        with_doctor = {"patient": patient_id, "practitioner": doctor_id}
        query = {**with_doctor, "status": "booked", "date": f"gt{p.now}", "_sort": "date"}
        return next(entries((yield Get("/Appointment", query))))


class CancelMondayAppointment(_Cancel):
    """Cancel a patient's appointment next Monday and free its slot.

    Starting state: the patient's booked appointment on that day and its slot.
    Decoys: booked appointments the days before and after, often in the half hour next to midnight, a week later, and a
        week earlier, which is today where today is a Monday; a cancelled and a proposed one on that Monday; one of a
        namesake on that Monday; a free slot.
    Checks: that appointment cancelled, its slot free, both else unchanged, the answer names both.
    Light: the appointment and its slot were updated.
    Differs from FHIR-AgentEval: which appointment was cancelled and which slot freed counts (there any cancelled
        appointment and any free slot would do, and light passed without a deed); "next Monday" is defined.
    """

    key = "15c"
    title = "Cancel the next Monday appointment"
    required_tools = (
        ("search", "search", "update", "read", "update"),
        ("search", "update", "read", "update"),
        ("search", "search", "read", "update", "read", "update"),
        ("search", "update", "update"),
    )
    prompts = (
        "Cancel the appointment of {patient} (given name {given}, family name {family}, born {birth_date}) next Monday "
        "and free its slot.",
        "{patient}, born {birth_date} (family name {family}, given name {given}), has an appointment next Monday and "
        "cannot come. Please cancel it and make its slot available again.",
        "The patient with family name {family}, given name {given} and date of birth {birth_date} calls off next "
        "Monday's visit: cancel that appointment and release the slot.",
    )
    ending = (
        '"Next Monday" means the first Monday strictly after today\'s date. The appointment is the one with status '
        "booked that starts at 00:00 of that day or later and before 00:00 of the day after. "
        f"{_Cancel.doing}"
    )

    def bookings(self, rng: random.Random, ids: Ids, now: datetime, cast: _Cast) -> tuple[Booking, ...]:
        """That of the day; others of the day, and of days around it. No two start together."""
        monday = next_weekday(now, _MONDAY)
        times = iter(rng.sample(_HALF_HOURS, 8))
        mine, other = cast.patient, cast.namesake

        def booking(person: Person, days: int, status: str = "booked") -> Booking:
            hour, half = divmod(next(times), 2)
            return at_time(person, at(monday + timedelta(days=days), hour, 30 * half), status)

        def at_time(person: Person, start: datetime, status: str = "booked") -> Booking:
            return new_booking(rng, ids, person, cast.diary, start, _MINUTES, status)

        # The last half hour before the day and the first one after it, for the day ends as it begins: at midnight.
        midnight, length = at(monday, 0), timedelta(minutes=_MINUTES)
        edges = (at_time(mine, midnight - length), at_time(mine, midnight + timedelta(days=1)))
        return (
            booking(mine, 0),
            booking(mine, 0, "cancelled"),
            booking(mine, 0, "proposed"),
            booking(other, 0),
            *(booking(mine, days) for days in (-7, 7)),
            *(edge if rng.random() < 0.5 else booking(mine, days) for edge, days in zip(edges, (-1, 1), strict=True)),
        )

    def find(self, p: CancelAppointmentParams, patient_id: str) -> Generator[Action, Json, Resource]:
        """The one of that day that is booked."""
        day = next_weekday(datetime.fromisoformat(p.now), _MONDAY).isoformat()
        return next(entries((yield Get("/Appointment", {"patient": patient_id, "status": "booked", "date": day}))))


TASKS = (CancelAppointment, CancelWithProvider, CancelMondayAppointment)
