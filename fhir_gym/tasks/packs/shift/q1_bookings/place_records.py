"""What the reference solutions look up about a place: schedules, practitioners, slots and appointments."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from datetime import timedelta

from fhir_gym.actions import Action, Post
from fhir_gym.tasks.authoring import parse_instant, reference
from fhir_gym.tasks.packs.shift.lookups import is_refused, search_all, update
from fhir_gym.tasks.packs.shift.q1_bookings.rules import BookingContent
from fhir_gym.types import Json, Resource

MOST_BOOKINGS = 5
"""Number of times that a solution tries to book, because others may take the slot first."""


@dataclass(frozen=True, slots=True)
class PlaceRecords:
    """A place, its schedules and their practitioners, none of which change.

    Attributes:
        place: Reference to the Location.
        schedules: The schedules by reference.
        practitioners: The practitioners by the reference of their schedule.
    """

    place: str
    schedules: dict[str, Resource]
    practitioners: dict[str, Resource]

    def service_code(self, service: str) -> str:
        """Return the code of the service with a display."""
        codings = (schedule["specialty"][0]["coding"][0] for schedule in self.schedules.values())
        return next(str(coding["code"]) for coding in codings if coding["display"] == service)

    def service_of(self, appointment: Resource) -> str:
        """Return the service of an appointment at the place; an empty text for an appointment elsewhere."""
        actors = {participant["actor"]["reference"] for participant in appointment["participant"]}
        for name, practitioner in self.practitioners.items():
            if f"Practitioner/{practitioner['id']}" in actors and self.place in actors:
                return self._service(name)
        return ""

    def meets(self, ask: BookingContent, slot: Resource) -> bool:
        """Whether a slot is for the requested service and meets every wish."""
        practitioner = self._practitioner(slot)
        spoken = [communication["coding"][0]["code"] for communication in practitioner["communication"]]
        return (
            self._service(slot["schedule"]["reference"]) == ask.service
            and ask.gender in ("", practitioner["gender"])
            and (not ask.language or ask.language in spoken)
            and ask.suits(slot["start"], minutes_of(slot))
        )

    def first(self, slots: Iterable[Resource]) -> Resource:
        """Return the slot that starts first; then the practitioner's family name decides, then the id."""
        return min(slots, key=lambda slot: (slot["start"], self._practitioner(slot)["name"][0]["family"], slot["id"]))

    def book(self, slot: Resource, patient: str) -> Generator[Action, Json, bool]:
        """Book a slot for a patient, and return whether it worked: somebody else may just have taken the slot."""
        taken = yield update(slot, status="busy")
        if is_refused(taken):
            return False
        actors = (patient, f"Practitioner/{self._practitioner(slot)['id']}")
        appointment: Resource = {
            "resourceType": "Appointment",
            "status": "booked",
            "start": slot["start"],
            "end": slot["end"],
            "slot": [reference("Slot", slot["id"])],
            "participant": [{"actor": {"reference": actor}, "status": "accepted"} for actor in actors],
        }
        yield Post("/Appointment", appointment)
        return True

    def _service(self, schedule: str) -> str:
        return str(self.schedules[schedule]["specialty"][0]["coding"][0]["display"])

    def _practitioner(self, slot: Resource) -> Resource:
        return self.practitioners[slot["schedule"]["reference"]]


def look_up_place(name: str) -> Generator[Action, Json, PlaceRecords]:
    """Look up a place, its schedules and their practitioners."""
    places = yield from search_all("/Location", {"name": name})
    place = next(f"Location/{place['id']}" for place in places if place.get("name") == name)
    resources = yield from search_all("/Schedule", {"actor": place, "_include": "Schedule:actor", "_count": "200"})
    practitioners = {
        f"Practitioner/{practitioner['id']}": practitioner
        for practitioner in resources
        if practitioner["resourceType"] == "Practitioner"
    }
    schedules = {
        f"Schedule/{schedule['id']}": schedule for schedule in resources if schedule["resourceType"] == "Schedule"
    }
    by_schedule = {
        name: practitioners[actor["reference"]]
        for name, schedule in schedules.items()
        for actor in schedule["actor"]
        if actor["reference"] in practitioners
    }
    return PlaceRecords(place, schedules, by_schedule)


def minutes_of(slot: Resource) -> int:
    """Return the length of a slot in minutes."""
    return (parse_instant(slot["end"]) - parse_instant(slot["start"])) // timedelta(minutes=1)


def overlaps(slot: Resource, appointments: Iterable[Resource]) -> bool:
    """Whether a slot has some time in common with one of the appointments."""
    return any(
        slot["start"] < appointment["end"] and appointment["start"] < slot["end"] for appointment in appointments
    )
