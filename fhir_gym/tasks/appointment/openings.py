"""Clinics with slots to look for: places, the diaries of their providers, slots that count and slots that do not."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.appointment.clinic import Opening, location, schedule
from fhir_gym.tasks.bundles import reference
from fhir_gym.tasks.clock import at, instant
from fhir_gym.tasks.concepts import SNOMED, Concept
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, new_person, practitioner
from fhir_gym.types import Resource

__all__ = [
    "AT_PLACE",
    "AVAILABLE",
    "DOCTOR",
    "LANGUAGES",
    "NEXT_WEEKDAY",
    "QUARTER",
    "Diary",
    "Earliest",
    "Openings",
    "Place",
    "Window",
    "clinic_resources",
    "draw_earliest",
    "draw_openings",
    "new_clinic",
    "new_places",
    "quarter_hours",
]

AT_PLACE = "A slot belongs to a place if the place is an actor of the slot's schedule. "
AVAILABLE = "A slot is available if its status is free and it starts at or after the present instant. "
DOCTOR = '"Dr. A B" is the practitioner with given name A and family name B. '
NEXT_WEEKDAY = '"Next" weekday means the first such weekday strictly after today\'s date. '

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
QUARTER = timedelta(minutes=15)
"""How long a slot lasts, and the grid its start is on."""

_GENERAL_PRACTICE = Concept(system=SNOMED, code="394814009", display="General practice")
_NAMES = ("Bayview", "Cedar", "Eastgate", "Harbor", "Lakeside", "Northfield", "Parkway", "Riverside", "Westbrook")
_KINDS = ("Clinic", "Family Practice", "Health Center", "Medical Group")
_TAKEN = ("busy", "busy-unavailable", "busy-tentative", "entered-in-error")
_OPEN, _CLOSED = 7, 19
_MOST, _FEW = 8, 3
_NONE = 0.25


class Place(Params):
    """Where providers work.

    Attributes:
        id: Its id.
        name: Its name.
        city: Its city.
        state: The city's state.
        type: Resource type, ``Location`` or ``HealthcareService``.
    """

    id: str
    name: str
    city: str
    state: str
    type: str = "Location"

    @property
    def reference(self) -> str:
        """Type and id."""
        return f"{self.type}/{self.id}"


class Diary(Params):
    """The schedule of a provider.

    Attributes:
        id: Id of the Schedule.
        provider: Whose it is.
        place: Reference to the place where it is kept; empty if none is named.
        specialties: What it offers.
        languages: Codes of the languages the provider speaks.
    """

    id: str
    provider: Person
    place: str = ""
    specialties: tuple[Concept, ...] = (_GENERAL_PRACTICE,)
    languages: tuple[str, ...] = ("en",)


class Earliest(Params):
    """One slot to find, which is the earliest.

    Attributes:
        target: The earliest slot that is available.
        decoys: Slots that are earlier but not available, or not asked for, or later.
    """

    target: Opening
    decoys: tuple[Opening, ...]


class Openings(Params):
    """Slots to find, or none.

    Attributes:
        right: The slots that are asked for; none in about a quarter of the variations.
        further: One more slot as they are, which is not on file.
        decoys: Slots that miss one condition each.
    """

    right: tuple[Opening, ...]
    further: Opening
    decoys: tuple[Opening, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Moments in and around the time that is asked for.

    Attributes:
        edges: The first and last ones that count.
        inside: Others that count.
        outside: Some that do not, among them the last before and the first after.
    """

    edges: tuple[datetime, ...]
    inside: Sequence[datetime]
    outside: tuple[datetime, ...]


def new_places(rng: random.Random, ids: Ids, city: str, state: str, type: str = "Location") -> tuple[Place, Place]:
    """A place, and another one whose name starts with its name."""
    name = f"{rng.choice(_NAMES)} {rng.choice(_KINDS)}"
    here = Place(id=ids.new(), name=name, city=city, state=state, type=type)
    return here, here.model_copy(update={"id": ids.new(), "name": f"{name} Annex"})


def new_clinic(
    rng: random.Random, world: World, ids: Ids, providers: int
) -> tuple[tuple[Place, Place], tuple[Diary, ...]]:
    """A clinic and its annex, and the diaries of providers at the clinic; the last one is at the annex."""
    people = [new_person(rng, world, ids.new(), resource_type="Practitioner") for _ in range(providers + 1)]
    here, there = new_places(rng, ids, people[0].city, people[0].state)
    places = [here] * providers + [there]
    return (here, there), tuple(
        Diary(id=ids.new(), provider=person, place=place.reference)
        for person, place in zip(people, places, strict=True)
    )


