"""Draw and build the places, schedules and slots for tasks that search for slots, and choose time windows for prompts.

Times are whole numbers of days or quarter hours. `matching` contains the times of all slots that meet every condition;
`failing_one` contains, for each condition, the times of the slots that fail only this condition. For each condition, a
window must contain a slot that fails only this condition; and there must be matching slots before and after the window.
An agent that ignores a condition, or that searches outside the window, then gets a wrong answer.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import (
    SNOMED,
    WEEKDAYS,
    Concept,
    IdAllocator,
    Person,
    instant,
    new_person,
    parse_instant,
    practitioner_resource,
    reference,
)
from fhir_gym.tasks.packs.appointment.clinic import SlotRecord, location_resource, schedule_resource
from fhir_gym.types import Resource

NEVER = 1 << 40
"""A time after all slots; if it is the last time in `matching`, windows may have no end."""

Times = Sequence[int]


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A set of windows that all contain the same slots of `matching`.

    Attributes:
        matching: Sorted times of the slots that meet all conditions.
        failing_one: For each condition, the sorted times of the slots that fail only this condition.
        first: Index in `matching` of the first slot in the window.
        size: Number of slots of `matching` in the window.
    """

    matching: Times
    failing_one: Sequence[Times]
    first: int
    size: int

    def bounds(self, rng: random.Random) -> tuple[int, int]:
        """Draw the start (inclusive) and the end (exclusive) of one of the windows."""
        after, before = self.matching[self.first - 1], self.matching[self.first + self.size]
        within = list(self.matching[self.first : self.first + self.size])
        for times in self.failing_one:
            within.append(times[rng.randrange(bisect_right(times, after), bisect_left(times, before))])
        return rng.randrange(after + 1, min(within) + 1), rng.randrange(max(within) + 1, before + 1)


def time_windows(matching: Times, failing_one: Sequence[Times], sizes: Iterable[int]) -> Iterator[TimeWindow]:
    """Yield all windows of the given sizes in which every condition matters.

    Args:
        matching: Sorted times of the slots that meet all conditions.
        failing_one: For each condition, the sorted times of the slots that fail only this condition.
        sizes: Allowed numbers of slots of `matching` in a window.
    """
    for size in sizes:
        for first in range(1, len(matching) - size):
            after, before = matching[first - 1], matching[first + size]
            if size and not (after < matching[first] and matching[first + size - 1] < before):
                continue
            for times in failing_one:
                if bisect_right(times, after) >= bisect_left(times, before):
                    break
            else:
                yield TimeWindow(matching, failing_one, first, size)


AT_PLACE = "A slot is at a place if the place is an actor of the slot's schedule. "
AVAILABLE = "A slot is available if its status is free. "
BOTH_NAMES = "Both names must match exactly; other practitioners may have similar names. "
DOCTOR = '"Dr. A B" is the practitioner with given name A and family name B. '
NEXT_WEEKDAY = 'A "next" weekday is the first such day after today; today itself does not count. '

LANGUAGES = {
    "ar": "Arabic",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "hi": "Hindi",
    "pt": "Portuguese",
    "vi": "Vietnamese",
    "zh": "Chinese",
}
_MINUTES = 15
"""Length of a slot in minutes; every slot starts at a full quarter hour."""
DAY = 24 * 60 // _MINUTES
"""Number of quarter hours in a day."""

_GENERAL_PRACTICE = Concept(system=SNOMED, code="394814009", display="General practice")
_NAMES = ("Bayview", "Cedar", "Eastgate", "Harbor", "Lakeside", "Northfield", "Parkway", "Riverside", "Westbrook")
_KINDS = ("Clinic", "Family Practice", "Health Center", "Medical Group")
_TAKEN = ("busy", "busy-unavailable", "busy-tentative", "entered-in-error")
_OPEN, _CLOSED = 7 * 4, 19 * 4
_EARLY_FIRST = 0.8
"""Probability that a taken slot comes before the free slots of its day."""
_EPOCH = date(1970, 1, 1)


