"""Task 11c: count the available slots of a specialty at a clinic."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import ClassVar

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import SNOMED, Concept, IdAllocator
from fhir_gym.tasks.grading import CountAnswer
from fhir_gym.tasks.packs.appointment.slot_scenes import AT_PLACE, AVAILABLE, Clinic, SlotScene, joint_clinic, scattered
from fhir_gym.tasks.packs.appointment.slot_search import FindOpenSlots, OpenSlotsParams, PlaceRequest, Query

_SERVICES = tuple(
    Concept(system=SNOMED, code=code, display=display)
    for code, display in (
        ("394579002", "Cardiology"),
        ("394582007", "Dermatology"),
        ("394583002", "Endocrinology"),
        ("394584008", "Gastroenterology"),
        ("394585009", "Obstetrics and gynecology"),
        ("394587001", "Psychiatry"),
        ("394589003", "Nephrology"),
        ("394591006", "Neurology"),
        ("394593009", "Medical oncology"),
        ("394594003", "Ophthalmology"),
        ("394612005", "Urology"),
        ("394810000", "Rheumatology"),
        ("408459003", "Pediatric cardiology"),
        ("418112009", "Pulmonary medicine"),
    )
)
_DAYS = 12
_FREE, _TAKEN = 3, 2


class ServiceRequest(PlaceRequest):
    """A request for slots of a specialty at a place.

    Attributes:
        service: The specialty.
    """

    service: Concept


class CountSlots(FindOpenSlots[ServiceRequest]):
    """Count the available slots of a specialty at a clinic that start at or after a given time.

    Starting state: a clinic, and an annex with a name that starts with the clinic's name. Three providers have a
        schedule at both places: one provider for each of two specialties, and one provider for both specialties. There
        are free and taken slots on twelve days. The task first draws the number of matching slots, zero to five. It
        then chooses a random place, specialty and earliest time for which exactly this number of slots match.
    Decoys: after the earliest time, the requested place has free slots of the other specialty, the other place has free
        slots of the requested specialty, and there are taken or withdrawn slots. There are also free slots before the
        earliest time.
    Checks: the answer is the number of slots. Because a number can be guessed, the agent must have made a request that
        would return any further matching slot. A search that returns only the total is accepted too.
    Light: none.
    Differs from FHIR-AgentEval: in the original no slot ever matched, so a fixed answer passed without a search. The
        specialty has a real code, and the prompt names the clinic. One chained search suffices; the original expected
        two searches.
    """

    key = "11c"
    title = "Count slots of a service"
    required_tools = (("search", "search"), ("search", "read", "search"), ("search",))
    prompts = (
        "How many slots for {service} (specialty {code} of {system}) are available at {name} (Location/{clinic}) at "
        "or after {start}?",
        "A patient is asking for an appointment in {service} (specialty {code} of {system}) at {name} "
        "(Location/{clinic}), but not before {start}. How many slots are available?",
        "Please count the available slots for {service} (specialty {code} of {system}) at Location/{clinic} ({name}) "
        "that start at or after {start}.",
    )
    brief = (
        "How many free slots for {service} (specialty {code}) are there at {name} (Location/{clinic}) at or after "
        "{start}? Finish with FINISH([<number>])."
    )
    answer_instructions = (
        "A slot is for a specialty if the slot's schedule has the specialty's code; a schedule may have several "
        f"specialties. {AT_PLACE}{AVAILABLE}A slot counts if it starts at or after the named time. "
        "Finish with FINISH([<number>]), or with FINISH([0]) if there are none. Change nothing."
    )
    answer = CountAnswer()
    strata = ("0", "0", "1", "2", "2", "3", "3", "4", "4", "5", "5")
    sizes: ClassVar = {str(number): (number,) for number in range(6)}
    endless = True

    @override
    def draw_scene(self, rng: random.Random, world: World) -> SlotScene:
        ids = IdAllocator(rng, world)
        drawn = joint_clinic(rng, world, ids, 3)
        service, other = rng.sample(_SERVICES, 2)
        offered = ((service,), (other,), rng.choice(((service, other), (other, service)))) * 2
        schedules = tuple(
            schedule.model_copy(update={"specialties": specialties})
            for schedule, specialties in zip(drawn.schedules, offered, strict=True)
        )
        clinic = drawn.model_copy(update={"schedules": schedules})
        days = [clinic.today + timedelta(days=number) for number in range(1, _DAYS + 1)]
        groups = [(schedule.id,) for schedule in schedules]
        return self.slot_scene(ids, world, clinic, lambda: scattered(rng, days, groups, _FREE, _TAKEN))

    @override
    def requests(self, clinic: Clinic) -> Iterator[ServiceRequest]:
        services = {service.code: service for schedule in clinic.schedules for service in schedule.specialties}
        for place in clinic.places:
            for service in services.values():
                here = {schedule.id for schedule in clinic.schedules if schedule.place == place.reference}
                offering = {schedule.id for schedule in clinic.schedules if service in schedule.specialties}
                failing_one = tuple(sorted(offering - here)), tuple(sorted(here - offering))
                yield ServiceRequest(
                    matching=tuple(sorted(here & offering)), failing_one=failing_one, place=place, service=service
                )

    @override
    def prompt_values(self, p: OpenSlotsParams[ServiceRequest], world: World) -> dict[str, str]:
        service = p.request.service
        named = {"service": service.display.lower(), "code": service.code, "system": service.system}
        return {**super().prompt_values(p, world), **named}

    @override
    def query(self, p: OpenSlotsParams[ServiceRequest]) -> Query:
        return {"schedule.specialty": p.request.service.token, **super().query(p)}


TASKS = (CountSlots,)
