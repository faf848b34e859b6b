"""Task 11c: how many slots of a service are available."""

from __future__ import annotations

import random
from datetime import timedelta

from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Count
from fhir_gym.tasks.appointment.openings import (
    AT_PLACE,
    AVAILABLE,
    QUARTER,
    Window,
    draw_openings,
    new_clinic,
    quarter_hours,
)
from fhir_gym.tasks.appointment.slot_search import FindOpenings, OpeningsParams, Query
from fhir_gym.tasks.clock import instant
from fhir_gym.tasks.concepts import SNOMED, Concept
from fhir_gym.tasks.ids import Ids

__all__ = ["TASKS", "CountSlots", "CountSlotsParams"]

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


class CountSlotsParams(OpeningsParams):
    """Values of task 11c.

    Attributes:
        service: The specialty that is asked for.
    """

    service: Concept


class CountSlots(FindOpenings[CountSlotsParams]):
    """Count the slots of a service that are available at a clinic.

    Starting state: two schedules at a clinic that offer the service, one of them another service too, and up to eight
        free slots on them, often one at the present instant; none in about a quarter of the variations.
    Decoys: a free slot on the clinic's schedule of another service, one of the service at another place whose name
        starts with the clinic's; on the right schedules, free ones begun and past, taken and withdrawn ones.
    Checks: the number of slots; a request would have shown one slot more, had there been one, for a number can be
        guessed. The total of a search is as good as its content.
    Light: none.
    Differs from FHIR-AgentEval: there were never any, so that the prompt's sentence was always right, without a look;
        the service has a real code, and the clinic is named. One search along the schedule suffices, which its
        templates (two searches) had no place for.
    """

    key = "11c"
    title = "Count slots of a service"
    difficulty = 2
    required_tools = (("search", "search"), ("search", "read", "search"), ("search",))
    prompts = (
        "How many slots of the service {service} (specialty {code} of {system}) are available at {name}, "
        "Location/{clinic}?",
        "A patient asks for {service} at {name} (Location/{clinic}). Count all slots that are available for it; its "
        "specialty has the code {code} of {system}.",
        "Count the available slots at Location/{clinic} ({name}) for the specialty {service}, {system} code {code}.",
    )
    ending = (
        "A slot is of a service if the specialty of the slot's schedule has its code; a schedule may have several. "
        f"{AT_PLACE}{AVAILABLE}Finish with FINISH([<number>]), which is FINISH([0]) if there is none. Change nothing."
    )
    answer = Count()

    def sample(self, rng: random.Random, world: World) -> CountSlotsParams:
        """Draw the clinic, its services, and slots."""
        ids = Ids(rng, world, 50)
        places, drawn = new_clinic(rng, world, ids, 3)
        service, other, more = rng.sample(_SERVICES, 3)
        offered = ((service,), rng.choice(((more, service), (service, more))), (other,), (service,))
        diaries = tuple(
            diary.model_copy(update={"specialties": specialties})
            for diary, specialties in zip(drawn, offered, strict=True)
        )
        now = world.now.replace(microsecond=0)
        window = Window(
            edges=(now,),
            inside=quarter_hours(now, now + timedelta(days=rng.randrange(3, 15))),
            outside=(now - timedelta(minutes=5), now - QUARTER * rng.randrange(8, 90), now - timedelta(days=7)),
        )
        schedules = [diary.id for diary in diaries]
        slots = draw_openings(rng, ids, window, schedules[:2], schedules[2:])
        return CountSlotsParams(now=instant(now), places=places, diaries=diaries, slots=slots, service=service)

    def words(self, p: CountSlotsParams, world: World) -> dict[str, str]:
        """The clinic and the service."""
        service = p.service
        return {
            **super().words(p, world),
            "service": service.display,
            "code": service.code,
            "system": service.system,
        }

    def query(self, p: CountSlotsParams) -> Query:
        """The service, the place and the present."""
        return {
            "schedule.specialty": p.service.token,
            "schedule.actor": p.place.reference,
            "start": f"ge{p.now}",
        }


TASKS = (CountSlots,)
