"""Tasks 14a and 14b: make an appointment."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.bookings import (
    PARTICIPANTS,
    accepted,
    answered,
    find_patient,
    find_practitioner,
    participants_check,
    place_checks,
)
from fhir_gym.tasks.appointment.clinic import Opening, moved_opening, slot, slot_checks
from fhir_gym.tasks.appointment.openings import DOCTOR, NEXT_WEEKDAY, Diary, clinic_resources
from fhir_gym.tasks.bundles import entries, reference
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.clock import WEEKDAYS, at, instant, next_weekday
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.meaning import ADD_NOTHING
from fhir_gym.tasks.outcomes import is_new, new_resource
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import (
    Person,
    namesake,
    new_person,
    other_given,
    patient,
    relative_with,
    swapped,
)
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = ["TASKS", "MakeAppointment", "MakeAppointmentParams", "MakeSecondAppointment"]

_MINUTES = 60
_HOURS = range(8, 17)


class MakeAppointmentParams(Params):
    """Values of tasks 14a and 14b.

    Attributes:
        patient: Who wants the appointment.
        other: A patient who is easily mistaken for them.
        diaries: The schedule of the doctor, and that of one who is easily mistaken for them.
        weekday: Day of the appointment, Monday being 0.
        target: The slot.
        decoys: Other slots: of the other practitioner, blocked, another hour, another day, taken.
    """

    patient: Person
    other: Person
    diaries: tuple[Diary, Diary]
    weekday: int
    target: Opening
    decoys: tuple[Opening, ...]

    @property
    def doctor(self) -> Person:
        """With whom."""
        return self.diaries[0].provider


class _BookAppointment(Task[MakeAppointmentParams]):
    """What booking a patient with a doctor at a given time is, whoever else is on file."""

    category = "Scheduling & Appointments"
    difficulty = 2
    kind = "action"
    required_resources = ("Slot", "Appointment")
    prohibited_tools = ("delete",)
    ending = (
        f"{DOCTOR}{NEXT_WEEKDAY}Use the doctor's free slot that starts at that time: create one "
        "Appointment with status booked that refers to the slot, has the slot's start and end, and has the patient and "
        "the practitioner, and nobody else, as participants with status accepted. Set the slot's status to busy and "
        f"leave everything else as it is. {ADD_NOTHING} "
        'Finish with FINISH(["<id>"]), where <id> is the id of the appointment.'
    )
    answer = IdsAnswer(("Appointment",))
    gold_steps = 6
    asked: ClassVar[Mapping[str, tuple[str, ...]]] = {"Appointment": ("status", "start", "end", "slot", *PARTICIPANTS)}
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"description": "Visit", "minutesDuration": _MINUTES, "comment": "By phone"}
    }

    @abstractmethod
    def mistaken(self, rng: random.Random, person: Person, doctor: Person, ids: Ids) -> tuple[Person, Person]:
        """A patient and a doctor who are easily mistaken for these."""

    def sample(self, rng: random.Random, world: World) -> MakeAppointmentParams:
        """Draw people, and the day and hour."""
        ids = Ids(rng, world, 20)
        person = new_person(rng, world, ids.new())
        doctor = new_person(rng, world, ids.new(), resource_type="Practitioner")
        other, other_doctor = self.mistaken(rng, person, doctor, ids)
        diaries = (Diary(id=ids.new(), provider=doctor), Diary(id=ids.new(), provider=other_doctor))
        weekday = rng.randrange(7)
        hour, other_hour, busy_hour = rng.sample(_HOURS, 3)
        day = next_weekday(world.now, weekday)
        start = instant(at(day, hour))
        target = Opening(id=ids.new(), schedule=diaries[0].id, start=start, minutes=_MINUTES, status="free")
        decoys = (
            moved_opening(target, ids.new(), schedule=diaries[1].id),
            moved_opening(target, ids.new(), status="busy-unavailable"),
            moved_opening(target, ids.new(), start=at(day, other_hour)),
            moved_opening(target, ids.new(), start=at(day, busy_hour), status="busy"),
            *(moved_opening(target, ids.new(), start=at(day + timedelta(days=n), hour)) for n in (-7, -1, 1, 7)),
        )
        return MakeAppointmentParams(
            patient=person, other=other, diaries=diaries, weekday=weekday, target=target, decoys=decoys
        )

    def setup(self, p: MakeAppointmentParams, world: World) -> list[Resource]:
        """People, schedules, slots."""
        return [
            patient(p.patient),
            patient(p.other),
            *clinic_resources((), p.diaries, world),
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
        patient_id = yield from find_patient(p.patient)
        doctor_id = yield from find_practitioner(p.doctor)
        query = {"schedule.actor": f"Practitioner/{doctor_id}", "start": p.target.start, "status": "free"}
        free = next(entries((yield Get("/Slot", query))))
        made = yield Post("/Appointment", _taking(free, patient_id, doctor_id))
        yield Put(f"/Slot/{free['id']}", {**free, "status": "busy"})
        yield Finish([made["id"]])

    def near_misses(self, p: MakeAppointmentParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Another slot, patient or practitioner booked consistently."""
        finish = gold[-1]
        bookings = [
            *((f"Slot/{opening.id}", opening, p.patient) for opening in p.decoys),
            ("the other patient", p.target, p.other),
            ("the other pair", p.decoys[0], p.other),
        ]
        for name, opening, person in bookings:
            doctor = next(diary.provider for diary in p.diaries if diary.id == opening.schedule)
            taken = slot(opening)
            book = Post("/Appointment", _taking(taken, person.id, doctor.id))
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
        found = new_resource(end, "Appointment", answer)
        yield is_new(end, "Appointment")
        yield equal("appointment status", found.get("status"), "booked")
        both = accepted(f"Patient/{p.patient.id}", f"Practitioner/{p.doctor.id}")
        yield participants_check(end, found, both)
        yield from place_checks(end, found, p.target)
        yield from slot_checks(end, p.target, "busy")
        yield answered(end, Appointment=found.get("id", "the id of the new appointment"))


