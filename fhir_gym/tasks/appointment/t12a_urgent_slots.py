"""Task 12a: how many slots are available from now until an hour of a coming day."""

from __future__ import annotations

import random
from datetime import timedelta

from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Count
from fhir_gym.tasks.appointment.openings import AT_PLACE, QUARTER, Window, draw_openings, new_clinic, quarter_hours
from fhir_gym.tasks.appointment.slot_search import FindOpenings, OpeningsParams, Query
from fhir_gym.tasks.clock import WEEKDAYS, at, instant, parse_instant
from fhir_gym.tasks.ids import Ids

__all__ = ["TASKS", "UrgentSlots", "UrgentSlotsParams"]


class UrgentSlotsParams(OpeningsParams):
    """Values of task 12a.

    Attributes:
        until: The moment up to which slots count, an instant.
    """

    until: str


class UrgentSlots(FindOpenings[UrgentSlotsParams]):
    """Count the slots of a clinic from now until an hour of a coming day.

    Starting state: two providers with a schedule each at a clinic, and up to eight free slots in that time, often one
        at the present instant or ending at the last; none in about a quarter of the variations.
    Decoys: free slots at the very end of the time, after it, begun and past; taken or withdrawn ones within it; a free
        one at another place whose name starts with the clinic's.
    Checks: the number of slots; a request would have shown one slot more, had there been one, for a number can be
        guessed. The total of a search is as good as its content.
    Light: none.
    Differs from FHIR-AgentEval: the clinic is named, the interval is half open and says so, its start is the frozen
        present; the number does not depend on the weekday of the run; zero is an answer like others.
    """

    key = "12a"
    title = "Count urgent slots"
    difficulty = 2
    prompts = (
        "How many slots are available at {name} (Location/{clinic}) from now until {hour}:00 on {date}, a {weekday}?",
        "A patient needs to be seen urgently at {name}, which is Location/{clinic}. Count the slots that are still "
        "available there from now until {weekday}, {date}, {hour}:00.",
        "Before {hour}:00 on {weekday}, {date}: how many available slots does Location/{clinic} ({name}) have between "
        "now and then?",
    )
    ending = (
        f"{AT_PLACE}A slot is available if its status is free. The time is half open: a slot counts if it starts at "
        "the present instant or later, and before that hour. Finish with FINISH([<number>]), which is FINISH([0]) if "
        "there is none. Change nothing."
    )
    answer = Count()

    def sample(self, rng: random.Random, world: World) -> UrgentSlotsParams:
        """Draw the clinic, the last moment, and slots."""
        ids = Ids(rng, world, 50)
        places, diaries = new_clinic(rng, world, ids, 2)
        now = world.now.replace(microsecond=0)
        until = now
        while until < now + timedelta(days=1):
            until = at((now + timedelta(days=rng.randrange(1, 8))).date(), rng.randrange(24))
        window = Window(
            edges=(now, until - QUARTER),
            inside=quarter_hours(now, until),
            outside=(
                until,
                until + QUARTER * rng.randrange(1, 40),
                now - timedelta(minutes=5),
                now - QUARTER * rng.randrange(8, 90),
            ),
        )
        schedules = [diary.id for diary in diaries]
        slots = draw_openings(rng, ids, window, schedules[:-1], schedules[-1:])
        return UrgentSlotsParams(now=instant(now), places=places, diaries=diaries, slots=slots, until=instant(until))

    def words(self, p: UrgentSlotsParams, world: World) -> dict[str, str]:
        """The clinic and the last moment."""
        weekday = WEEKDAYS[parse_instant(p.until).weekday()]
        return {**super().words(p, world), "date": p.until[:10], "hour": p.until[11:13], "weekday": weekday}

    def query(self, p: UrgentSlotsParams) -> Query:
        """The place and the time."""
        return {"schedule.actor": p.place.reference, "start": [f"ge{p.now}", f"lt{p.until}"]}


TASKS = (UrgentSlots,)