def clinic_resources(places: Iterable[Place], diaries: Sequence[Diary], world: World) -> list[Resource]:
    """Places, practitioners and schedules."""
    providers = {diary.provider.id: _practitioner(diary) for diary in diaries}
    return [*map(_place, places), *providers.values(), *(_schedule(diary, world) for diary in diaries)]


def _place(place: Place) -> Resource:
    if place.type == "Location":
        return location(place.id, place.name, place.city, place.state)
    return {"resourceType": place.type, "id": place.id, "active": True, "name": place.name}


def _practitioner(diary: Diary) -> Resource:
    spoken = [{"system": "urn:ietf:bcp:47", "code": code, "display": LANGUAGES[code]} for code in diary.languages]
    return {**practitioner(diary.provider), "communication": [{"coding": [one]} for one in spoken]}


def _schedule(diary: Diary, world: World) -> Resource:
    place = [{"reference": diary.place}] if diary.place else []
    made = schedule(diary.id, world, reference("Practitioner", diary.provider.id), *place)
    return {**made, "specialty": [one.concept for one in diary.specialties]}


def quarter_hours(start: datetime, end: datetime) -> list[datetime]:
    """The quarter hours of working time from `start` on and before `end`."""
    return [moment for moment in _grid(start, end) if _OPEN <= moment.hour < _CLOSED]


def _grid(start: datetime, end: datetime) -> Iterator[datetime]:
    moment = at(start.date(), start.hour)
    while moment < end:
        if moment >= start:
            yield moment
        moment += QUARTER


def _opening(ids: Ids, schedule_id: str, start: datetime, status: str = "free") -> Opening:
    minutes = int(QUARTER.total_seconds() // 60)
    return Opening(id=ids.new(), schedule=schedule_id, start=instant(start), minutes=minutes, status=status)


def draw_openings(
    rng: random.Random, ids: Ids, window: Window, here: Sequence[str], elsewhere: Sequence[str]
) -> Openings:
    """Draw slots that count and such as miss one condition: they are taken, elsewhere, or at another time.

    Args:
        rng: Source of chance.
        ids: Gives the ids.
        window: The time that is asked for.
        here: Ids of the schedules that count.
        elsewhere: Ids of schedules that do not.
    """
    number = 0 if rng.random() < _NONE else rng.randrange(1, _MOST + 1)
    within = [moment for moment in window.inside if moment not in window.edges]
    inside = rng.sample(within, _MOST + _FEW + len(elsewhere) + 1)
    moments = [*(edge for edge in window.edges if rng.random() < 0.5), *(inside.pop() for _ in range(_MOST))]
    decoys = [
        *(_opening(ids, rng.choice(here), inside.pop(), status) for status in rng.sample(_TAKEN, _FEW)),
        *(_opening(ids, schedule_id, inside.pop()) for schedule_id in elsewhere),
        *(_opening(ids, rng.choice(here), moment) for moment in window.outside),
    ]
    return Openings(
        right=tuple(_opening(ids, rng.choice(here), moment) for moment in moments[:number]),
        further=_opening(ids, rng.choice(here), inside.pop()),
        decoys=tuple(decoys),
    )


def draw_earliest(
    rng: random.Random, ids: Ids, now: datetime, here: Sequence[str], elsewhere: Sequence[str]
) -> Earliest:
    """Draw the earliest of all slots that count, with slots before it that are taken, elsewhere, or over.

    No two slots start together.

    Args:
        rng: Source of chance.
        ids: Gives the ids.
        now: The present.
        here: Ids of the schedules that count.
        elsewhere: Ids of schedules that do not; each has an earlier free slot.
    """
    now = now.replace(second=0, microsecond=0)
    day = (now + timedelta(days=rng.randrange(2, 12))).date()
    first = at(day, rng.randrange(_OPEN, _CLOSED), rng.choice((0, 15, 30, 45)))
    earlier = [first - n * QUARTER for n in rng.sample(range(1, (first - now) // QUARTER), 4 + len(elsewhere))]
    later = [first + n * QUARTER for n in rng.sample(range(1, 300), 4)]
    over = [now - timedelta(minutes=minutes) for minutes in (10, *rng.sample(range(60, 9_000, 30), 2))]
    decoys = [
        *(_opening(ids, rng.choice(here), moment, rng.choice(_TAKEN)) for moment in earlier[len(elsewhere) :]),
        *(_opening(ids, schedule_id, moment) for schedule_id, moment in zip(elsewhere, earlier, strict=False)),
        *(_opening(ids, rng.choice(here), moment) for moment in (*later, *over)),
    ]
    return Earliest(target=_opening(ids, rng.choice(here), first), decoys=tuple(decoys))
