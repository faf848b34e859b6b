"""What the independent solvers of appointments share: wishes, slots and overlaps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from .desk import Desk, Prompt, Record, day, find, instant, minutes, ref

BLOCKING = frozenset({"booked", "pending", "arrived"})
_GENDERS = {"man": "male", "woman": "female"}
_WISHES = [
    r"The practitioner must be a (?P<gender>man|woman)",
    r"The practitioner must speak (?P<language>.+)",
    r"Only (?P<weekdays>.+) is possible",
    r"It has to be in the (?P<half>morning|afternoon)",
    r"Not before (?P<first>\S+)",
    r"The slot must last at least (?P<least>\d+) minutes",
]


@dataclass(frozen=True)
class Wishes:
    """What a patient asks of a slot and of its practitioner; an empty text is no wish."""

    gender: str = ""
    language: str = ""
    weekdays: str = ""
    half: str = ""
    first: str = ""
    least: str = "0"

    @classmethod
    def of(cls, text: str) -> Wishes:
        """Parse sentences such as "It has to be in the morning. Not before 2023-11-16."."""
        values: dict[str, str] = {}
        for sentence in filter(None, re.split(r"\.\s*", text.strip())):
            values |= next(match.groupdict() for wish in _WISHES if (match := re.fullmatch(wish, sentence)))
        return cls(**values)

    def meet(self, slot: Record, practitioner: Record) -> bool:
        start = instant(slot["start"])
        return (
            self.gender in {"", next(word for word, it in _GENDERS.items() if it == practitioner["gender"])}
            and (not self.language or self.language in languages(practitioner))
            and (not self.weekdays or f"{start:%A}" in self.weekdays.split(" or "))
            and self.half in {"", "morning" if start.hour < 12 else "afternoon"}
            and day(slot["start"]) >= self.first
            and length(slot) >= int(self.least)
        )


def languages(practitioner: Record) -> set[str]:
    return {
        coding.get("display", "") for it in practitioner.get("communication", []) for coding in it.get("coding", [])
    }


def length(record: Record) -> float:
    """Return the minutes of a slot or an appointment."""
    return minutes(instant(record["start"]), instant(record["end"]))


def overlap(resource: Record, other: Record) -> bool:
    return instant(resource["start"]) < instant(other["end"]) and instant(other["start"]) < instant(resource["end"])


def takes_part(appointment: Record, person: Record) -> bool:
    return any(it.get("actor", {}).get("reference") == ref(person) for it in appointment["participant"])


def is_coming(appointment: Record, now: datetime) -> bool:
    return appointment["status"] in {"booked", "pending"} and instant(appointment["start"]) > now


def is_blocked(slot: Record, person: Record, appointments: Iterable[Record], moving: Record | None = None) -> bool:
    """Return whether an appointment of the person, other than the one that moves, overlaps the slot."""
    return any(
        it is not moving and it["status"] in BLOCKING and takes_part(it, person) and overlap(slot, it)
        for it in appointments
    )


def actors(schedule: Record, resource_type: str) -> list[str]:
    """Return the references of a schedule to actors of a type."""
    return [it["reference"] for it in schedule["actor"] if it["reference"].startswith(f"{resource_type}/")]


def specialties(schedule: Record) -> set[str]:
    return {coding.get("display", "") for it in schedule.get("specialty", []) for coding in it.get("coding", [])}


def id_order(record: Record) -> tuple[int, str]:
    """Sort ids as numbers: 9 is lower than 10."""
    return len(record["id"]), record["id"]


@dataclass
class Clinic:
    """The schedules, slots and practitioners of a place, and the appointments of some patients."""

    desk: Desk
    now: datetime
    place: Record
    schedules: dict[str, Record]
    slots: list[Record]
    practitioners: dict[str, Record]
    appointments: list[Record]

    @classmethod
    def read(cls, desk: Desk, prompt: Prompt, patient_ids: Iterable[str]) -> Clinic:
        name = find(r"All requests are for (.+) \(a Location\)", prompt.rules)
        (place,) = [it for it in desk.search(f"Location?name:exact={name}") if it["name"] == name]
        schedules = {ref(it): it for it in desk.search(f"Schedule?actor={ref(place)}")}
        slots = desk.search_for(f"Slot?start=gt{prompt.now:%Y-%m-%dT%H:%M:%SZ}&schedule=", schedules)
        people = {actor.partition("/")[2] for it in schedules.values() for actor in actors(it, "Practitioner")}
        practitioners = {ref(it): it for it in desk.search_for("Practitioner?_id=", people)}
        appointments = desk.search_for("Appointment?patient=", patient_ids)
        return cls(desk, prompt.now, place, schedules, slots, practitioners, appointments)

    def schedule(self, slot: Record) -> Record:
        return self.schedules[slot["schedule"]["reference"]]

    def practitioner(self, slot: Record) -> Record:
        return self.practitioners[actors(self.schedule(slot), "Practitioner")[0]]

    def services(self, appointment: Record) -> set[str]:
        """Return the services of an appointment; none if it is at another place."""
        slots = [self.desk.records[it["reference"]] for it in appointment.get("slot", []) if self._is_known(it)]
        return {it for slot in slots for it in specialties(self.schedule(slot))}

    def _is_known(self, slot_reference: Record) -> bool:
        slot = self.desk.records.get(slot_reference["reference"])
        return slot is not None and slot["schedule"]["reference"] in self.schedules

    def has_appointment(self, patient: Record, service: str) -> bool:
        return any(
            is_coming(it, self.now) and takes_part(it, patient) and service in self.services(it)
            for it in self.appointments
        )

    def find_slot(self, patient: Record, service: str, fits: Callable[[Record, Record], bool]) -> Record | None:
        """Return the first free slot that fits; `fits` gets a slot and its practitioner."""
        fitting = [
            slot
            for slot in self.slots
            if slot["status"] == "free"
            and instant(slot["start"]) > self.now
            and service in specialties(self.schedule(slot))
            and fits(slot, self.practitioner(slot))
            and not is_blocked(slot, patient, self.appointments)
        ]
        return min(fitting, key=self._preference, default=None)

    def _preference(self, slot: Record) -> tuple[datetime, str, tuple[int, str]]:
        return instant(slot["start"]), self.practitioner(slot)["name"][0]["family"], id_order(slot)

    def book(self, patient: Record, slot: Record) -> None:
        participants = [patient, self.practitioner(slot), *self.desk.optional(place=self.place).values()]
        appointment = {
            "resourceType": "Appointment",
            "status": "booked",
            "slot": [{"reference": ref(slot)}],
            "start": slot["start"],
            "end": slot["end"],
            "participant": [{"actor": {"reference": ref(it)}, "status": "accepted"} for it in participants],
        }
        self.desk.create(appointment)
        self.desk.change(slot, status="busy")
        self.appointments.append(appointment)
