"""Task 11a: find the earliest available slot of any provider at a clinic."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import date

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.packs.appointment.slot_scenes import AT_PLACE, AVAILABLE, SlotDraft, consulting_hours
from fhir_gym.tasks.packs.appointment.slot_search import AtOnePlace, EarliestParams, FindEarliest, PlaceRequest, Query

_DAYS = 8


class EarliestSlot(AtOnePlace[EarliestParams[PlaceRequest]], FindEarliest[PlaceRequest]):
    """Find the earliest available slot of any provider at a clinic that starts at or after a given time.

    Starting state: a clinic, and an annex with a name that starts with the clinic's name. Two providers each have a
        schedule at both places. There are free and taken slots on eight days. The task chooses the place and the
        earliest time after drawing the slots, so that each free slot that can be the answer is equally likely.
    Decoys: the requested place has a free slot before the earliest time, taken or withdrawn slots between the earliest
        time and the answer, and later free slots. The other place has free slots between the earliest time and the
        answer.
    Checks: the answer is the first free slot that starts at or after the earliest time.
    Light: none.
    Differs from FHIR-AgentEval: the prompt names the clinic, so other data on the server does not change the answer; in
        the original, the same slot was always the right answer. The prompt names the earliest time. Times are random,
        and no two slots start at the same time.
    """

    key = "11a"
    title = "Earliest slot of any provider"
    prompts = (
        "What is the earliest available slot with any provider at {name} (Location/{clinic}) that starts at or after "
        "{moment}?",
        "A caller would like to be seen as soon as possible at {name} (Location/{clinic}), by any provider, but not "
        "before {moment}. Please find the first available slot.",
        "Please look through the schedules of all providers at Location/{clinic} ({name}), and find the first "
        "available slot that starts at or after {moment}.",
    )
    brief = (
        "What is the earliest free slot at {name} (Location/{clinic}) that starts at or after {moment}? "
        'Finish with FINISH(["<slot id>"]), or with FINISH([]) if there is none.'
    )
    answer_instructions = (
        f'{AT_PLACE}{AVAILABLE}Finish with FINISH(["<id>"]), where <id> is the id of the slot, or with '
        "FINISH([]) if no slot is available. Change nothing."
    )

    @override
    def timetable(
        self, rng: random.Random, today: date, groups: Sequence[Sequence[str]]
    ) -> Callable[[], Iterable[SlotDraft]]:
        return lambda: consulting_hours(rng, today, groups, [_DAYS] * len(groups))

    @override
    def prompt_values(self, p: EarliestParams[PlaceRequest], world: World) -> dict[str, str]:
        return {**super().prompt_values(p, world), "name": p.request.place.name, "clinic": p.request.place.id}

    @override
    def query(self, p: EarliestParams[PlaceRequest]) -> Query:
        return {"schedule.actor": p.request.place.reference}


TASKS = (EarliestSlot,)
