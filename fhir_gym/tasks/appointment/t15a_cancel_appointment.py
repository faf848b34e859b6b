"""Task 15a: cancel a patient's next appointment."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get, Put
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.clinic import Opening, appointment, schedule, slot, slot_checks
from fhir_gym.tasks.bundles import entries, find_person, reference
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.clock import at, instant
from fhir_gym.tasks.compare import differences
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, namesake, new_person, patient, practitioner
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = ["TASKS", "Booking", "CancelAppointment", "CancelAppointmentParams"]

_MINUTES = 30
_REASONS = ("Annual physical", "Blood pressure check", "Follow-up visit", "Vaccination", "Wound check")
_MAY_ADD = ("cancelationReason", "comment", "patientInstruction")


class Booking(Params):
    """One appointment and its slot.

    Attributes:
        id: Id of the appointment.
        patient: Id of the patient.
        opening: Its slot.
        status: Status of the appointment.
        description: What it is for.
    """

    id: str
    patient: str
    opening: Opening
    status: str
    description: str


class CancelAppointmentParams(Params):
    """Values of task 15a.

    Attributes:
        now: The present, an instant.
        patient: Whose appointment.
        namesake: Another patient of the same name.
        doctor: With whom all appointments are.
        schedule: Id of the doctor's schedule.
        target: The next appointment.
        decoys: A later one; past, cancelled and merely proposed ones; an earlier one of the namesake.
        free: A free slot of the doctor.
    """

    now: str
    patient: Person
    namesake: Person
    doctor: Person
    schedule: str
    target: Booking
    decoys: tuple[Booking, ...]
    free: Opening


class CancelAppointment(Task[CancelAppointmentParams]):
    """Cancel a patient's next appointment and free its slot.

    Starting state: the patient's next booked appointment and its slot.
    Decoys: a later booked appointment; one in the past; a cancelled and a proposed one before the next; an earlier one
        of a namesake.
    Checks: that appointment cancelled, its slot free, both else unchanged, the answer names both.
    Light: the appointment and its slot were updated.
    Differs from FHIR-AgentEval: which appointment was cancelled counts, and the answer, which was compared with itself
        there; "next" is defined.
    """

    key = "15a"
    title = "Cancel the next appointment"
    category = "Scheduling & Appointments"
    difficulty = 3
    kind = "action"
    required_tools = (
        ("search", "read", "update", "update"),
        ("search", "update", "read", "update"),
        ("search", "read", "update", "read", "update"),
    )
    required_resources = ("Appointment", "Slot")
    prohibited_tools = ("create", "delete")
    prompts = (
        "Cancel the next appointment of {patient} (given name {given}, family name {family}, born {birth_date}) and "
        "free its slot.",
        "{patient}, born {birth_date}, cannot come to the next appointment (family name {family}, given name {given}). "
        "Please cancel it and make its slot available again.",
        "The patient with family name {family}, given name {given} and date of birth {birth_date} calls off the next "
        "visit: cancel that appointment and release the slot.",
    )
    ending = (
        'The "next" appointment is the one with status booked that starts earliest after the present instant. Set '
        "its status to cancelled and the status of its slot to free; leave everything else as it is, delete and create "
        'nothing. Finish with FINISH(["<appointment id>", "<slot id>"]).'
    )
    answer = IdsAnswer(("Appointment", "Slot"))
    gold_steps = 6
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"cancelationReason": {"text": "Patient called off"}}
    }

    def sample(self, rng: random.Random, world: World) -> CancelAppointmentParams:
        """Draw people and times; no two appointments start together."""
        ids = Ids(rng, world, 20)
        person = new_person(rng, world, ids.new())
        other = namesake(rng, person, ids.new())
        doctor = new_person(rng, world, ids.new(), resource_type="Practitioner")
        schedule_id = ids.new()
        today = world.now.date()
        early = rng.sample(range(1, 9), 4)
        next_day = max(early) + rng.randrange(1, 4)
        days = {"next": next_day, "later": next_day + rng.randrange(1, 8), "past": -rng.randrange(1, 60)}

        def booking(who: Person, days: int, status: str, slot_status: str = "busy") -> Booking:
            start = instant(at(today + timedelta(days=days), rng.randrange(8, 17), rng.choice((0, 30))))
            opening = Opening(id=ids.new(), schedule=schedule_id, start=start, minutes=_MINUTES, status=slot_status)
            return Booking(
                id=ids.new(), patient=who.id, opening=opening, status=status, description=rng.choice(_REASONS)
            )

        decoys = (
            booking(person, days["later"], "booked"),
            booking(person, days["past"], "booked"),
            booking(person, early[0], "cancelled", "free"),
            booking(person, early[1], "proposed"),
            booking(other, early[2], "booked"),
        )
        spare = instant(at(today + timedelta(days=early[3]), rng.randrange(8, 17)))
        return CancelAppointmentParams(
            now=instant(world.now),
            patient=person,
            namesake=other,
            doctor=doctor,
            schedule=schedule_id,
            target=booking(person, days["next"], "booked"),
            decoys=decoys,
            free=Opening(id=ids.new(), schedule=schedule_id, start=spare, minutes=_MINUTES, status="free"),
        )

    def setup(self, p: CancelAppointmentParams, world: World) -> list[Resource]:
        """People, schedule, slots, appointments."""
        bookings = (p.target, *p.decoys)
        return [
            patient(p.patient),
            patient(p.namesake),
            practitioner(p.doctor),
            schedule(p.schedule, world, reference("Practitioner", p.doctor.id)),
            *(slot(opening) for opening in (p.free, *(one.opening for one in bookings))),
            *(_appointment(one, p.doctor) for one in bookings),
        ]

    def words(self, p: CancelAppointmentParams, world: World) -> dict[str, str]:
        """Name and birth date."""
        return {**p.patient.model_dump(include={"given", "family", "birth_date"}), "patient": p.patient.name}

    def gold(self, p: CancelAppointmentParams, fhir: Fhir) -> Gold:
        """Find the patient and the appointment; cancel it; free the slot it names."""
        person = p.patient
        query = {"family": person.family, "given": person.given, "birthdate": person.birth_date}
        patient_id = find_person((yield Get("/Patient", query)), person)
        query = {"patient": patient_id, "status": "booked", "date": f"gt{p.now}", "_sort": "date"}
        upcoming = next(entries((yield Get("/Appointment", query))))
        yield Put(f"/Appointment/{upcoming['id']}", {**upcoming, "status": "cancelled"})
        slot_id = upcoming["slot"][0]["reference"].rpartition("/")[2]
        taken = yield Get(f"/Slot/{slot_id}")
        yield Put(f"/Slot/{slot_id}", {**taken, "status": "free"})
        yield Finish([upcoming["id"], slot_id])

    def near_misses(self, p: CancelAppointmentParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Another appointment cancelled consistently."""
        for decoy in p.decoys:
            cancelled = {**_appointment(decoy, p.doctor), "status": "cancelled"}
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
        changed = end.updated("Appointment", p.target.id)
        before, after = changed or ({}, {})
        yield Check(
            name="the appointment was updated",
            passed=changed is not None,
            expected=f"Appointment/{p.target.id}",
            actual=[f"{c.resource_type}/{c.id}" for c in end.changes],
            level="exists",
        )
        yield equal("appointment status", after.get("status"), "cancelled")
        rest = differences(before, after, changing=("status",), may_add=_MAY_ADD, base_url=end.base_url)
        yield Check(
            name="rest of the appointment unchanged", passed=changed is not None and not rest, expected={}, actual=rest
        )
        yield from slot_checks(end, p.target.opening, "free")
        answered = end.answer_ids("Appointment", "Slot")
        yield equal("answer", answered, [p.target.id, p.target.opening.id])


def _appointment(booking: Booking, doctor: Person) -> Resource:
    return appointment(
        booking.id,
        booking.opening,
        booking.patient,
        doctor.id,
        status=booking.status,
        description=booking.description,
    )


TASKS = (CancelAppointment,)
