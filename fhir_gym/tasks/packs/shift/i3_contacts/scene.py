"""Patients who stay in the rooms and beds of a hospital."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import IdAllocator, Person, instant, parse_instant, patient_resource, reference
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.patients import draw_patients
from fhir_gym.types import Json, Resource

HELD = ("in-progress", "finished")
"""Statuses of encounters that take or took place."""
OCCUPIED = ("active", "completed")
"""Statuses of stays that take or took place."""

_VOID = ("cancelled", "planned", "entered-in-error")
_NOT_OCCUPIED = ("planned", "reserved")
_CLASS = {"system": "http://terminology.hl7.org/CodeSystem/v3-ActCode", "code": "IMP", "display": "inpatient encounter"}
_KINDS = {"wa": "Ward", "ro": "Room", "bd": "Bed"}
MINUTES = 5
"""All times are multiples of this number of minutes."""


class Place(Params):
    """A ward, a room or a bed.

    Attributes:
        kind: ``wa``, ``ro`` or ``bd``.
        part_of: Id of the ward or the room of which it is a part; empty for a ward.
    """

    id: str
    kind: str
    name: str
    part_of: str = ""


class Stay(Params):
    """A stay at one place, within an encounter.

    Attributes:
        place: Id of the room or bed.
        status: Status of the stay; see `OCCUPIED`.
        start: Start of the stay (instant, inclusive).
        end: End of the stay (instant, exclusive); empty if the patient is still there.
    """

    place: str
    status: str
    start: str
    end: str


class Visit(Params):
    """An encounter in hospital.

    Attributes:
        patient: Id of the patient.
        status: Status of the encounter; see `HELD`.
    """

    id: str
    patient: str
    status: str
    stays: tuple[Stay, ...]


class WardScene(ShiftScene):
    """Patients who stay in the rooms and beds of a hospital.

    Attributes:
        days: Number of days before the present from which there are encounters.
        people: The patients. Some of them share name and date of birth with another patient.
        hours: Lengths in hours of the windows of questions.
        most_names: Maximum number of names in an answer.
    """

    now: str
    days: int
    places: tuple[Place, ...]
    people: tuple[Person, ...]
    visits: tuple[Visit, ...]
    hours: tuple[int, ...] = (12, 18, 24, 30, 36)
    most_names: int = 4

    @property
    def parents(self) -> dict[str, str]:
        """The id of the place of which each room and bed is a part."""
        return {place.id: place.part_of for place in self.places if place.part_of}

    @property
    def rooms(self) -> dict[str, str]:
        """The id of the room of each room and bed."""
        return {
            place.id: place.id if place.kind == "ro" else place.part_of for place in self.places if place.kind != "wa"
        }

    @override
    def resources(self) -> list[Resource]:
        return [*map(patient_resource, self.people), *map(_location, self.places), *map(visit_resource, self.visits)]


def draw_wards(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    *,
    people: Sequence[int],
    twins: int,
    wards: int,
    rooms: int,
    beds: int,
    days: int,
) -> WardScene:
    """Draw patients whose encounters all come from the same random process."""
    everyone = draw_patients(rng, world, ids, people, twins)
    places = list(_places(rng, ids, wards, rooms, beds))
    drawer = _Drawer(rng, world.now, ids, places, days)
    visits = [visit for person in everyone for visit in drawer.visits(person.id)]
    return WardScene(
        now=instant(world.now),
        days=days,
        places=tuple(rng.sample(places, len(places))),
        people=tuple(everyone),
        visits=tuple(rng.sample(visits, len(visits))),
    )


def _places(rng: random.Random, ids: IdAllocator, wards: int, rooms: int, beds: int) -> Iterator[Place]:
    for ward in rng.sample("ABCDEFGH", wards):
        above = Place(id=ids.new("Location"), kind="wa", name=f"Ward {ward}")
        yield above
        for number in range(1, rooms + 1):
            room = Place(id=ids.new("Location"), kind="ro", name=f"Room {ward}{number}", part_of=above.id)
            yield room
            for bed in range(1, beds + 1):
                yield Place(id=ids.new("Location"), kind="bd", name=f"Bed {ward}{number}-{bed}", part_of=room.id)


class _Drawer:
    def __init__(self, rng: random.Random, now: datetime, ids: IdAllocator, places: Sequence[Place], days: int) -> None:
        self._rng, self._ids, self._days = rng, ids, days
        self._now = now.replace(minute=now.minute - now.minute % MINUTES, second=0, microsecond=0)
        beds = [place for place in places if place.kind == "bd"]
        self._rooms = [place for place in places if place.kind == "ro"]
        self._in_ward = {
            room.part_of: [
                location
                for place in self._rooms
                if place.part_of == room.part_of
                for location in (place, *(bed for bed in beds if bed.part_of == place.id))
            ]
            for room in self._rooms
        }

    def visits(self, patient: str) -> Iterator[Visit]:
        """Yield the encounters of a patient, of which the last may still be in progress."""
        rng = self._rng
        start = self._now - timedelta(days=self._days) + self._some(0, 24 * self._days // 2)
        while start < self._now - timedelta(hours=12):
            stays = list(self._stays(start))
            void = rng.random() < 0.25
            status = rng.choice(_VOID) if void else "finished" if stays[-1].end else "in-progress"
            entries = [*stays, *(self._reserved(stay) for stay in stays if rng.random() < 0.2)]
            yield Visit(
                id=self._ids.new("Encounter"),
                patient=patient,
                status=status,
                stays=tuple(rng.sample(entries, len(entries))),
            )
            if void:
                start += self._some(2, 12)
            elif stays[-1].end:
                start = parse_instant(stays[-1].end) + self._some(4, 60)
            else:
                return

    def _stays(self, start: datetime) -> Iterator[Stay]:
        """Yield stays in the order of time, mostly in one ward; the last one may have no end."""
        rng = self._rng
        ward, room = rng.choice([*self._in_ward]), ""
        for _ in range(rng.randint(2, 4)):
            place = rng.choice(self._in_ward[ward if rng.random() < 0.75 else rng.choice([*self._in_ward])])
            same_room, room = room, place.part_of if place.kind == "bd" else place.id
            if same_room == room and rng.random() < 0.8:
                start -= timedelta(minutes=MINUTES * rng.randint(6, 24))
            end = start + self._some(*rng.choice(((1, 4), (1, 4), (4, 20), (4, 20), (20, 50))))
            if end >= self._now:
                yield Stay(place=place.id, status="active", start=instant(start), end="")
                return
            yield Stay(place=place.id, status="completed", start=instant(start), end=instant(end))
            start = end

    def _reserved(self, stay: Stay) -> Stay:
        """Draw a stay at another place that was only planned, at the same time."""
        rng = self._rng
        place = rng.choice(self._in_ward[rng.choice([*self._in_ward])])
        return stay.model_copy(update={"place": place.id, "status": rng.choice(_NOT_OCCUPIED)})

    def _some(self, fewest: int, most: int) -> timedelta:
        """Draw a length of time between two numbers of hours."""
        steps = 60 // MINUTES
        return timedelta(minutes=MINUTES * self._rng.randint(fewest * steps, most * steps))


def _location(place: Place) -> Resource:
    kind = {
        "system": "http://terminology.hl7.org/CodeSystem/location-physical-type",
        "code": place.kind,
        "display": _KINDS[place.kind],
    }
    return {
        "resourceType": "Location",
        "id": place.id,
        "status": "active",
        "name": place.name,
        "physicalType": {"coding": [kind]},
        **({"partOf": reference("Location", place.part_of)} if place.part_of else {}),
    }


def visit_resource(visit: Visit) -> Resource:
    """Build the Encounter of a visit."""
    ends = [stay.end for stay in visit.stays]
    return {
        "resourceType": "Encounter",
        "id": visit.id,
        "status": visit.status,
        "class": dict(_CLASS),
        "subject": reference("Patient", visit.patient),
        "period": _period(min(stay.start for stay in visit.stays), max(ends) if all(ends) else ""),
        "location": [
            {
                "location": reference("Location", stay.place),
                "status": stay.status,
                "period": _period(stay.start, stay.end),
            }
            for stay in visit.stays
        ],
    }


def _period(start: str, end: str) -> dict[str, Json]:
    return {"start": start, "end": end} if end else {"start": start}


def parse_visit(encounter: Resource) -> Visit:
    """Read the Encounter of a visit."""
    return Visit(
        id=encounter["id"],
        patient=encounter["subject"]["reference"].removeprefix("Patient/"),
        status=encounter["status"],
        stays=tuple(
            Stay(
                place=location["location"]["reference"].removeprefix("Location/"),
                status=location["status"],
                start=instant(parse_instant(location["period"]["start"])),
                end=instant(parse_instant(location["period"]["end"])) if "end" in location["period"] else "",
            )
            for location in encounter["location"]
        ),
    )


def parse_parents(locations: Sequence[Resource]) -> dict[str, str]:
    """Read the id of the place of which each Location is a part."""
    return {
        location["id"]: location["partOf"]["reference"].removeprefix("Location/")
        for location in locations
        if "partOf" in location
    }


def parse_rooms(locations: Sequence[Resource]) -> dict[str, str]:
    """Read the id of the room of each room and bed."""
    parents = parse_parents(locations)
    kinds = {location["id"]: location["physicalType"]["coding"][0]["code"] for location in locations}
    return {id: id if kind == "ro" else parents[id] for id, kind in kinds.items() if kind != "wa"}
