"""Task 12d: the available slots before an hour on one day of the week, for some weeks."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta

from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import CountedIds
from fhir_gym.tasks.appointment.openings import AT_PLACE, QUARTER, Window, draw_openings, new_clinic, quarter_hours
from fhir_gym.tasks.appointment.slot_search import FindOpenings, OpeningsParams, Query
from fhir_gym.tasks.clock import WEEKDAYS, at, instant, next_weekday, parse_instant
from fhir_gym.tasks.ids import Ids
from fhir_gym.types import Resource

__all__ = ["TASKS", "WeekdayMornings", "WeekdayMorningsParams"]


class WeekdayMorningsParams(OpeningsParams):
    """Values of task 12d.

    Attributes:
        weekday: Day of the week, Monday being 0.
        hour: The hour before which slots count.
        days: For how many days from tomorrow on.
        first: Date of the first of those days.
        last: Date of the last one.
    """

    weekday: int
    hour: int
    days: int
    first: str
    last: str


class WeekdayMornings(FindOpenings[WeekdayMorningsParams]):
    """List and count the slots of a clinic before an hour on one day of the week, over some weeks.

    Starting state: two providers with a schedule each at a clinic, and up to eight free slots at such times, often the
        last one before the hour on the first and the last such day; none in about a quarter of the variations.
    Decoys: free slots at the hour and after it on such days, before it on other days of the week, before it on the
        first such day after that time, which often is the day after, and on the last one before it, which is today
        where today is one; taken or withdrawn ones; a free one at another place whose name starts with the clinic's.
    Checks: the number of those slots; their ids, in any order; if there are none, a request would have shown one, had
        there been one.
    Light: none.
    Differs from FHIR-AgentEval: every moment before the hour counts and the hour itself does not, where the check took
        from nine to the hour; the number counts too; blanks do not matter; to say "none" without a look fails.
    """

    key = "12d"
    title = "Slots on weekday mornings"
    difficulty = 3
    prompts = (
        "Which slots are available at {name} (Location/{clinic}) on a {weekday} before {hour}:00 within the next "
        "{days} days, and how many are they?",
        "A patient is free on {weekday}s until {hour}:00. List and count all available slots at {name}, "
        "Location/{clinic}, that suit in the next {days} days.",
        "For the next {days} days, find and count every available slot of Location/{clinic} ({name}) that starts on "
        "any {weekday} before {hour}:00.",
    )
    ending = (
        f"{AT_PLACE}A slot is available if its status is free. It counts if it starts on such a day at 00:00 or later, "
        "and before that hour. The days are those from tomorrow to the date that many days after today, both included; "
        'today is not. Finish with FINISH([<number>, "<id>", ...]), the number of all such slots and then their ids in '
        "any order, or with FINISH([0]) if there are none. Change nothing."
    )
    answer = CountedIds("Slot")

    def sample(self, rng: random.Random, world: World) -> WeekdayMorningsParams:
        """Draw the clinic, the days, the hour, and slots."""
        ids = Ids(rng, world, 50)
        places, diaries = new_clinic(rng, world, ids, 2)
        weekday, hour = rng.randrange(7), rng.randrange(9, 17)
        today, first = world.now.date(), next_weekday(world.now, weekday)
        ahead = (first - today).days
        # Half of the times the last day is such a weekday, or the day after it is.
        days = rng.choice((rng.randrange(14, 61), 7 * rng.randrange(2, 8) + ahead - rng.randrange(2)))
        dates = [first + timedelta(weeks=n) for n in range((days - ahead) // 7 + 1)]
        schedules = [diary.id for diary in diaries]
        window = _window(rng, dates, hour)
        return WeekdayMorningsParams(
            now=instant(world.now),
            places=places,
            diaries=diaries,
            slots=draw_openings(rng, ids, window, schedules[:-1], schedules[-1:]),
            weekday=weekday,
            hour=hour,
            days=days,
            first=(today + timedelta(days=1)).isoformat(),
            last=(today + timedelta(days=days)).isoformat(),
        )

    def words(self, p: WeekdayMorningsParams, world: World) -> dict[str, str]:
        """The clinic, the day, the hour and for how long."""
        when = {"weekday": WEEKDAYS[p.weekday], "hour": str(p.hour), "days": str(p.days)}
        return {**super().words(p, world), **when}

    def query(self, p: WeekdayMorningsParams) -> Query:
        """The place and the days; a search cannot tell weekdays."""
        return {"schedule.actor": p.place.reference, "start": [f"ge{p.first}", f"le{p.last}"]}

    def keeps(self, p: WeekdayMorningsParams, found: Resource) -> bool:
        """Whether it starts on such a weekday, before the hour."""
        start = parse_instant(found["start"])
        return start.weekday() == p.weekday and start.hour < p.hour


def _window(rng: random.Random, dates: list[date], hour: int) -> Window:
    """Mornings of the dates; times that are too late, too far or on other days."""

    def morning(day: date) -> list[datetime]:
        return quarter_hours(at(day, 0), at(day, hour))

    after, before = dates[-1] + timedelta(weeks=1), dates[0] - timedelta(weeks=1)
    others = [rng.choice(dates) + timedelta(days=shift) for shift in rng.sample((-2, -1, 1, 2, 3), 2)]
    return Window(
        edges=tuple(dict.fromkeys(at(day, hour) - QUARTER for day in (dates[0], dates[-1]))),
        inside=[moment for day in dates for moment in morning(day)],
        outside=(
            at(dates[0], hour),
            at(dates[-1], hour),
            at(rng.choice(dates), hour) + QUARTER * rng.randrange(1, 20),
            *(rng.choice(morning(day)) for day in (after, before, *others)),
        ),
    )


TASKS = (WeekdayMornings,)
