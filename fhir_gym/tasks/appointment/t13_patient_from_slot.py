"""Tasks 13a and 13b: which patient has booked a doctor's slot. Both ask alike; the colleagues of the doctor differ."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from datetime import timedelta

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.clinic import Opening, appointment, moved_opening, slot
from fhir_gym.tasks.appointment.openings import DOCTOR, NEXT_WEEKDAY, Diary, clinic_resources
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.clock import WEEKDAYS, at, instant, next_weekday
from fhir_gym.tasks.compare import parse_reference
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import (
    Person,
    longer_family,
    namesake,
    new_person,
    other_given,
    patient,
    relative_with,
    swapped,
)
from fhir_gym.tasks.task import Fhir, Gold, Task
from fhir_gym.types import Resource

__all__ = ["TASKS", "PatientFromSlot", "PatientFromSlotParams", "PatientFromSlotSwapped", "Visit"]

_MINUTES = 30
_MORNING = range(7, 12)
_OVER = ("cancelled", "entered-in-error", "noshow", "waitlist")


class Visit(Params):
    """An appointment in a slot.

    Attributes:
        id: Its id.
        opening: The slot.
        patient: Id of the patient.
        status: Status of the appointment.
        patient_first: Whether the patient is named before the doctor.
    """

    id: str
    opening: Opening
    patient: str
    status: str = "booked"
    patient_first: bool


class PatientFromSlotParams(Params):
    """Values of tasks 13a and 13b.

    Attributes:
        diaries: Schedules of the doctor, which is first, and of colleagues of a similar name.
        patients: The patient who is asked for, and others; one is a namesake.
        weekday: Day of the slot, Monday being 0.
        target: The booking that is asked for.
        decoys: Bookings of other slots, and appointments in the same slot that do not stand.
    """

    diaries: tuple[Diary, ...]
    patients: tuple[Person, ...]
    weekday: int
    target: Visit
    decoys: tuple[Visit, ...]

    @property
    def doctor(self) -> Person:
        """Whose slot it is."""
        return self.diaries[0].provider


class _PatientFromSlot(Task[PatientFromSlotParams]):
    """What both tasks share."""

    category = "Scheduling & Appointments"
    difficulty = 2
    kind = "query"
    required_tools = (("read", "search"), ("search", "search"))
    required_resources = ("Slot", "Appointment", "Patient")
    prohibited_tools = ("create", "update", "patch", "delete")
    prompts = (
        "Which patient has booked the slot of Dr. {doctor} (given name {given}, family name {family}) next {weekday} "
        "at {hour}:00 in the morning?",
        "Dr. {doctor}, given name {given} and family name {family}, sees a patient next {weekday} morning at "
        "{hour}:00. Who is it?",
        "Find out for whom the slot of the practitioner with given name {given} and family name {family} is booked "
        "that starts at {hour}:00 next {weekday} morning.",
    )
    ending = (
        f"{DOCTOR}Both names must be exactly these; others may be similar. {NEXT_WEEKDAY}A slot is booked by the "
        "patient who takes part in the Appointment with status booked that refers to the slot. "
        'Finish with FINISH(["<id>"]), where <id> is the id of that patient. Change nothing.'
    )
    answer = IdsAnswer(("Patient",))
    gold_steps = 3

    @abstractmethod
    def colleagues(self, rng: random.Random, doctor: Person, ids: Ids) -> tuple[Person, ...]:
        """Practitioners with whom the doctor is easily confused."""

    def sample(self, rng: random.Random, world: World) -> PatientFromSlotParams:
        """Draw people, the day and hour, and appointments."""
        ids = Ids(rng, world, 50)
        doctor = new_person(rng, world, ids.new(), resource_type="Practitioner")
        doctors = (doctor, *self.colleagues(rng, doctor, ids))
        person = new_person(rng, world, ids.new())
        others = (namesake(rng, person, ids.new()), new_person(rng, world, ids.new()))
        diaries = tuple(Diary(id=ids.new(), provider=one) for one in doctors)
        weekday, (hour, other_hour) = rng.randrange(7), rng.sample(_MORNING, 2)
        day, week = next_weekday(world.now, weekday), timedelta(days=7)
        opening = Opening(
            id=ids.new(), schedule=diaries[0].id, start=instant(at(day, hour)), minutes=_MINUTES, status="busy"
        )

        def visit(where: Opening, who: Person, status: str = "booked") -> Visit:
            first = rng.random() < 0.5
            return Visit(id=ids.new(), opening=where, patient=who.id, status=status, patient_first=first)

        starts = (at(day, other_hour), at(day, hour + 12), at(day + week, hour), at(day - week, hour))
        moved = [
            *(moved_opening(opening, ids.new(), start=start) for start in starts),
            *(moved_opening(opening, ids.new(), schedule=diary.id) for diary in diaries[1:]),
        ]
        return PatientFromSlotParams(
            diaries=diaries,
            patients=(person, *others),
            weekday=weekday,
            target=visit(opening, person),
            decoys=(
                *(visit(one, rng.choice(others)) for one in moved),
                *(visit(opening, rng.choice(others), status) for status in rng.sample(_OVER, 3)),
            ),
        )

    def setup(self, p: PatientFromSlotParams, world: World) -> list[Resource]:
        """People, schedules, slots, appointments."""
        visits = (p.target, *p.decoys)
        slots = {one.opening.id: slot(one.opening) for one in visits}
        doctors = {diary.id: diary.provider.id for diary in p.diaries}
        return [
            *clinic_resources((), p.diaries, world),
            *map(patient, p.patients),
            *slots.values(),
            *(_appointment(one, doctors[one.opening.schedule]) for one in visits),
        ]

    def words(self, p: PatientFromSlotParams, world: World) -> dict[str, str]:
        """The doctor, the day and the hour."""
        return {
            "doctor": p.doctor.name,
            "given": p.doctor.given,
            "family": p.doctor.family,
            "weekday": WEEKDAYS[p.weekday],
            "hour": str(int(p.target.opening.start[11:13])),
        }

    def gold(self, p: PatientFromSlotParams, fhir: Fhir) -> Gold:
        """The slot along its schedule, then the appointment in it."""
        doctor = p.doctor
        query = {
            "schedule.actor:Practitioner.family:exact": doctor.family,
            "schedule.actor:Practitioner.given:exact": doctor.given,
            "start": p.target.opening.start,
        }
        taken = next(entries((yield Get("/Slot", query))))
        found = yield Get("/Appointment", {"slot": f"Slot/{taken['id']}", "status": "booked"})
        yield Finish([_patient_of(next(entries(found)))])

    def equivalents(self, p: PatientFromSlotParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        """By the appointments of the doctor at that time."""
        query = {"practitioner": f"Practitioner/{p.doctor.id}", "date": p.target.opening.start, "status": "booked"}
        yield "looks for the appointment at once", [Get("/Appointment", query), gold[-1]]

    def rests_on(self, p: PatientFromSlotParams) -> tuple[str, ...]:
        """The appointment."""
        return (f"Appointment/{p.target.id}",)

    def checks(self, p: PatientFromSlotParams, end: EndState) -> Iterator[Check]:
        """The answer is the patient."""
        (answer,) = end.answer_ids("Patient")
        yield equal("answer", answer, p.target.patient)


class PatientFromSlot(_PatientFromSlot):
    """Find the patient who has booked a doctor's slot.

    Starting state: the doctor's slot on that day at that hour, and its appointment.
    Decoys: booked slots at that time of a colleague of the same family name and of two whose double family name starts
        with the doctor's; the doctor's booked slots at another hour of that morning and at the same hour in the
        evening, a week later, and a week earlier, which is today where today is such a weekday; appointments in the
        same slot that were cancelled or do not stand; a namesake of the patient.
    Checks: the answer is the patient's id.
    Light: none.
    Differs from FHIR-AgentEval: "next" is defined, where it counted today; the doctor has other patients that day; ids
        are random, where one patient was always right; searching for the appointment is fine.
    """

    key = "13a"
    title = "Patient from a slot"

    def colleagues(self, rng: random.Random, doctor: Person, ids: Ids) -> tuple[Person, ...]:
        """One of the same family name, two of a longer one."""
        return (
            relative_with(rng, doctor, ids.new(), given=other_given(rng, doctor)),
            *(relative_with(rng, doctor, ids.new(), family=longer_family(rng, doctor)) for _ in range(2)),
        )


class PatientFromSlotSwapped(_PatientFromSlot):
    """Find the patient who has booked a doctor's slot, where another doctor's names are the same the other way round.

    Starting state: as 13a.
    Decoys: those of 13a, but one colleague's names are the doctor's the other way round.
    Checks: the answer is the patient's id.
    Light: none.
    Differs from FHIR-AgentEval: as 13a; the doctor of swapped names is kept.
    """

    key = "13b"
    title = "Patient from a slot, doctors of swapped names"

    def colleagues(self, rng: random.Random, doctor: Person, ids: Ids) -> tuple[Person, ...]:
        """One of swapped names, one of the same family name, one of a longer one."""
        return (
            swapped(rng, doctor, ids.new()),
            relative_with(rng, doctor, ids.new(), given=other_given(rng, doctor)),
            relative_with(rng, doctor, ids.new(), family=longer_family(rng, doctor)),
        )


def _appointment(visit: Visit, doctor_id: str) -> Resource:
    """The Appointment."""
    made = appointment(visit.id, visit.opening, visit.patient, doctor_id, status=visit.status)
    return made if visit.patient_first else {**made, "participant": made["participant"][::-1]}


def _patient_of(found: Resource) -> str:
    """Id of the patient who takes part in an appointment."""
    actors = (parse_reference(one.get("actor")) for one in found["participant"])
    return next(actor[1] for actor in actors if actor and actor[0] == "Patient")


TASKS = (PatientFromSlot, PatientFromSlotSwapped)