class MakeAppointment(_BookAppointment):
    """Book a patient with a doctor at a given time.

    Starting state: the patient, the doctor and the doctor's free slot at that time.
    Decoys: a practitioner of swapped name with a free slot at that time, a blocked slot of the doctor at that time,
        slots of the doctor at other hours, the days before and after, a week later and a week earlier, which is today
        where today is such a day; a namesake of the patient.
    Checks: one new booked appointment of both in that slot at its times, the slot busy and else unchanged, the answer
        is the appointment's id.
    Light: an appointment was created and the slot was updated.
    Differs from FHIR-AgentEval: participants in any order, created by POST or PUT; the answer and the slot's other
        elements count (the solution there emptied the slot); searching is allowed, since no id can be known without;
        "next" is defined.
    """

    key = "14a"
    title = "Make an appointment"
    required_tools = (("read", "update", "update"), ("update", "update"), ("create", "update"))
    prompts = (
        "Book an appointment for {patient} (given name {given}, family name {family}, born {birth_date}) with "
        "Dr. {doctor} next {weekday} at {hour}:00.",
        "{patient}, date of birth {birth_date} (family name {family}, given name {given}), would like to see "
        "Dr. {doctor} next {weekday} at {hour}:00. Please make the appointment.",
        "Make an appointment next {weekday}, starting at {hour}:00, with Dr. {doctor}, for the patient with given name "
        "{given}, family name {family} and date of birth {birth_date}.",
    )

    def mistaken(self, rng: random.Random, person: Person, doctor: Person, ids: Ids) -> tuple[Person, Person]:
        """A namesake, and a doctor of swapped name."""
        return namesake(rng, person, ids.new()), swapped(rng, doctor, ids.new())


class MakeSecondAppointment(_BookAppointment):
    """Book one of two similar patients with one of two similar doctors at a given time.

    Starting state: the patient, the doctor and the doctor's free slot at that time.
    Decoys: another pair, a patient of the same family name and date of birth and a practitioner of the same family
        name who is free at that time; a blocked slot of the doctor at that time, slots of the doctor at other hours,
        the days before and after, a week later and a week earlier, which is today where today is such a day.
    Checks: one new booked appointment of both in that slot at its times, the slot busy and else unchanged, the answer
        is the appointment's id.
    Light: an appointment was created and the slot was updated.
    Differs from FHIR-AgentEval: the two doctors have different names (there both could be Dr. John Smith, of whom one
        was right), and neither pair is always the second; participants in any order; the answer and the slot's other
        elements count; "next" is defined.
    """

    key = "14b"
    title = "Make an appointment (two pairs)"
    required_tools = (("read", "update", "update"), ("update", "update"), ("create", "update"))
    prompts = (
        "{patient} (given name {given}, family name {family}, born {birth_date}) needs an appointment with "
        "Dr. {doctor} next {weekday} at {hour}:00. Please book it.",
        "Please schedule a visit to Dr. {doctor} for the patient with family name {family}, given name {given} and "
        "date of birth {birth_date}: next {weekday}, {hour}:00.",
        "Reserve {hour}:00 next {weekday} with Dr. {doctor} for {patient}, born {birth_date} (family name {family}, "
        "given name {given}).",
    )

    def mistaken(self, rng: random.Random, person: Person, doctor: Person, ids: Ids) -> tuple[Person, Person]:
        """People with the same family names."""
        others = (relative_with(rng, one, ids.new(), given=other_given(rng, one)) for one in (person, doctor))
        return next(others), next(others)


def _taking(taken: Resource, patient_id: str, doctor_id: str) -> Resource:
    """The appointment that takes a slot."""
    return {
        "resourceType": "Appointment",
        "status": "booked",
        "start": taken["start"],
        "end": taken["end"],
        "slot": [reference("Slot", taken["id"])],
        "participant": accepted(f"Patient/{patient_id}", f"Practitioner/{doctor_id}"),
    }


TASKS = (MakeAppointment, MakeSecondAppointment)
