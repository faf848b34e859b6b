"""Tasks 14a and 14b: book a patient with a doctor."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, SceneParams, equal
from fhir_gym.tasks.authoring import (
    WEEKDAYS,
    IdAllocator,
    Person,
    created_check,
    draw_all_combinations,
    entries,
    find_patient,
    find_practitioner,
    instant,
    new_resource,
    reference,
)
from fhir_gym.tasks.grading import ADD_NOTHING, IdAnswer
from fhir_gym.tasks.packs.appointment.appointment_scene import AppointmentScene
from fhir_gym.tasks.packs.appointment.appointment_task import AppointmentTask, put_status
from fhir_gym.tasks.packs.appointment.bookings import (
    PARTICIPANTS,
    accepted,
    answered,
    new_slot,
    participants_check,
    place_checks,
)
from fhir_gym.tasks.packs.appointment.clinic import SlotRecord, slot_checks, slot_resource
from fhir_gym.tasks.packs.appointment.similar_doctors import (
    ASKABLE,
    SIMILAR,
    SWAPPED,
    Row,
    draw_doctor_times,
    every_detail_matters,
    weekday_of,
    without_contact,
)
from fhir_gym.tasks.packs.appointment.slot_scenes import DOCTOR, NEXT_WEEKDAY
from fhir_gym.types import Json, Resource

_MINUTES = 60
_PATIENTS = (2, 2, 2)
_VOID = "entered-in-error"
_MOST_VOID = 2
_MOST_PEOPLE, _MOST_SLOTS = 3, 12


class MakeAppointmentParams(SceneParams):
    """Parameters of tasks 14a and 14b.

    Attributes:
        scene: Patients, doctors and slots.
    """

    scene: AppointmentScene
    patient: Person
    slot: SlotRecord

    @property
    def doctor(self) -> Person:
        """The doctor."""
        return next(schedule.provider for schedule in self.scene.schedules if schedule.id == self.slot.schedule)


class _BookAppointment(AppointmentTask[MakeAppointmentParams, SlotRecord]):
    """Book a patient with a doctor at a given time."""

    difficulty = 2
    required_tools = (("read", "update", "update"), ("update", "update"), ("create", "update"))
    required_resources = ("Slot", "Appointment")
    prohibited_tools = ("delete",)
    brief = (
        "Please book {patient}, born {birth_date}, into the free slot of Dr. {doctor} at {hour}:00 next {weekday} (the "
        'first after today), with both accepted and the slot busy. Finish with FINISH(["<appointment id>"]).'
    )
    answer_instructions = (
        f"{DOCTOR}{NEXT_WEEKDAY}Use the doctor's free slot that starts at that time. Create one Appointment with "
        "status booked that refers to the slot and has the slot's start and end; its participants are the patient and "
        "the practitioner, both with status accepted, and nobody else. Set the slot's status to busy and leave "
        f"everything else as it is. {ADD_NOTHING} "
        'Finish with FINISH(["<id>"]), where <id> is the id of the appointment.'
    )
    answer = IdAnswer(("Appointment",))
    gold_steps = 6
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Appointment": ("status", "start", "end", "slot", *PARTICIPANTS)
    }
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Appointment": {"description": "Visit", "minutesDuration": _MINUTES, "comment": "By phone"}
    }
    fewest = 5
    rows: ClassVar[tuple[Row, ...]]
    swapped: ClassVar[bool]

    @override
    def draw_scene(self, rng: random.Random, world: World) -> AppointmentScene:
        ids = IdAllocator(rng, world)
        people = draw_all_combinations(rng, world, partial(ids.new, "Patient"), _PATIENTS)
        schedules, times = draw_doctor_times(rng, world, ids, self.rows, swapped=self.swapped)
        slots = []
        for time in times:
            void = rng.randint(1, _MOST_VOID) if time.kind == ASKABLE else 0
            statuses = ("free", *[_VOID] * void)
            slots += [new_slot(ids, time.schedule, time.start, _MINUTES, status) for status in statuses]
        return AppointmentScene(
            now=instant(world.now), people=people, schedules=schedules, bookings=(), slots=tuple(slots)
        )

    @override
    def candidates(self, scene: AppointmentScene) -> dict[str, list[SlotRecord]]:
        free = [slot for slot in scene.slots if slot.status == "free"]
        void = {(slot.schedule, slot.start) for slot in scene.slots if slot.status == _VOID}
        there = {(slot.schedule, slot.start) for slot in free}
        return {
            "": [
                slot
                for slot in free
                if slot.start > scene.now
                and (slot.schedule, slot.start) in void
                and every_detail_matters(scene.schedules, slot.schedule, slot.start, there)
            ]
        }

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: AppointmentScene, chosen: SlotRecord
    ) -> MakeAppointmentParams:
        return MakeAppointmentParams(scene=scene, patient=rng.choice(scene.people), slot=chosen)

    @override
    def scene_resources(self, scene: AppointmentScene, world: World) -> list[Resource]:
        return without_contact(super().scene_resources(scene, world))

    @override
    def prompt_values(self, p: MakeAppointmentParams, world: World) -> dict[str, str]:
        return {
            **p.patient.model_dump(include={"given", "family", "birth_date"}),
            "patient": p.patient.name,
            "doctor": p.doctor.name,
            "weekday": WEEKDAYS[weekday_of(p.slot.start)],
            "hour": p.slot.start[11:13],
        }

    @override
    def gold(self, p: MakeAppointmentParams) -> Gold:
        patient_id = yield from find_patient(p.patient)
        doctor_id = yield from find_practitioner(p.doctor)
        query = {"schedule.actor": f"Practitioner/{doctor_id}", "start": p.slot.start, "status": "free"}
        free = next(entries((yield Get("/Slot", query))))
        appointment = yield Post("/Appointment", _taking(free, patient_id, doctor_id))
        yield put_status(free, "busy")
        yield Finish([appointment["id"]])

    @override
    def near_misses(self, p: MakeAppointmentParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        finish = gold[-1]
        slots = [slot for slot in p.scene.slots if slot.id != p.slot.id]
        near = [slot for slot in slots if p.slot.start == slot.start or p.slot.schedule == slot.schedule]
        others = [person for person in p.scene.people if person.id != p.patient.id]
        bookings = [
            *((f"Slot/{slot.id}", slot, p.patient) for slot in near[:_MOST_SLOTS]),
            *((f"for Patient/{person.id}", p.slot, person) for person in others[:_MOST_PEOPLE]),
            ("another slot for another patient", near[0], others[0]),
        ]
        doctors = {schedule.id: schedule.provider for schedule in p.scene.schedules}
        for name, slot, person in bookings:
            taken = slot_resource(slot)
            book = Post("/Appointment", _taking(taken, person.id, doctors[slot.schedule].id))
            yield f"books {name}", [book, put_status(taken, "busy"), finish]

    @override
    def expected_changes(self, p: MakeAppointmentParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", "Appointment"), ExpectedChange("updated", "Slot", p.slot.id))

    @override
    def required_records(self, p: MakeAppointmentParams) -> tuple[str, ...]:
        return (f"Patient/{p.patient.id}", p.slot.target)

    @override
    def checks(self, p: MakeAppointmentParams, end: FinishedEpisode) -> Iterator[Check]:
        (answer,) = end.answer_ids("Appointment")
        appointment = new_resource(end, "Appointment", answer)
        yield created_check(end, "Appointment")
        yield equal("appointment status", appointment.get("status"), "booked")
        both = accepted(f"Patient/{p.patient.id}", f"Practitioner/{p.doctor.id}")
        yield participants_check(end, appointment, both)
        yield from place_checks(end, appointment, p.slot)
        yield from slot_checks(end, p.slot, "busy")
        yield answered(end, Appointment=appointment.get("id", "the id of the new appointment"))


class MakeAppointment(_BookAppointment):
    """Book a patient with a doctor at a given time.

    Starting state: eight patients; for any two of a patient's given name, family name and date of birth, another
        patient has the same two. There are six doctors with three names; each name is the given name of two doctors and
        the family name of two others. All doctors have a free slot at the same time. Five of them also have free slots
        at another hour of that day and a week later or earlier (sometimes today). The task chooses the slot and the
        patient at random. The slot can be identified only by the doctor's given name and family name, their order, the
        day, the hour and the status together.
    Decoys: the other free slots; one or two slots of the doctor at that time that were entered in error; the other
        patients.
    Checks: there is one new booked appointment of the patient with the doctor; it refers to the slot and has the slot's
        start and end. The slot is busy and otherwise unchanged. The answer is the appointment's id.
    Light: an appointment was created and the slot was updated.
    Differs from FHIR-AgentEval: participants may come in any order. The appointment may be created by POST or PUT. The
        answer and the slot's other elements are checked; the original's solution emptied the slot. Searching is allowed
        because the prompt gives no ids. "Next" is defined.
    """

    key = "14a"
    title = "Make an appointment"
    prompts = (
        "Please book an appointment for {patient} (given name {given}, family name {family}, born {birth_date}) with "
        "Dr. {doctor} next {weekday} at {hour}:00.",
        "{patient} (family name {family}, given name {given}, date of birth {birth_date}) would like to see "
        "Dr. {doctor} next {weekday} at {hour}:00. Please make the appointment.",
        "Please make an appointment with Dr. {doctor} next {weekday} at {hour}:00 for the patient with given name "
        "{given}, family name {family} and date of birth {birth_date}.",
    )
    rows = SWAPPED
    swapped = True


class MakeSecondAppointment(_BookAppointment):
    """Book one of several similar patients with one of several similar doctors at a given time.

    Starting state: patients as in 14a, and four doctors with two given names and two family names; often one family
        name starts with the other. The doctors have free slots at two hours of a day, and three of them also have free
        slots a week later or earlier (sometimes today). The task chooses the slot and the patient as in 14a.
    Decoys: as in 14a.
    Checks: there is one new booked appointment of the patient with the doctor; it refers to the slot and has the slot's
        start and end. The slot is busy and otherwise unchanged. The answer is the appointment's id.
    Light: an appointment was created and the slot was updated.
    Differs from FHIR-AgentEval: all doctors have different names; in the original both doctors could be Dr. John Smith,
        but only one of them was right. The right patient and doctor are not always the second ones. Participants may
        come in any order. The answer and the slot's other elements are checked. "Next" is defined.
    """

    key = "14b"
    title = "Make an appointment (two pairs)"
    prompts = (
        "{patient} (given name {given}, family name {family}, born {birth_date}) needs an appointment with "
        "Dr. {doctor} next {weekday} at {hour}:00. Please book it.",
        "Please schedule a visit to Dr. {doctor} next {weekday} at {hour}:00 for the patient with family name "
        "{family}, given name {given} and date of birth {birth_date}.",
        "Please reserve {hour}:00 next {weekday} with Dr. {doctor} for {patient} (family name {family}, given name "
        "{given}, born {birth_date}).",
    )
    rows = SIMILAR
    swapped = False


def _taking(taken: Resource, patient_id: str, doctor_id: str) -> Resource:
    """Build the Appointment of a patient with a doctor in a slot."""
    return {
        "resourceType": "Appointment",
        "status": "booked",
        "start": taken["start"],
        "end": taken["end"],
        "slot": [reference("Slot", taken["id"])],
        "participant": accepted(f"Patient/{patient_id}", f"Practitioner/{doctor_id}"),
    }


TASKS = (MakeAppointment, MakeSecondAppointment)
