"""Task 12c: list the available slots of a clinic for a follow-up visit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from typing import ClassVar

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.grading import IdSetAnswer
from fhir_gym.tasks.packs.appointment.slot_scenes import AT_PLACE, AVAILABLE, DAY, SlotDraft, scattered
from fhir_gym.tasks.packs.appointment.slot_search import AtOnePlace, FindOpenSlots, OpenSlotsParams, PlaceRequest

_DAYS = 14
_FREE, _TAKEN = 9, 6
_EDGES = 0.25


class FollowUpSlots(AtOnePlace[OpenSlotsParams[PlaceRequest]], FindOpenSlots[PlaceRequest]):
    """List the available slots of a clinic for a follow-up visit within a window of some days.

    Starting state: a clinic, and an annex with a name that starts with the clinic's name. Two providers have a schedule
        at both places. There are free and taken slots within two weeks; a quarter of them are in the first or last
        quarter hour of a day. In half of the variations no slot matches. The task chooses the place and the window at
        random.
    Decoys: there are free slots before and after the window, often just before its start or exactly at its end. Within
        the window there are taken or withdrawn slots, and free slots at the other place.
    Checks: the answer contains the ids of the slots, in any order. If no slot matches, the agent must have made a
        request that would return a matching slot.
    Light: none.
    Differs from FHIR-AgentEval: the prompt states both ends of the window and says that the end is exclusive. The
        original's window began at nine, skipped weekends and included its end, but the original's prompt did not say
        so. An empty answer without a search fails.
    """

    key = "12c"
    title = "Follow-up slots"
    prompts = (
        "A patient needs a follow-up visit in about {wait} days at {name} (Location/{clinic}). Which slots are "
        "available there that start at or after {start} and before {end}?",
        "Please find all slots available at {name} (Location/{clinic}) for a check-up in {wait} days. The visit has to "
        "start at or after {start} and before {end}.",
        "A follow-up visit is due in {wait} days, within a window of {days} from {start} (inclusive) to {end} "
        "(exclusive). Please list every slot available at {name} (Location/{clinic}) that starts in this window.",
    )
    brief = (
        "Which free slots at {name} (Location/{clinic}) start at or after {start} and before {end}? Finish with "
        'FINISH(["<slot id>", ...]), or with FINISH([]) if there are none.'
    )
    answer_instructions = (
        f"{AT_PLACE}{AVAILABLE}Slots count on every day of the week and at every hour. "
        'Finish with FINISH(["<id>", ...]) and the ids of all these slots in any order, or with FINISH([]) if there '
        "are none. Change nothing."
    )
    answer = IdSetAnswer("Slot")
    strata = ("none", "some")
    sizes: ClassVar = {"none": (0,), "some": range(1, 6)}
    unit = DAY

    @override
    def timetable(
        self, rng: random.Random, today: date, groups: Sequence[Sequence[str]]
    ) -> Callable[[], Iterable[SlotDraft]]:
        ahead = rng.randrange(6, 80)
        days = [today + timedelta(days=ahead + number) for number in range(_DAYS)]
        return lambda: scattered(rng, days, groups, _FREE, _TAKEN, _EDGES)

    @override
    def prompt_values(self, p: OpenSlotsParams[PlaceRequest], world: World) -> dict[str, str]:
        first, end = (date.fromisoformat(moment[:10]) for moment in (p.start, p.end))
        length = (end - first).days
        return {
            **super().prompt_values(p, world),
            "wait": str((first - p.scene.clinic.today).days),
            "days": "1 day" if length == 1 else f"{length} days",
        }


TASKS = (FollowUpSlots,)
