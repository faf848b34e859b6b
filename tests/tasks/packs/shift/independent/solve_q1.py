"""Solver of Q1 (bookings): it reads the whole calendar of the place once, and books in its own copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from .calendar import Wishes, actors, id_order, is_blocked, is_coming, specialties, takes_part
from .desk import Desk, Patients, Prompt, Record, Send, Writing, find, finish, first_match, instant, ref, who

_REQUESTS = [
    ("book", r"(?P<service>.+?): (?P<name>.+), (?P<born>\S+), needs an appointment\.(?P<wishes>.*)"),
    ("book", r"(?P<name>.+), born (?P<born>\S+), would like an appointment in (?P<service>[^.]+)\.(?P<wishes>.*)"),
    (
        "book",
        r"Please find a time in (?P<service>[^.]+?) for (?P<name>.+) \(date of birth (?P<born>\S+)\)\.(?P<wishes>.*)",
    ),
]


@dataclass
class _Calendar:
    """Schedules, slots, practitioners and appointments of a place."""

    desk: Desk
    now: datetime
    place: Record
    schedules: dict[str, Record]
    slots: list[Record]
    practitioners: dict[str, Record]
    appointments: list[Record] = field(default_factory=list)

    @classmethod
    def read(cls, desk: Desk, prompt: Prompt) -> _Calendar:
        name = find(r"All requests are for (.+) \(a Location\)", prompt.rules)
        (place,) = [it for it in desk.search(f"Location?name:exact={name}") if it["name"] == name]
        schedules = {ref(it): it for it in desk.search(f"Schedule?actor={ref(place)}")}
        slots = desk.search_for(f"Slot?start=gt{prompt.now:%Y-%m-%dT%H:%M:%SZ}&schedule=", schedules)
        people = {actor.partition("/")[2] for it in schedules.values() for actor in actors(it, "Practitioner")}
        practitioners = {ref(it): it for it in desk.search_for("Practitioner?_id=", people)}
        return cls(desk, prompt.now, place, schedules, slots, practitioners)

    def schedule(self, slot: Record) -> Record:
        return self.schedules[slot["schedule"]["reference"]]

    def practitioner(self, slot: Record) -> Record:
        return self.practitioners[actors(self.schedule(slot), "Practitioner")[0]]

    def has_appointment(self, patient: Record, service: str) -> bool:
        slots = {ref(slot) for slot in self.slots if service in specialties(self.schedule(slot))}
        return any(
            is_coming(it, self.now) and takes_part(it, patient) and {s["reference"] for s in it.get("slot", [])} & slots
            for it in self.appointments
        )

    def find(self, patient: Record, service: str, wishes: Wishes) -> Record | None:
        fitting = [
            slot
            for slot in self.slots
            if slot["status"] == "free"
            and instant(slot["start"]) > self.now
            and service in specialties(self.schedule(slot))
            and wishes.meet(slot, self.practitioner(slot))
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


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    requests = [(letter, first_match(_REQUESTS, request)[1]) for letter, request in prompt.requests]
    patients = Patients(desk, {asked["name"] for _, asked in requests})
    calendar = _Calendar.read(desk, prompt)
    calendar.appointments = desk.search_for(
        "Appointment?patient=", patients.ids((asked["name"], asked["born"]) for _, asked in requests)
    )
    outcomes = []
    for letter, asked in requests:
        found = patients.find(asked["name"], asked["born"])
        outcomes.append((letter, who(found) or _handle(calendar, found[0], asked)))
    desk.commit()
    return finish(outcomes)


def _handle(calendar: _Calendar, patient: Record, asked: dict[str, str]) -> str:
    if calendar.has_appointment(patient, asked["service"]):
        return "already done"
    slot = calendar.find(patient, asked["service"], Wishes.of(asked["wishes"]))
    if slot is None:
        return "no free time"
    calendar.book(patient, slot)
    return "done"
