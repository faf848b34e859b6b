"""Tasks 12a to 12d: count or list the available slots of a clinic."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from typing import ClassVar

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import WEEKDAYS, IdAllocator, parse_instant
from fhir_gym.tasks.grading import CountAnswer, CountedIdsAnswer, IdSetAnswer
from fhir_gym.tasks.packs.appointment.slot_scenes import (
    AT_PLACE,
    AVAILABLE,
    DAY,
    NEXT_WEEKDAY,
    Clinic,
    SlotDraft,
    SlotScene,
    TimeWindow,
    hours_on,
    joint_clinic,
    scattered,
    taken_status,
)
from fhir_gym.tasks.packs.appointment.slot_search import (
    AtOnePlace,
    FindOpenSlots,
    OpenSlotsParams,
    PlaceRequest,
    Query,
    SlotSet,
    place_requests,
)

_WEEK = 7
_DAYS_IN_A_ROW = 3
_AT_EDGE = 0.5
_HAS_ALL = 0.5
"""Fraction of days for which both places have free slots in both weeks."""
_WEEKS = 8
_HOURS = (11, 14, 17)
_THURSDAY = 3
"""Weekday of the first day of the epoch."""


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
        days = [today + timedelta(days=number) for number in range(1, 6)]
        return lambda: scattered(rng, days, groups, free=9, taken=5)


class SlotsNextWeekday(AtOnePlace[OpenSlotsParams[PlaceRequest]], FindOpenSlots[PlaceRequest]):
    """List the available slots of a clinic on next Monday (or another weekday), or on the Monday after next.

    Starting state: a clinic, and an annex with a name that starts with the clinic's name. Two providers have a schedule
        at both places. On three consecutive days, and a week after each of them, both places have a taken slot and one
        to three free slots, often in the first or last quarter hour of the day; sometimes one place has no free slot.
        In half of the variations no slot matches. The task chooses the place and the day at random.
    Decoys: there are free slots on the neighbouring days, and a week later or earlier (sometimes today). On the day,
        there are taken or withdrawn slots, and free slots at the other place.
    Checks: the answer contains the ids of the slots, in any order. If no slot matches, the agent must have made a
        request that would return a matching slot.
    Light: none.
    Differs from FHIR-AgentEval: "next" is defined, and the whole day counts; the original counted only certain hours
        that its prompt did not name. Blanks in the answer do not matter. Any weekday may have no slot, and an empty
        answer without a search fails.
    """

    key = "12b"
    title = "Slots on the next weekday"
    prompts = (
        "Which slots are available at {name} (Location/{clinic}) {day}?",
        "A patient can only come {day}. Which slots are available on that day at {name} (Location/{clinic})?",
        "Please find every slot available at Location/{clinic} ({name}) {day}.",
    )
    brief = (
        'Which slots are free at {name} (Location/{clinic}) {day} ("next" is the first after today)? Finish with '
        'FINISH(["<slot id>", ...]), or with FINISH([]) if there are none.'
    )
    answer_instructions = (
        f'{AT_PLACE}{AVAILABLE}{NEXT_WEEKDAY}The weekday "after next" is one week later. A slot is on a day if it '
        'starts at any time of that day. Finish with FINISH(["<id>", ...]) '
        "and the ids of all these slots in any order, or with FINISH([]) if there are none. Change nothing."
    )
    answer = IdSetAnswer("Slot")
    strata = ("none", "some")
    unit = DAY

    @override
    def timetable(
        self, rng: random.Random, today: date, groups: Sequence[Sequence[str]]
    ) -> Callable[[], Iterable[SlotDraft]]:
        return lambda: _drafts(rng, today, groups)

    @override
    def offers(self, slots: SlotSet, request: PlaceRequest) -> Iterator[tuple[str, str, TimeWindow]]:
        """Yield days that have a taken slot, a free slot at the other place, and free slots a week later or earlier."""
        times, ids = slots.free(request.matching)
        taken, elsewhere = slots.failing_one(request)
        for day in sorted({*taken}.intersection(elsewhere)):
            if day - _WEEK in times or day + _WEEK in times:
                size = times.count(day)
                window = TimeWindow((day - 1, *[day] * size, day + 1), ((day,),), 1, size)
                yield ("some", ids[times.index(day)], window) if size else ("none", "", window)

    @override
    def prompt_values(self, p: OpenSlotsParams[PlaceRequest], world: World) -> dict[str, str]:
        day = date.fromisoformat(p.start[:10])
        weekday = WEEKDAYS[day.weekday()]
        is_next = (day - p.scene.clinic.today).days <= _WEEK
        return {
            **super().prompt_values(p, world),
            "day": f"next {weekday}" if is_next else f"on the {weekday} after next",
        }

    @override
    def query(self, p: OpenSlotsParams[PlaceRequest]) -> Query:
        return {"schedule.actor": p.request.place.reference, "start": p.start[:10]}


def _drafts(rng: random.Random, today: date, groups: Sequence[Sequence[str]]) -> Iterator[SlotDraft]:
    """Draw a taken slot and some free slots of each group of schedules, on three days and a week after each of them.

    On some days a group has no free slot. If the third day is a week from today, each group also has a free slot today.
    """
    first = rng.randrange(1, _WEEK - _DAYS_IN_A_ROW + 2)
    for ahead in range(first, first + _DAYS_IN_A_ROW):
        without = rng.choice([(week, group) for week in (0, _WEEK) for group in groups])
        has_all = rng.random() < _HAS_ALL
        for week in (0, _WEEK):
            places_and_days = [
                (group, status)
                for group in groups
                for status in ["free"] * _free(rng, has_all or (week, group) != without) + [taken_status(rng)]
            ]
            hours = hours_on(today + timedelta(days=ahead + week))
            for (group, status), quarter in zip(
                places_and_days, _moments(rng, hours, len(places_and_days)), strict=True
            ):
                yield SlotDraft(quarter, rng.choice(group), status)
    if first + _DAYS_IN_A_ROW > _WEEK:
        for group, quarter in zip(groups, rng.sample(hours_on(today), len(groups)), strict=True):
            yield SlotDraft(quarter, rng.choice(group))


def _free(rng: random.Random, any: bool) -> int:
    """Draw the number of free slots on a day: at least one if `any`, otherwise none."""
    return rng.choices((1, 2, 3), (1, 4, 4))[0] if any else 0


def _moments(rng: random.Random, hours: range, number: int) -> list[int]:
    """Draw quarter hours of a day, often including the first or the last quarter hour."""
    drawn = rng.sample(hours, number)
    midnight = hours.start // DAY * DAY
    for edge in (midnight, midnight + DAY - 1):
        if rng.random() < _AT_EDGE:
            drawn[rng.randrange(number)] = edge
    return drawn


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
        days = [today + timedelta(days=ahead + number) for number in range(14)]
        return lambda: scattered(rng, days, groups, free=9, taken=6, edges=0.25)

    @override
    def prompt_values(self, p: OpenSlotsParams[PlaceRequest], world: World) -> dict[str, str]:
        first, end = (date.fromisoformat(moment[:10]) for moment in (p.start, p.end))
        length = (end - first).days
        return {
            **super().prompt_values(p, world),
            "wait": str((first - p.scene.clinic.today).days),
            "days": "1 day" if length == 1 else f"{length} days",
        }


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
        return self.slot_scene(ids, world, clinic, lambda: scattered(rng, days, groups, free=14, taken=6))

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


TASKS = (UrgentSlots, SlotsNextWeekday, FollowUpSlots, WeekdayMornings)
