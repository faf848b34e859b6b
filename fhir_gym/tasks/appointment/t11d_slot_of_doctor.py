"""Task 11d: the earliest available slot of a doctor."""

from __future__ import annotations

import random

from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.appointment.openings import AVAILABLE, DOCTOR, Diary, draw_earliest, new_places
from fhir_gym.tasks.appointment.slot_search import EarliestParams, FindEarliest, Query
from fhir_gym.tasks.clock import instant
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.people import Person, longer_family, new_person, other_given, relative_with, swapped

__all__ = ["TASKS", "SlotOfDoctor", "SlotOfDoctorParams"]


class SlotOfDoctorParams(EarliestParams):
    """Values of task 11d; the doctor's two schedules are the first ones.

    Attributes:
        doctor: Whose slot.
    """

    doctor: Person


class SlotOfDoctor(FindEarliest[SlotOfDoctorParams]):
    """Find the earliest available slot of a doctor.

    Starting state: a doctor with a schedule at each of two places, and the earliest free slot on either.
    Decoys: earlier free slots of three colleagues: one whose names are the doctor's the other way round, one of the
        same family name, one whose double family name starts with the doctor's; the doctor's own slots in the past,
        begun, later, and earlier ones that are taken or withdrawn.
    Checks: the answer is the doctor's earliest free slot that has not started.
    Light: none.
    Differs from FHIR-AgentEval: "earliest" is said where it said "most recent"; other doctors have earlier slots; times
        and ids are random, where one slot was always right.
    """

    key = "11d"
    title = "Earliest slot of a doctor"
    difficulty = 3
    required_tools = (("search",), ("search", "read"))
    prompts = (
        "Which is the earliest available slot of Dr. {doctor} (given name {given}, family name {family})?",
        "A patient would like to see Dr. {doctor} as soon as possible; the given name is {given}, the family name "
        "{family}. Find the doctor's first available slot.",
        "Among all schedules of the practitioner with given name {given} and family name {family}, find the slot that "
        "is available soonest.",
    )
    ending = (
        f"{DOCTOR}Both names must be exactly these; others may be similar. A slot is a practitioner's if the "
        f"practitioner is an actor of the slot's schedule, at whatever place. {AVAILABLE}"
        'Finish with FINISH(["<id>"]), where <id> is the id of the slot, or with FINISH([]) if no slot is available. '
        "Change nothing."
    )

    def sample(self, rng: random.Random, world: World) -> SlotOfDoctorParams:
        """Draw the doctor, colleagues and slots."""
        ids = Ids(rng, world, 40)
        doctor = new_person(rng, world, ids.new(), resource_type="Practitioner")
        colleagues = (
            swapped(rng, doctor, ids.new()),
            relative_with(rng, doctor, ids.new(), given=other_given(rng, doctor)),
            relative_with(rng, doctor, ids.new(), family=longer_family(rng, doctor)),
        )
        places = new_places(rng, ids, doctor.city, doctor.state)
        where = (*places, *(rng.choice(places) for _ in colleagues))
        diaries = tuple(
            Diary(id=ids.new(), provider=person, place=place.reference)
            for person, place in zip((doctor, doctor, *colleagues), where, strict=True)
        )
        schedules = [diary.id for diary in diaries]
        slots = draw_earliest(rng, ids, world.now, schedules[:2], schedules[2:])
        return SlotOfDoctorParams(now=instant(world.now), places=places, diaries=diaries, slots=slots, doctor=doctor)

    def words(self, p: SlotOfDoctorParams, world: World) -> dict[str, str]:
        """The doctor."""
        return {"doctor": p.doctor.name, "given": p.doctor.given, "family": p.doctor.family}

    def query(self, p: SlotOfDoctorParams) -> Query:
        """The doctor's names."""
        return {
            "schedule.actor:Practitioner.family:exact": p.doctor.family,
            "schedule.actor:Practitioner.given:exact": p.doctor.given,
        }


TASKS = (SlotOfDoctor,)
