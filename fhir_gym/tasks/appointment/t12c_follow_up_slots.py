"""Task 12c: slots for a follow-up visit some time from now."""

from __future__ import annotations

import random
from datetime import timedelta

from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import IdSet
from fhir_gym.tasks.appointment.openings import AT_PLACE, QUARTER, Window, draw_openings, new_clinic, quarter_hours
from fhir_gym.tasks.appointment.slot_search import FindOpenings, OpeningsParams, Query
from fhir_gym.tasks.clock import at, instant
from fhir_gym.tasks.ids import Ids

__all__ = ["TASKS", "FollowUpSlots", "FollowUpSlotsParams"]


class FollowUpSlotsParams(OpeningsParams):
    """Values of task 12c.

    Attributes:
        wait: Days from today to the first day of the time.
        days: How many days it has.
        start: First moment that counts, an instant.
        end: First moment after it that does not.
    """

    wait: int
    days: int
    start: str
    end: str


class FollowUpSlots(FindOpenings[FollowUpSlotsParams]):
    """List the slots of a clinic for a follow-up visit, some days long, some time from now.

    Starting state: two providers with a schedule each at a clinic, and up to eight free slots in that time, often at
        its first or last quarter of an hour; none in about a quarter of the variations.
    Decoys: free slots a quarter of an hour before that time and at its end, further off on both sides, and as many
        days long but from now on; taken or withdrawn ones within it; a free one at another place whose name starts
        with the clinic's.
    Checks: the ids of those slots, in any order; if there are none, a request would have shown one, had there been one.
    Light: none.
    Differs from FHIR-AgentEval: the time is stated as a half-open interval of instants; there it began at nine, skipped
        weekends and held its end, none of which the prompt said. To say "none" without a look fails.
    """

    key = "12c"
    title = "Follow-up slots"
    difficulty = 2
    prompts = (
        "A patient needs a follow-up visit in about {wait} days at {name} (Location/{clinic}). Which slots are "
        "available there that start at {start} or later and before {end}?",
        "Find all available slots for a check-up {wait} days from now at Location/{clinic} ({name}); the first "
        "possible start is {start}, and the start must be earlier than {end}.",
        "The follow-up is due {wait} days from now and may take place in a window of {days}, which includes {start} "
        "and does not include {end}. List every slot that is available at {name}, Location/{clinic}, and starts in it.",
    )
    ending = (
        f"{AT_PLACE}A slot is available if its status is free. Every day of the week counts, at every hour. "
        'Finish with FINISH(["<id>", ...]) with the ids of all such slots in any order, or with FINISH([]) if there '
        "are none. Change nothing."
    )
    answer = IdSet("Slot")

    def sample(self, rng: random.Random, world: World) -> FollowUpSlotsParams:
        """Draw the clinic, the time, and slots."""
        ids = Ids(rng, world, 50)
        places, diaries = new_clinic(rng, world, ids, 2)
        wait, length = rng.randrange(7, 91), rng.randrange(1, 8)
        today = at(world.now.date(), 0)
        start = today + timedelta(days=wait)
        end = start + timedelta(days=length)
        hours = quarter_hours(start, end)
        window = Window(
            edges=(start, end - QUARTER),
            inside=hours,
            outside=(
                start - QUARTER,
                end,
                rng.choice(hours) + timedelta(days=length),
                rng.choice(hours) - timedelta(days=length),
                rng.choice(quarter_hours(today + timedelta(days=1), today + timedelta(days=min(wait, length + 1)))),
            ),
        )
        schedules = [diary.id for diary in diaries]
        return FollowUpSlotsParams(
            now=instant(world.now),
            places=places,
            diaries=diaries,
            slots=draw_openings(rng, ids, window, schedules[:-1], schedules[-1:]),
            wait=wait,
            days=length,
            start=instant(start),
            end=instant(end),
        )

    def words(self, p: FollowUpSlotsParams, world: World) -> dict[str, str]:
        """The clinic and the time."""
        days = "1 day" if p.days == 1 else f"{p.days} days"
        return {**super().words(p, world), "wait": str(p.wait), "days": days, "start": p.start, "end": p.end}

    def query(self, p: FollowUpSlotsParams) -> Query:
        """The place and the time."""
        return {"schedule.actor": p.place.reference, "start": [f"ge{p.start}", f"lt{p.end}"]}


TASKS = (FollowUpSlots,)
