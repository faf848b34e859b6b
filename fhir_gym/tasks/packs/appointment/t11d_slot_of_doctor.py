"""Task 11d: find the earliest available slot of a doctor."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import (
    IdAllocator,
    Person,
    is_new_name,
    longer_family,
    new_person,
    other_given,
    person_called,
)
from fhir_gym.tasks.packs.appointment.slot_scenes import (
    AVAILABLE,
    BOTH_NAMES,
    DOCTOR,
    Clinic,
    ProviderSchedule,
    SlotScene,
    consulting_hours,
    new_places,
)
from fhir_gym.tasks.packs.appointment.slot_search import EarliestParams, FindEarliest, Query, SlotRequest

_DAYS = 6
_DOUBLED = 0.5
"""Fraction of scenes in which one family name starts with the other, so that a search by family name finds both."""


class DoctorRequest(SlotRequest):
    """A request for slots of a doctor."""

    doctor: Person


class SlotOfDoctor(FindEarliest[DoctorRequest]):
    """Find a doctor's earliest available slot that starts at or after a given time.

    Starting state: four doctors who share given names and family names; in half of the scenes, one family name is a
        double name that starts with the other. Each doctor has a schedule at one or both of two places. There are free
        and taken slots on six days. The task chooses the doctor and the earliest time after drawing the slots, so that
        each free slot that can be the answer is equally likely.
    Decoys: the doctor has free slots before the earliest time and after the answer. Between the earliest time and the
        answer, all of the doctor's slots are taken or withdrawn. Two other doctors, one with the same family name and
        one with the same given name, have free slots in this period.
    Checks: the answer is the doctor's first free slot that starts at or after the earliest time.
    Light: none.
    Differs from FHIR-AgentEval: the prompt asks for the "earliest" slot, not the "most recent", and names the earliest
        time. Other doctors have earlier slots. Times and ids are random; in the original, the same slot was always the
        right answer.
    """

    key = "11d"
    title = "Earliest slot of a doctor"
    difficulty = 3
    required_tools = (("search",), ("search", "read"))
    prompts = (
        "What is the earliest available slot with Dr. {doctor} (given name {given}, family name {family}) that starts "
        "at or after {moment}?",
        "A patient would like to see Dr. {doctor} (given name {given}, family name {family}) as soon as possible, but "
        "not before {moment}. Please find the doctor's first available slot.",
        "Please check all schedules of the practitioner with given name {given} and family name {family}, and find the "
        "first available slot that starts at or after {moment}.",
    )
    brief = (
        "What is the earliest free slot with Dr. {doctor} that starts at or after {moment}? "
        'Finish with FINISH(["<slot id>"]), or with FINISH([]) if there is none.'
    )
    answer_instructions = (
        f"{DOCTOR}{BOTH_NAMES}A slot is a practitioner's if the practitioner is an actor of the slot's schedule, at "
        f"any place. {AVAILABLE}"
        'Finish with FINISH(["<id>"]), where <id> is the id of the slot, or with FINISH([]) if no slot is available. '
        "Change nothing."
    )

    @override
    def draw_scene(self, rng: random.Random, world: World) -> SlotScene:
        ids = IdAllocator(rng, world)
        doctors = [
            person_called(rng, ids.new("Practitioner"), given, family, gender, birth_date)
            for given, family, gender, birth_date in _doctors(rng, world)
        ]
        places = new_places(rng, ids, doctors[0].city, doctors[0].state)
        schedules = tuple(
            ProviderSchedule(id=ids.new("Schedule"), provider=doctor, place=place.reference)
            for doctor in doctors
            for place in rng.sample(places, rng.randrange(1, 3))
        )
        clinic = Clinic(places=places, schedules=schedules, today=world.now.date())
        groups = [request.matching for request in self.requests(clinic)]
        days = [_DAYS] * len(groups)
        return self.slot_scene(ids, world, clinic, lambda: consulting_hours(rng, clinic.today, groups, days))

    @override
    def requests(self, clinic: Clinic) -> Iterator[DoctorRequest]:
        for doctor in {schedule.provider.id: schedule.provider for schedule in clinic.schedules}.values():
            matching, family, given = [], [], []
            for schedule in clinic.schedules:
                if schedule.provider == doctor:
                    matching.append(schedule.id)
                elif schedule.provider.family == doctor.family:
                    family.append(schedule.id)
                elif schedule.provider.given == doctor.given:
                    given.append(schedule.id)
            yield DoctorRequest(matching=tuple(matching), failing_one=(tuple(family), tuple(given)), doctor=doctor)

    @override
    def prompt_values(self, p: EarliestParams[DoctorRequest], world: World) -> dict[str, str]:
        doctor = p.request.doctor
        return {
            **super().prompt_values(p, world),
            "doctor": doctor.name,
            "given": doctor.given,
            "family": doctor.family,
        }

    @override
    def query(self, p: EarliestParams[DoctorRequest]) -> Query:
        return {
            "schedule.actor:Practitioner.family:exact": p.request.doctor.family,
            "schedule.actor:Practitioner.given:exact": p.request.doctor.given,
        }


def _doctors(rng: random.Random, world: World) -> list[tuple[str, str, str, str]]:
    """Draw name, gender and date of birth of four doctors: all combinations of two given names and two family names."""
    while True:
        person, other = (new_person(rng, world, "", resource_type="Practitioner") for _ in range(2))
        doubled = "-" not in person.family and rng.random() < _DOUBLED
        families = (person.family, longer_family(rng, person) if doubled else other.family)
        names = [*product((person.given, other_given(rng, person)), families)]
        if families[0] != families[1] and all(is_new_name(world, "Practitioner", *name) for name in names):
            return [(*name, person.gender, rng.choice((person, other)).birth_date) for name in names]


TASKS = (SlotOfDoctor,)
