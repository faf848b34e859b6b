"""What the reference solutions look up about a place: practitioners, slots and appointments, read as a `Calendar`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fhir_gym.actions import Action, Post
from fhir_gym.tasks.authoring import Concept, Person, instant, parse_instant, reference
from fhir_gym.tasks.packs.shift.calendar import Calendar
from fhir_gym.tasks.packs.shift.clinic import ClinicScene, ClinicSlot, Practitioner, Visit
from fhir_gym.tasks.packs.shift.lookups import is_refused, record_named, search_all, update
from fhir_gym.types import Json, Resource

MOST_BOOKINGS = 5
"""Number of times that a solution tries to book, because others may take the slot first."""


@dataclass(frozen=True, slots=True)
class PlaceRecords:
    """The practitioners with schedules at a place, who do not change.

    Attributes:
        place: Reference to the Location; empty if appointments at any place count.
    """

    place: str
    practitioners: tuple[Practitioner, ...]

    def scene(self, now: datetime, slots: Iterable[Resource], appointments: Iterable[Resource]) -> ClinicScene:
        """Read slots of these practitioners, and appointments, which may also be elsewhere."""
        return ClinicScene(
            now=instant(now),
            place=self.place,
            name="",
            practitioners=self.practitioners,
            people=(),
            slots=tuple(map(_slot, slots)),
            visits=tuple(map(self.visit, appointments)),
        )

    def calendar(self, now: datetime, slots: Iterable[Resource], appointments: Iterable[Resource]) -> Calendar:
        """Return the calendar with some slots and appointments; see `scene`."""
        return Calendar.at_start(self.scene(now, slots, appointments))

    def visit(self, appointment: Resource) -> Visit:
        """Read an appointment; elsewhere, its slot has no schedule."""
        actors = {participant["actor"]["reference"] for participant in appointment["participant"]}
        here = not self.place or self.place in actors
        schedules = (
            practitioner.schedule
            for practitioner in self.practitioners
            if here and f"Practitioner/{practitioner.person.id}" in actors
        )
        return Visit(
            id=appointment["id"],
            patient=next(_id(actor) for actor in sorted(actors) if actor.startswith("Patient/")),
            slot=ClinicSlot(
                id=_id(appointment["slot"][0]["reference"]),
                schedule=next(schedules, ""),
                start=appointment["start"],
                minutes=_minutes(appointment),
                status="busy",
            ),
            status=appointment["status"],
        )

    def booking(self, slot: Resource, patient: str) -> Action:
        """Return the creation of a patient's appointment in a slot."""
        schedule = _id(slot["schedule"]["reference"])
        doctor = next(other.person.id for other in self.practitioners if other.schedule == schedule)
        actors = (reference("Patient", patient), reference("Practitioner", doctor))
        appointment: Resource = {
            "resourceType": "Appointment",
            "status": "booked",
            "start": slot["start"],
            "end": slot["end"],
            "slot": [reference("Slot", slot["id"])],
            "participant": [{"actor": actor, "status": "accepted"} for actor in actors],
        }
        return Post("/Appointment", appointment)


def take_slot(
    query: Mapping[str, str | Sequence[str]], best: Callable[[Sequence[Resource]], ClinicSlot | None]
) -> Generator[Action, Json, Resource | None]:
    """Take the best slot that a query shows; others may take it first, so look again. None if there is none."""
    for _ in range(MOST_BOOKINGS):
        slots = yield from search_all("/Slot", query)
        chosen = best(slots)
        if chosen is None:
            break
        slot = next(slot for slot in slots if slot["id"] == chosen.id)
        taken = yield update(slot, status="busy")
        if not is_refused(taken):
            return slot
    return None


def look_up_place(name: str) -> Generator[Action, Json, PlaceRecords]:
    """Look up a place and the practitioners with schedules there."""
    place = f"Location/{(yield from record_named('Location', name))['id']}"
    resources = yield from search_all("/Schedule", {"actor": place, "_include": "Schedule:actor", "_count": "200"})
    return PlaceRecords(place, practitioners_in(resources))


def practitioners_in(resources: Iterable[Resource]) -> tuple[Practitioner, ...]:
    """Read Practitioners with their Schedules."""
    resources = [*resources]
    doctors = {f"Practitioner/{each['id']}": each for each in resources if each["resourceType"] == "Practitioner"}
    return tuple(
        _practitioner(doctors[actor["reference"]], schedule)
        for schedule in resources
        if schedule["resourceType"] == "Schedule"
        for actor in schedule["actor"]
        if actor["reference"] in doctors
    )


def _practitioner(practitioner: Resource, schedule: Resource) -> Practitioner:
    name, unread = practitioner["name"][0], dict.fromkeys(("birth_date", "phone", "line", "city", "state"), "")
    service = schedule["specialty"][0]["coding"][0]
    return Practitioner(
        person=Person(
            id=practitioner["id"],
            given=" ".join(name["given"]),
            family=name["family"],
            gender=practitioner["gender"],
            **unread,
        ),
        schedule=schedule["id"],
        service=Concept(system=service["system"], code=service["code"], display=service["display"]),
        languages=tuple(spoken["coding"][0]["code"] for spoken in practitioner["communication"]),
    )


def _slot(slot: Resource) -> ClinicSlot:
    schedule = _id(slot["schedule"]["reference"])
    return ClinicSlot(
        id=slot["id"], schedule=schedule, start=slot["start"], minutes=_minutes(slot), status=slot["status"]
    )


def _minutes(record: Resource) -> int:
    return (parse_instant(record["end"]) - parse_instant(record["start"])) // timedelta(minutes=1)


def _id(reference: str) -> str:
    return reference.rpartition("/")[2]
