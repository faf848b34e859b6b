"""Task 12d: list and count the available slots of a clinic on the mornings of one weekday."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, timedelta
from typing import ClassVar

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import WEEKDAYS, IdAllocator, parse_instant
from fhir_gym.tasks.grading import CountedIdsAnswer
from fhir_gym.tasks.packs.appointment.slot_scenes import (
    AT_PLACE,
    AVAILABLE,
    DAY,
    Clinic,
    SlotScene,
    joint_clinic,
    scattered,
)
from fhir_gym.tasks.packs.appointment.slot_search import (
    FindOpenSlots,
    OpenSlotsParams,
    PlaceRequest,
    Query,
    SlotSet,
    place_requests,
)

_WEEKS = 8
_FREE, _TAKEN = 14, 6
_HOURS = (11, 14, 17)
_THURSDAY = 3
"""Weekday of the first day of the epoch."""


class MorningRequest(PlaceRequest):
    """A request for slots at a place, on one weekday and before a certain hour.

    Attributes:
        weekday: The weekday; Monday is 0.
    """

    weekday: int
    hour: int


class WeekdayMornings(FindOpenSlots[MorningRequest]):
    """List and count the available slots of a clinic on one weekday, before a certain hour, over several weeks.

    Starting state: a clinic, and an annex with a name that starts with the clinic's name. Two providers have a schedule
        at both places. There are free and taken slots on two weekdays, for eight weeks. The task first draws the number
        of matching slots, zero to three. It then chooses a random place, weekday, hour and period for which exactly
        this number of slots match.
    Decoys: within the period, there are free slots on the right weekday but not before the hour, on the other weekday
        before the hour, and at the other place. There are also taken or withdrawn slots. Before and after the period,
        there are free slots on the right weekday before the hour.
    Checks: the answer contains the number of the slots, and their ids in any order. If no slot matches, the agent must
        have made a request that would return a matching slot.
    Light: none.
    Differs from FHIR-AgentEval: every time of day before the hour counts; the original counted from nine o'clock to the
        hour, inclusive. The prompt names the first day. The number is checked too. Blanks in the answer do not matter.
        An empty answer without a search fails.
    """

    key = "12d"
    title = "Slots on weekday mornings"
    difficulty = 3
    prompts = (
        "Which slots are available at {name} (Location/{clinic}) on a {weekday} before {hour}:00 in the {days} days "
        "starting on {first}, and how many are there?",
        "A patient can only come on {weekday}s, and the visit has to start before {hour}:00. Please list and count all "
        "slots available at {name} (Location/{clinic}) at these times in the {days} days starting on {first}.",
        "Please find and count every slot available at Location/{clinic} ({name}) on a {weekday} before {hour}:00. "
        "Search a period of {days} days, starting on {first}.",
    )
    brief = (
        "Which free slots at {name} (Location/{clinic}) start on a {weekday} before {hour}:00 in the {days} days "
        'starting on {first}, and how many are there? Finish with FINISH([<number>, "<slot id>", ...]), or with '
        "FINISH([0]) if there are none."
    )
    answer_instructions = (
        f"{AT_PLACE}{AVAILABLE}A slot counts if it starts on the named weekday, at any time from 00:00 until just "
        "before the named hour. The named date is the first day of the period. "
        'Finish with FINISH([<number>, "<id>", ...]), the number of these slots followed by their ids in any order, or '
        "with FINISH([0]) if there are none. Change nothing."
    )
    answer = CountedIdsAnswer("Slot")
    strata = ("0",) * 2 + ("1",) + ("2",) * 6 + ("3",) * 6
    sizes: ClassVar = {str(number): (number,) for number in range(4)}
    unit = DAY

    @override
    def draw_scene(self, rng: random.Random, world: World) -> SlotScene:
        ids = IdAllocator(rng, world)
        weekdays = tuple(rng.sample(range(7), 2))
        clinic = joint_clinic(rng, world, ids, 2).model_copy(update={"weekdays": weekdays})
        coming = (clinic.today + timedelta(days=number) for number in range(1, 7 * _WEEKS + 1))
        days = [day for day in coming if day.weekday() in weekdays]
        groups = [request.matching for request in place_requests(clinic)]
        return self.slot_scene(ids, world, clinic, lambda: scattered(rng, days, groups, _FREE, _TAKEN))

    @override
    def requests(self, clinic: Clinic) -> Iterator[MorningRequest]:
        for place_request in place_requests(clinic):
            for weekday in clinic.weekdays:
                for hour in _HOURS:
                    yield MorningRequest(
                        matching=place_request.matching,
                        failing_one=place_request.failing_one,
                        place=place_request.place,
                        weekday=weekday,
                        hour=hour,
                    )

    @override
    def times(self, slots: SlotSet, request: MorningRequest) -> tuple[list[int], list[str], list[list[int]]]:
        # The weekday and the hour are conditions too.
        times: list[int] = []
        ids: list[str] = []
        failing_one: list[list[int]] = [[], [], [], []]
        matching, weekday, end = request.matching, request.weekday - _THURSDAY, request.hour * 4
        for day, (quarter, schedule, status), id in slots.timed:
            elsewhere, other_day = schedule not in matching, (day - weekday) % 7 != 0
            if elsewhere and other_day:
                continue
            taken, late = status != "free", quarter % DAY >= end
            lacking = taken + elsewhere + other_day + late
            if not lacking:
                times.append(day)
                ids.append(id)
            elif lacking == 1:
                failing_one[elsewhere + 2 * other_day + 3 * late].append(day)
        return times, ids, failing_one

    @override
    def counts(self, request: MorningRequest, start: str) -> bool:
        moment = parse_instant(start)
        return moment.weekday() == request.weekday and moment.hour < request.hour

    @override
    def prompt_values(self, p: OpenSlotsParams[MorningRequest], world: World) -> dict[str, str]:
        first, end = (date.fromisoformat(moment[:10]) for moment in (p.start, p.end))
        return {
            **super().prompt_values(p, world),
            "weekday": WEEKDAYS[p.request.weekday],
            "hour": str(p.request.hour),
            "days": str((end - first).days),
            "first": first.isoformat(),
        }

    @override
    def query(self, p: OpenSlotsParams[MorningRequest]) -> Query:
        # No search parameter selects a weekday.
        return {"schedule.actor": p.request.place.reference, "start": [f"ge{p.start[:10]}", f"lt{p.end[:10]}"]}


TASKS = (WeekdayMornings,)
