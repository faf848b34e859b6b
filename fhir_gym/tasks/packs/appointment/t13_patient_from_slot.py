"""Tasks 13a and 13b: find the patient who has booked a doctor's slot; in 13b another doctor has the names swapped."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Gold, Params, SceneParams, SceneTask, equal
from fhir_gym.tasks.authoring import WEEKDAYS, IdAllocator, Person, draw_lookalikes, entries, patient_resource
from fhir_gym.tasks.grading import IdAnswer, parse_reference
from fhir_gym.tasks.packs.appointment.bookings import Booking, booking_resource, new_slot
from fhir_gym.tasks.packs.appointment.clinic import SlotRecord, slot_resource
from fhir_gym.tasks.packs.appointment.similar_doctors import (
    ASKABLE,
    DISTRACTOR,
    SIMILAR,
    SWAPPED,
    DoctorTime,
    Row,
    draw_doctor_times,
    every_detail_matters,
    weekday_of,
    without_contact,
)
from fhir_gym.tasks.packs.appointment.slot_scenes import (
    BOTH_NAMES,
    DOCTOR,
    NEXT_WEEKDAY,
    ProviderSchedule,
    clinic_resources,
)
from fhir_gym.types import Resource

_MINUTES = 30
_BOOKED = "booked"
_OVER = ("cancelled", "entered-in-error")
_FORMER = 2
_FEWEST_PATIENTS, _MOST_PATIENTS = 6, 7
_COLLEAGUES = (Row(2, 0, "oo   "), Row(0, 2, "oo   "))


class BookedVisit(Booking):
    """An appointment in a slot.

    Attributes:
        patient_first: Whether the patient comes before the doctor in the list of participants.
    """

    patient_first: bool

    @property
    @override
    def target(self) -> str:
        return f"Patient/{self.patient}"


class VisitScene(Params):
    """Doctors with similar names, and their appointments.

    Attributes:
        schedules: The doctors' schedules.
        patients: The doctors' patients.
        visits: Appointments; each taken slot has exactly one booked appointment.
        free: Slots without appointments.
    """

    schedules: tuple[ProviderSchedule, ...]
    patients: tuple[Person, ...]
    visits: tuple[BookedVisit, ...]
    free: tuple[SlotRecord, ...]


class PatientFromSlotParams(SceneParams):
    """Parameters of tasks 13a and 13b.

    Attributes:
        scene: Doctors, patients, slots and appointments.
        visit: The appointment of the patient to find.
    """

    scene: VisitScene
    visit: BookedVisit

    @property
    def doctor(self) -> Person:
        """The doctor of the slot."""
        return next(
            schedule.provider for schedule in self.scene.schedules if schedule.provider.id == self.visit.practitioner
        )


class _PatientFromSlot(SceneTask[PatientFromSlotParams, VisitScene, BookedVisit]):
    """Find the patient who has booked a slot."""

    category = "Scheduling & Appointments"
    difficulty = 2
    kind = "query"
    required_tools = (("read", "search"), ("search", "search"))
    required_resources = ("Slot", "Appointment", "Patient")
    prohibited_tools = ("create", "update", "patch", "delete")
    prompts = (
        "Which patient has booked the slot with Dr. {doctor} (given name {given}, family name {family}) next {weekday} "
        "at {hour}:00?",
        "Dr. {doctor} (given name {given}, family name {family}) sees a patient next {weekday} at {hour}:00. Who is "
        "the patient?",
        "Please find out which patient has booked the slot at {hour}:00 next {weekday} with the practitioner whose "
        "given name is {given} and whose family name is {family}.",
    )
    brief = (
        "Which patient has booked Dr. {doctor} at {hour}:00 next {weekday} (the first after today)? Finish with "
        'FINISH(["<patient id>"]).'
    )
    answer_instructions = (
        f"{DOCTOR}{BOTH_NAMES}{NEXT_WEEKDAY}The patient who has booked a slot is the one who takes part in the "
        "Appointment with status booked that refers to the slot. "
        'Finish with FINISH(["<id>"]), where <id> is the id of this patient. Change nothing.'
    )
    answer = IdAnswer(("Patient",))
    gold_steps = 3
    fewest = 5
    rows: ClassVar[tuple[Row, ...]]
    swapped: ClassVar[bool]

    @override
    def draw_scene(self, rng: random.Random, world: World) -> VisitScene:
        ids = IdAllocator(rng, world)
        schedules, times = draw_doctor_times(rng, world, ids, self.rows, swapped=self.swapped)
        number = rng.randint(_FEWEST_PATIENTS, _MOST_PATIENTS)
        patients = draw_lookalikes(rng, world, partial(ids.new, "Patient"), number)
        # At any time, a patient sees only one doctor; and a doctor sees a different patient at each time.
        after = rng.choice((3, 4))
        turns = (0, after, *rng.sample([n for n in range(1, number) if n != after], 2))
        visits: list[BookedVisit] = []
        free = []
        for time in times:
            if time.kind not in (ASKABLE, DISTRACTOR):
                free.append(new_slot(ids, time.schedule, time.start, _MINUTES))
                continue
            mine = (time.row + turns[time.moment]) % number
            visits += _visits(rng, ids, time, patients[mine], [*patients[:mine], *patients[mine + 1 :]])
        return VisitScene(schedules=schedules, patients=patients, visits=tuple(visits), free=tuple(free))

    @override
    def candidates(self, scene: VisitScene) -> dict[str, list[BookedVisit]]:
        # Choose one visit of each patient that can be identified only by name, day, hour and status together.
        booked = [visit for visit in scene.visits if visit.status == _BOOKED]
        contested = {visit.slot.id for visit in scene.visits if visit.status != _BOOKED}
        by_patient: dict[str, BookedVisit] = {}
        for visit in booked:
            place = visit.slot
            others = {(each.slot.schedule, each.slot.start) for each in booked if each.patient != visit.patient}
            if place.id in contested and every_detail_matters(scene.schedules, place.schedule, place.start, others):
                by_patient.setdefault(visit.patient, visit)
        return {"": [*by_patient.values()]}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: VisitScene, chosen: BookedVisit
    ) -> PatientFromSlotParams:
        return PatientFromSlotParams(scene=scene, visit=chosen)

    @override
    def scene_resources(self, scene: VisitScene, world: World) -> list[Resource]:
        slots = {visit.slot.id: visit.slot for visit in scene.visits}
        return [
            *without_contact((*clinic_resources((), scene.schedules, world), *map(patient_resource, scene.patients))),
            *map(slot_resource, (*slots.values(), *scene.free)),
            *map(_appointment, scene.visits),
        ]

    @override
    def prompt_values(self, p: PatientFromSlotParams, world: World) -> dict[str, str]:
        start = p.visit.slot.start
        return {
            "doctor": p.doctor.name,
            "given": p.doctor.given,
            "family": p.doctor.family,
            "weekday": WEEKDAYS[weekday_of(start)],
            "hour": start[11:13],
        }

    @override
    def gold(self, p: PatientFromSlotParams) -> Gold:
        doctor = p.doctor
        query = {
            "schedule.actor:Practitioner.family:exact": doctor.family,
            "schedule.actor:Practitioner.given:exact": doctor.given,
            "start": p.visit.slot.start,
        }
        taken = next(entries((yield Get("/Slot", query))))
        bundle = yield Get("/Appointment", {"slot": f"Slot/{taken['id']}", "status": _BOOKED})
        yield Finish([_patient_of(next(entries(bundle)))])

    @override
    def equivalents(self, p: PatientFromSlotParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        query = {"practitioner": f"Practitioner/{p.doctor.id}", "date": p.visit.slot.start, "status": _BOOKED}
        yield "looks for the appointment at once", [Get("/Appointment", query), gold[-1]]

    @override
    def required_records(self, p: PatientFromSlotParams) -> tuple[str, ...]:
        return (f"Appointment/{p.visit.id}",)

    @override
    def checks(self, p: PatientFromSlotParams, end: FinishedEpisode) -> Iterator[Check]:
        (answer,) = end.answer_ids("Patient")
        yield equal("answer", answer, p.visit.patient)


class PatientFromSlot(_PatientFromSlot):
    """Find the patient who has booked a doctor's slot.

    Starting state: six doctors with three given names and three family names; often one family name starts with
        another. Slots of four of the doctors are booked on one day; for three of these four, slots a week later or
        earlier (sometimes today) are booked too. There are six or seven patients. At least five of them have booked a
        slot that can be identified only by given name, family name, day, hour and status together; the task chooses one
        of these patients at random.
    Decoys: the other booked slots, and two appointments in the same slot that were cancelled or entered in
        error. The same doctors have free slots; two more doctors have free slots at the same hours.
    Checks: the answer is the patient's id.
    Light: none.
    Differs from FHIR-AgentEval: "next" is defined; in the original, today could be the next such weekday. The doctor
        has other patients on the same day. Ids are random; in the original, the same patient was always the right
        answer. The agent may search for the appointment.
    """

    key = "13a"
    title = "Patient from a slot"
    rows = (*SIMILAR, *_COLLEAGUES)
    swapped = False


class PatientFromSlotSwapped(_PatientFromSlot):
    """Find the patient who has booked a doctor's slot; another doctor has the same two names in swapped order.

    Starting state: six doctors with three names; each name is the given name of two doctors and the family name of two
        others. All doctors have a booked slot at the same time. For five of the doctors, slots at another hour of that
        day and a week later or earlier (sometimes today) are booked too. The patients are as in 13a.
    Decoys: as in 13a.
    Checks: the answer is the patient's id.
    Light: none.
    Differs from FHIR-AgentEval: see 13a. The original also has a doctor with swapped names.
    """

    key = "13b"
    title = "Patient from a slot, doctors of swapped names"
    rows = SWAPPED
    swapped = True


def _visits(
    rng: random.Random, ids: IdAllocator, time: DoctorTime, person: Person, others: Sequence[Person]
) -> Iterator[BookedVisit]:
    """Draw the booked appointment of a slot; if the prompt could ask for the slot, also draw invalid appointments."""
    slot = new_slot(ids, time.schedule, time.start, _MINUTES, "busy")
    plan = [(person, _BOOKED)]
    if time.kind == ASKABLE:
        plan += zip(rng.sample(others, _FORMER), rng.choices(_OVER, k=_FORMER), strict=True)
    for who, status in plan:
        yield BookedVisit(
            id=ids.new("Appointment"),
            slot=slot,
            patient=who.id,
            practitioner=time.schedule.provider.id,
            status=status,
            patient_first=rng.random() < 0.5,
        )


def _appointment(visit: BookedVisit) -> Resource:
    """Build the Appointment of a visit."""
    appointment = booking_resource(visit)
    return appointment if visit.patient_first else {**appointment, "participant": appointment["participant"][::-1]}


def _patient_of(appointment: Resource) -> str:
    """Return the id of the patient who takes part in an appointment."""
    actors = (parse_reference(participant.get("actor")) for participant in appointment["participant"])
    return next(actor[1] for actor in actors if actor and actor[0] == "Patient")


TASKS = (PatientFromSlot, PatientFromSlotSwapped)
