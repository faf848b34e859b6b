"""Task 12b: list the available slots of a clinic on a weekday of next week or of the week after next."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import WEEKDAYS
from fhir_gym.tasks.grading import IdSetAnswer
from fhir_gym.tasks.packs.appointment.slot_scenes import (
    AT_PLACE,
    AVAILABLE,
    DAY,
    NEXT_WEEKDAY,
    SlotDraft,
    TimeWindow,
    hours_on,
    taken_status,
)
from fhir_gym.tasks.packs.appointment.slot_search import (
    AtOnePlace,
    FindOpenSlots,
    OpenSlotsParams,
    PlaceRequest,
    Query,
    SlotSet,
)

_WEEK = 7
_DAYS = 3
_AT_EDGE = 0.5
_HAS_ALL = 0.5
"""Fraction of days for which both places have free slots in both weeks."""


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
    first = rng.randrange(1, _WEEK - _DAYS + 2)
    for ahead in range(first, first + _DAYS):
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
    if first + _DAYS > _WEEK:
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


TASKS = (SlotsNextWeekday,)