class Place(Params):
    """A place where providers work.

    Attributes:
        id: Id of the resource.
        state: State of the city.
        type: ``Location`` or ``HealthcareService``.
    """

    id: str
    name: str
    city: str
    state: str
    type: str = "Location"

    @property
    def reference(self) -> str:
        """Relative reference, such as ``Location/12``."""
        return f"{self.type}/{self.id}"


class ProviderSchedule(Params):
    """The schedule of a provider.

    Attributes:
        place: Reference to the place of the schedule; empty if the schedule has no place.
        also_at: Reference to a second place; empty if the schedule has no second place.
        languages: Codes of the languages that the provider speaks.
    """

    id: str
    provider: Person
    place: str = ""
    also_at: str = ""
    specialties: tuple[Concept, ...] = (_GENERAL_PRACTICE,)
    languages: tuple[str, ...] = ("en",)


class Clinic(Params):
    """Places and schedules.

    Attributes:
        schedules: Schedules of the providers.
        today: Current date.
        weekdays: Weekdays that have slots (Monday is 0); empty if every weekday may have slots.
    """

    places: tuple[Place, ...]
    schedules: tuple[ProviderSchedule, ...]
    today: date
    weekdays: tuple[int, ...] = ()


class SlotScene(Params):
    """The records that a task adds for a search for slots.

    Attributes:
        clinic: Places and schedules.
        slots: All slots; each starts at a different time.
        spare: An id that none of the slots has.
    """

    clinic: Clinic
    slots: tuple[SlotRecord, ...]
    spare: str


class SlotDraft(NamedTuple):
    """A slot that has no id yet.

    Attributes:
        quarter: Start in quarter hours since the epoch.
        schedule: Id of the schedule.
    """

    quarter: int
    schedule: str
    status: str = "free"


def new_places(
    rng: random.Random, ids: IdAllocator, city: str, state: str, type: str = "Location"
) -> tuple[Place, Place]:
    """Draw two places; the name of the second place starts with the whole name of the first."""
    name = f"{rng.choice(_NAMES)} {rng.choice(_KINDS)}"
    here = Place(id=ids.new(type), name=name, city=city, state=state, type=type)
    return here, here.model_copy(update={"id": ids.new(type), "name": f"{name} Annex"})


def joint_clinic(rng: random.Random, world: World, ids: IdAllocator, providers: int) -> Clinic:
    """Draw a clinic, its annex, and providers who each have one schedule at the clinic and one at the annex."""
    people = [new_person(rng, world, ids.new("Practitioner"), resource_type="Practitioner") for _ in range(providers)]
    places = new_places(rng, ids, people[0].city, people[0].state)
    schedules = (
        ProviderSchedule(id=ids.new("Schedule"), provider=person, place=place.reference)
        for place in places
        for person in people
    )
    return Clinic(places=places, schedules=tuple(schedules), today=world.now.date())


def clinic_resources(places: Iterable[Place], schedules: Sequence[ProviderSchedule], world: World) -> list[Resource]:
    """Build the resources of places, practitioners and schedules."""
    providers = {schedule.provider.id: _practitioner(schedule) for schedule in schedules}
    return [*map(_place, places), *providers.values(), *(_schedule(schedule, world) for schedule in schedules)]


def _place(place: Place) -> Resource:
    if place.type == "Location":
        return location_resource(place.id, place.name, place.city, place.state)
    return {"resourceType": place.type, "id": place.id, "active": True, "name": place.name}


def _practitioner(schedule: ProviderSchedule) -> Resource:
    spoken = [{"system": "urn:ietf:bcp:47", "code": code, "display": LANGUAGES[code]} for code in schedule.languages]
    return {
        **practitioner_resource(schedule.provider),
        "communication": [{"coding": [language]} for language in spoken],
    }


