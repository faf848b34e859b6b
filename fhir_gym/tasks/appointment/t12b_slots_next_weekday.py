"""Task 12b: the available slots of the next such weekday."""

from __future__ import annotations

import random
from datetime import timedelta

from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import IdSet
from fhir_gym.tasks.appointment.openings import (
    AT_PLACE,
    NEXT_WEEKDAY,
    QUARTER,
    Window,
    draw_openings,
    new_clinic,
    quarter_hours,
)
from fhir_gym.tasks.appointment.slot_search import FindOpenings, OpeningsParams, Query
from fhir_gym.tasks.clock import WEEKDAYS, at, instant, next_weekday
from fhir_gym.tasks.ids import Ids

__all__ = ["TASKS", "SlotsNextWeekday", "SlotsNextWeekdayParams"]


class SlotsNextWeekdayParams(OpeningsParams):
    """Values of task 12b.

    Attributes:
        weekday: The day that is asked for, Monday being 0.
        date: Its date.
    """

    weekday: int
    date: str


class SlotsNextWeekday(FindOpenings[SlotsNextWeekdayParams]):
    """List the slots of a clinic on the next such weekday.

    Starting state: two providers with a schedule each at a clinic, and up to eight free slots on that day, often at
        its first or last quarter of an hour; none in about a quarter of the variations.
    Decoys: free slots a quarter of an hour before that day and at its end, a week later and a week earlier, which is
        today where today is such a day; taken or withdrawn ones on that day; a free one at another place whose name
        starts with the clinic's.
    Checks: the ids of those slots, in any order; if there are none, a request would have shown one, had there been one.
    Light: none.
    Differs from FHIR-AgentEval: "next" is defined, and the whole day counts instead of hours that the prompt kept to
        itself; blanks in the answer do not matter; every weekday may have slots or none, and to say "none" without a
        look fails.
    """

    key = "12b"
    title = "Slots on the next weekday"
    difficulty = 2
    prompts = (
        "Which slots are available at {name} (Location/{clinic}) next {weekday}?",
        "A patient can only come next {weekday}. List all slots that are available on that day at {name}, which is "
        "Location/{clinic}.",
        "Find every available slot of Location/{clinic} ({name}) that starts next {weekday}.",
    )
    ending = (
        f"{AT_PLACE}A slot is available if its status is free. {NEXT_WEEKDAY}A slot is on that day if it starts at "
        "00:00 of it or later, and before 00:00 of the day after. "
        'Finish with FINISH(["<id>", ...]) with the ids of all such slots in any order, or with FINISH([]) if there '
        "are none. Change nothing."
    )
    answer = IdSet("Slot")

    def sample(self, rng: random.Random, world: World) -> SlotsNextWeekdayParams:
        """Draw the clinic, the day, and slots."""
        ids = Ids(rng, world, 50)
        places, diaries = new_clinic(rng, world, ids, 2)
        weekday = rng.randrange(7)
        date = next_weekday(world.now, weekday)
        day, week = at(date, 0), timedelta(days=7)
        end, hours = day + timedelta(days=1), quarter_hours(day, day + timedelta(days=1))
        window = Window(
            edges=(day, end - QUARTER),
            inside=hours,
            outside=(day - QUARTER, end, rng.choice(hours) + week, rng.choice(hours) - week),
        )
        schedules = [diary.id for diary in diaries]
        return SlotsNextWeekdayParams(
            now=instant(world.now),
            places=places,
            diaries=diaries,
            slots=draw_openings(rng, ids, window, schedules[:-1], schedules[-1:]),
            weekday=weekday,
            date=date.isoformat(),
        )

    def words(self, p: SlotsNextWeekdayParams, world: World) -> dict[str, str]:
        """The clinic and the day."""
        return {**super().words(p, world), "weekday": WEEKDAYS[p.weekday]}

    def query(self, p: SlotsNextWeekdayParams) -> Query:
        """The place and the date."""
        return {"schedule.actor": p.place.reference, "start": p.date}


TASKS = (SlotsNextWeekday,)
