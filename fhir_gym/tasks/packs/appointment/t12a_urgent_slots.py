"""Task 12a: count the available slots of a clinic between two times."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from typing import ClassVar

from typing_extensions import override

from fhir_gym.tasks.grading import CountAnswer
from fhir_gym.tasks.packs.appointment.slot_scenes import AT_PLACE, AVAILABLE, SlotDraft, scattered
from fhir_gym.tasks.packs.appointment.slot_search import AtOnePlace, FindOpenSlots, OpenSlotsParams, PlaceRequest

_DAYS = 5
_FREE, _TAKEN = 9, 5


class UrgentSlots(AtOnePlace[OpenSlotsParams[PlaceRequest]], FindOpenSlots[PlaceRequest]):
    """Count the available slots of a clinic between two times.

    Starting state: a clinic, and an annex with a name that starts with the clinic's name. Two providers have a schedule
        at both places. There are free and taken slots on the next days. The task first draws the number of matching
        slots, zero to five. It then chooses a random place and period for which exactly this number of slots match.
        Often a slot starts exactly at the start or the end of the period.
    Decoys: there are free slots before the period, exactly at its end and after it. Within the period there are taken
        or withdrawn slots, and free slots at the other place.
    Checks: the answer is the number of slots. Because a number can be guessed, the agent must have made a request that
        would return any further matching slot. A search that returns only the total is accepted too.
    Light: none.
    Differs from FHIR-AgentEval: the prompt names the clinic and both ends of the period, and says that the end is
        exclusive. The number does not depend on the weekday on which the task runs. Zero is as likely as other numbers.
    """

    key = "12a"
    title = "Count urgent slots"
    prompts = (
        "How many slots are available at {name} (Location/{clinic}) from {start} until {end}?",
        "A patient needs to be seen urgently at {name} (Location/{clinic}). How many slots are available there from "
        "{start} until {end}?",
        "Please count the slots available at Location/{clinic} ({name}) between {start} and {end}.",
    )
    brief = (
        "How many free slots at {name} (Location/{clinic}) start at or after {start} and before {end}? Finish with "
        "FINISH([<number>])."
    )
    answer_instructions = (
        f"{AT_PLACE}{AVAILABLE}A slot counts if it starts at or after the first time and before the second. "
        "Finish with FINISH([<number>]), or with FINISH([0]) if there are none. Change nothing."
    )
    answer = CountAnswer()
    strata = ("0", "0", "1", "2", "2", "3", "3", "4", "4", "5", "5")
    sizes: ClassVar = {str(number): (number,) for number in range(6)}

    @override
    def timetable(
        self, rng: random.Random, today: date, groups: Sequence[Sequence[str]]
    ) -> Callable[[], Iterable[SlotDraft]]:
        days = [today + timedelta(days=number) for number in range(1, _DAYS + 1)]
        return lambda: scattered(rng, days, groups, _FREE, _TAKEN)


TASKS = (UrgentSlots,)