def _schedule(schedule: ProviderSchedule, world: World) -> Resource:
    places = [{"reference": place} for place in (schedule.place, schedule.also_at) if place]
    resource = schedule_resource(schedule.id, world, reference("Practitioner", schedule.provider.id), *places)
    return {**resource, "specialty": [specialty.concept for specialty in schedule.specialties]}


def quarter_of(moment: datetime) -> int:
    """Convert a time to quarter hours since the epoch, rounded down."""
    return int(moment.timestamp()) // (_MINUTES * 60)


def at_quarter(quarter: int) -> datetime:
    """Return the time at which a quarter hour starts, given as quarter hours since the epoch."""
    return datetime.fromtimestamp(quarter * _MINUTES * 60, UTC)


def hours_on(day: date) -> range:
    """Return the quarter hours of a day in which the clinic is open."""
    midnight = (day - _EPOCH).days * DAY
    return range(midnight + _OPEN, midnight + _CLOSED)


def in_words(moment: str) -> str:
    """Return an instant as prompts write it, such as ``10:15 on Monday, 2023-11-13``."""
    return f"{moment[11:16]} on {WEEKDAYS[parse_instant(moment).weekday()]}, {moment[:10]}"


def taken_status(rng: random.Random) -> str:
    """Draw the status of a slot that is not available."""
    return rng.choice(_TAKEN)


def consulting_hours(
    rng: random.Random, today: date, groups: Sequence[Sequence[str]], days: Sequence[int]
) -> Iterator[SlotDraft]:
    """Draw slots on several days; each group of schedules has its own hours, which are the same every day.

    A group has one free slot on most days. On the first days, it also has a taken slot, usually before the free slot.
    On later days, taken slots are rare.

    Args:
        rng: Random generator.
        today: Current date; all slots are on later days.
        groups: Ids of the schedules of each group.
        days: Number of days on which each group has slots.
    """
    most = max(days)
    ahead = sorted(rng.sample(range(1, most + most // 2 + 1), most))
    places = rng.sample(range(len(groups)), len(groups))
    for number, wait in enumerate(ahead):
        hours = hours_on(today + timedelta(days=wait))
        length = len(hours) // len(groups)
        for place, group, lasting in zip(places, groups, days, strict=True):
            if number >= lasting:
                continue
            (free,) = rng.choices((0, 1, 2), (1, 14, 1))
            taken = int(rng.random() < 2 - 3 * number / most)
            quarters = rng.sample(hours[place * length : (place + 1) * length], free + taken)
            if rng.random() < _EARLY_FIRST:
                quarters.sort()
            for rank, quarter in enumerate(quarters):
                yield SlotDraft(quarter, rng.choice(group), taken_status(rng) if rank < taken else "free")


def scattered(
    rng: random.Random, days: Iterable[date], groups: Sequence[Sequence[str]], free: int, taken: int, edges: float = 0.0
) -> Iterator[SlotDraft]:
    """Draw slots on some days; no two slots start at the same time.

    Args:
        rng: Random generator.
        days: The days.
        groups: Ids of the schedules of each group.
        free: Number of free slots of each group.
        taken: Number of taken slots of each group.
        edges: Fraction of slots that are in the first or the last quarter hour of a day.
    """
    hours = [*map(hours_on, days)]
    bounds = [edge for hour in hours for edge in (hour.start - _OPEN, hour.start - _OPEN + DAY - 1)]
    size = len(groups) * (free + taken)
    at_edges = min(round(size * edges), len(bounds))
    moments = [*rng.sample(bounds, at_edges), *rng.sample([q for hour in hours for q in hour], size - at_edges)]
    rng.shuffle(moments)
    for group in groups:
        for number in range(free + taken):
            yield SlotDraft(moments.pop(), rng.choice(group), "free" if number < free else taken_status(rng))


def slot_record(id: str, draft: SlotDraft) -> SlotRecord:
    """Convert a draft to a slot record with an id."""
    start = instant(at_quarter(draft.quarter))
    return SlotRecord(id=id, schedule=draft.schedule, start=start, minutes=_MINUTES, status=draft.status)
