"""Task 11a: the earliest available slot of any provider at a clinic."""

from __future__ import annotations

import random

from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.appointment.openings import AT_PLACE, AVAILABLE, draw_earliest, new_clinic
from fhir_gym.tasks.appointment.slot_search import EarliestParams, FindEarliest, Query
from fhir_gym.tasks.clock import instant
from fhir_gym.tasks.ids import Ids

__all__ = ["TASKS", "EarliestSlot"]


class EarliestSlot(FindEarliest[EarliestParams]):
    """Find the earliest available slot of any provider at a clinic.

    Starting state: three providers with a schedule each at a clinic, and the clinic's earliest free slot.
    Decoys: free slots in the past, begun, and later than that one; slots before it that are taken or withdrawn; an
        earlier free one at another place whose name starts with the clinic's.
    Checks: the answer is the earliest free slot that has not started.
    Light: none.
    Differs from FHIR-AgentEval: the clinic is named, so that the answer does not depend on other data of the server;
        there, it was always the same slot. Random times, no ties, free slots in the past.
    """

    key = "11a"
    title = "Earliest slot of any provider"
    difficulty = 2
    prompts = (
        "Which is the earliest available slot of any provider at {name} (Location/{clinic})?",
        "A caller wants to be seen as soon as possible at {name} and does not mind by whom. The place is "
        "Location/{clinic}. Find the first available slot there.",
        "Among all providers who have a schedule at Location/{clinic} ({name}), find the slot that is available "
        "soonest.",
    )
    ending = (
        f'{AT_PLACE}{AVAILABLE}Finish with FINISH(["<id>"]), where <id> is the id of the slot, or with FINISH([]) if '
        "no slot is available. Change nothing."
    )

    def sample(self, rng: random.Random, world: World) -> EarliestParams:
        """Draw the clinic and slots."""
        ids = Ids(rng, world, 40)
        places, diaries = new_clinic(rng, world, ids, 3)
        schedules = [diary.id for diary in diaries]
        slots = draw_earliest(rng, ids, world.now, schedules[:-1], schedules[-1:])
        return EarliestParams(now=instant(world.now), places=places, diaries=diaries, slots=slots)

    def query(self, p: EarliestParams) -> Query:
        """The place."""
        return {"schedule.actor": p.place.reference}


TASKS = (EarliestSlot,)
