"""Task 14a: make an appointment."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.clinic import (
    Opening,
    appointment,
    moved_opening,
    participants,
    schedule,
    slot,
    slot_checks,
)
from fhir_gym.tasks.bundles import entries, find_person, reference
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.clock import WEEKDAYS, at, instant, next_weekday
from fhir_gym.tasks.compare import same_moment
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, namesake, new_person, patient, practitioner, swapped
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = ["TASKS", "MakeAppointment", "MakeAppointmentParams"]

_MINUTES = 60
_HOURS = range(8, 17)


class MakeAppointmentParams(Params):
    """Values of task 14a.

    Attributes:
        patient: Who wants the appointment.
        namesake: Another patient of the same name.
        doctor: With whom.
        swapped: A practitioner whose names are the doctor's the other way round.
        schedules: Ids of the schedules of the two.
        weekday: Day of the appointment, Monday being 0.
        target: The slot.
        decoys: Other slots: of the other practitioner, blocked, another hour, another day, taken.
    """

    patient: Person
    namesake: Person
    doctor: Person
    swapped: Person
    schedules: tuple[str, str]
    weekday: int
    target: Opening
    decoys: tuple[Opening, ...]


class MakeAppointment(Task[MakeAppointmentParams]):
    """Book a patient with a doctor at a given time.

    Starting state: the patient, the doctor and the doctor's free slot at that time.
    Decoys: a practitioner of swapped name with a free slot at that time, a blocked slot of the doctor at that time,
        slots of the doctor at other hours, the day before and a week later, a namesake of the patient.
    Checks: one new booked appointment of both in that slot at its times, the slot busy and else unchanged, the answer
        is the appointment's id.
    Light: an appointment was created and the slot was updated.
    Differs from FHIR-AgentEval: participants in any order, created by POST or PUT; the answer and the slot's other
        elements count (the solution there emptied the slot); searching is allowed, since no id can be known without;
        "next" is defined.
    """

    key = "14a"
    title = "Make an appointment"
    category = "Scheduling & Appointments"
    difficulty = 2
    kind = "action"
    required_tools = (("read", "update", "update"), ("update", "update"), ("create", "update"))
    required_resources = ("Slot", "Appointment")
    prohibited_tools = ("delete",)
    prompts = (
        "Book an appointment for {patient} (given name {given}, family name {family}, born {birth_date}) with "
        "Dr. {doctor} next {weekday} at {hour}:00.",
        "{patient}, date of birth {birth_date} (family name {family}, given name {given}), would like to see "
        "Dr. {doctor} next {weekday} at {hour}:00. Please make the appointment.",
        "Make an appointment next {weekday}, starting at {hour}:00, with Dr. {doctor}, for the patient with given name "
        "{given}, family name {family} and date of birth {birth_date}.",
    )
    ending = (
        '"Dr. A B" is the practitioner with given name A and family name B. "Next" weekday means the first such '
        "weekday strictly after today's date. Use the doctor's free slot that starts at that time: create one "
        "Appointment with status booked that refers to the slot, has the slot's start and end, and has the patient and "
        "the practitioner, and nobody else, as participants with status accepted. Set the slot's status to busy and "
        'leave everything else as it is. Finish with FINISH(["<id>"]), where <id> is the id of the appointment.'
    )
    answer = IdsAnswer(("Appointment",))
    gold_steps = 6
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"description": "Visit", "minutesDuration": _MINUTES, "comment": "By phone"}
    }

    def sample(self, rng: random.Random, world: World) -> MakeAppointmentParams:
        """Draw people, and the day and hour."""
        ids = Ids(rng, world, 20)
        person = new_person(rng, world, ids.new())
        doctor = new_person(rng, world, ids.new(), resource_type="Practitioner")
        schedules = (ids.new(), ids.new())
        weekday = rng.randrange(7)
        hour, other_hour, busy_hour = rng.sample(_HOURS, 3)
        day = next_weekday(world.now, weekday)
        target = Opening(
            id=ids.new(), schedule=schedules[0], start=instant(at(day, hour)), minutes=_MINUTES, status="free"
        )
        day_before = day - timedelta(days=1)
        if day_before == world.now.date():
            day_before = day + timedelta(days=1)
        decoys = (
            moved_opening(target, ids.new(), schedule=schedules[1]),
            moved_opening(target, ids.new(), status="busy-unavailable"),
            moved_opening(target, ids.new(), start=at(day, other_hour)),
            moved_opening(target, ids.new(), start=at(day, busy_hour), status="busy"),
            moved_opening(target, ids.new(), start=at(day_before, hour)),
            moved_opening(target, ids.new(), start=at(day + timedelta(days=7), hour)),
        )
        return MakeAppointmentParams(
            patient=person,
            namesake=namesake(rng, person, ids.new()),
            doctor=doctor,
            swapped=swapped(rng, doctor, ids.new()),
            schedules=schedules,
            weekday=weekday,
            target=target,
            decoys=decoys,
        )

    def setup(self, p: MakeAppointmentParams, world: World) -> list[Resource]:
        """People, schedules, slots."""
        doctors = (p.doctor, p.swapped)
        return [
            patient(p.patient),
            patient(p.namesake),
            *map(practitioner, doctors),
            *(
                schedule(id, world, reference("Practitioner", doctor.id))
                for id, doctor in zip(p.schedules, doctors, strict=True)
            ),
            *map(slot, (p.target, *p.decoys)),
        ]

    def words(self, p: MakeAppointmentParams, world: World) -> dict[str, str]:
        """Names, birth date, day and hour."""
        return {
            **p.patient.model_dump(include={"given", "family", "birth_date"}),
            "patient": p.patient.name,
            "doctor": p.doctor.name,
            "weekday": WEEKDAYS[p.weekday],
            "hour": p.target.start[11:13],
        }

    def gold(self, p: MakeAppointmentParams, fhir: Fhir) -> Gold:
        """Find patient, doctor and slot; create; take the slot."""
        person, doctor = p.patient, p.doctor
        query = {"family": person.family, "given": person.given, "birthdate": person.birth_date}
        patient_id = find_person((yield Get("/Patient", query)), person)
        query = {"family": doctor.family, "given": doctor.given}
        doctor_id = find_person((yield Get("/Practitioner", query)), doctor)
        query = {"schedule.actor": f"Practitioner/{doctor_id}", "start": p.target.start, "status": "free"}
        free = next(entries((yield Get("/Slot", query))))
        made = yield Post("/Appointment", _booked(free, patient_id, doctor_id))
        yield Put(f"/Slot/{free['id']}", {**free, "status": "busy"})
        yield Finish([made["id"]])

    def near_misses(self, p: MakeAppointmentParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Another slot, patient or practitioner booked consistently."""
        finish = gold[-1]
        bookings = [
            *((f"Slot/{opening.id}", opening, p.patient) for opening in p.decoys),
            ("the namesake", p.target, p.namesake),
        ]
        for name, opening, person in bookings:
            doctor = p.doctor if opening.schedule == p.schedules[0] else p.swapped
            taken = slot(opening)
            book = Post("/Appointment", _booked(taken, person.id, doctor.id))
            yield f"books {name}", [book, Put(f"/Slot/{opening.id}", {**taken, "status": "busy"}), finish]

    def touches(self, p: MakeAppointmentParams) -> tuple[Touch, ...]:
        """One new Appointment, the slot."""
        return (Touch("created", "Appointment"), Touch("updated", "Slot", p.target.id))

    def rests_on(self, p: MakeAppointmentParams) -> tuple[str, ...]:
        """The patient and the slot."""
        return (f"Patient/{p.patient.id}", f"Slot/{p.target.id}")

    def checks(self, p: MakeAppointmentParams, end: EndState) -> Iterator[Check]:
        """The new appointment, the slot, the answer."""
        (answer,) = end.answer_ids("Appointment")
        new = end.created("Appointment")
        found = next((one for one in new if one["id"] == answer), new[0] if new else {})
        yield Check(name="an appointment was created", passed=bool(new), expected=1, actual=len(new), level="exists")
        wanted = appointment("", p.target, p.patient.id, p.doctor.id)
        yield equal("appointment status", found.get("status"), "booked")
        yield equal("participants", participants(found, end), participants(wanted, end))
        slots = [end.refers(one) for one in found.get("slot", [])]
        yield equal("appointment slot", slots, [f"Slot/{p.target.id}"])
        for bound in ("start", "end"):
            right = same_moment(found.get(bound), wanted[bound])
            yield Check(name=f"appointment {bound}", passed=right, expected=wanted[bound], actual=found.get(bound))
        yield from slot_checks(end, p.target, "busy")
        yield equal("answer", answer, found.get("id", "the id of the new appointment"))


def _booked(taken: Resource, patient_id: str, doctor_id: str) -> Resource:
    """The appointment that takes a slot."""
    return {
        "resourceType": "Appointment",
        "status": "booked",
        "start": taken["start"],
        "end": taken["end"],
        "slot": [reference("Slot", taken["id"])],
        "participant": [
            {"actor": reference("Patient", patient_id), "status": "accepted"},
            {"actor": reference("Practitioner", doctor_id), "status": "accepted"},
        ],
    }


TASKS = (MakeAppointment,)
