"""Solver of S1 (absences): it reads the calendar of the place once, and plans all moves before it writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .appointments import actors, id_order, is_blocked, length, specialties, takes_part
from .desk import (
    Desk,
    Prompt,
    Record,
    Send,
    Writing,
    day,
    days_before,
    find,
    finish,
    first_match,
    full_names,
    instant,
    ref,
)

_DAYS = r"(?:from (?P<first>\S+) to (?P<last>\S+?)|on (?P<only>\S+?))"
_REQUESTS = [
    ("absence", rf"Absence: Dr\. (?P<doctor>.+), {_DAYS}\."),
    ("absence", rf"Dr\. (?P<doctor>.+) is away {_DAYS}\. Please see to the appointments\."),
    ("absence", rf"Please clear the calendar of Dr\. (?P<doctor>.+), who will be absent {_DAYS}\."),
]
_LAST_PRIORITY = 10


@dataclass
class _Calendar:
    """The schedules of a place with their slots and practitioners, and the appointments of the patients concerned."""

    desk: Desk
    place: Record
    later_days: int
    schedules: dict[str, Record]
    slots: list[Record]
    practitioners: dict[str, Record]
    appointments: list[Record]

    @classmethod
    def read(cls, desk: Desk, prompt: Prompt) -> _Calendar:
        name = find(r"All requests are about (.+) \(a Location\)", prompt.rules)
        (place,) = [it for it in desk.search(f"Location?name:exact={name}") if it["name"] == name]
        schedules = {ref(it): it for it in desk.search(f"Schedule?actor={ref(place)}")}
        slots = desk.search_for("Slot?schedule=", schedules)
        people = {actor.partition("/")[2] for it in schedules.values() for actor in actors(it, "Practitioner")}
        practitioners = {ref(it): it for it in desk.search_for("Practitioner?_id=", people)}
        here = desk.search(f"Appointment?actor={ref(place)}")
        patients = {
            it["actor"]["reference"]
            for appointment in here
            for it in appointment["participant"]
            if it.get("actor", {}).get("reference", "").startswith("Patient/")
        }
        appointments = {ref(it): it for it in [*here, *desk.search_for("Appointment?actor=", patients)]}
        number = find(r"on the day of the appointment .+? or on (?:one of the next (\d+)|the next)", prompt.rules)
        return cls(desk, place, int(number or 1), schedules, slots, practitioners, list(appointments.values()))

    def owner(self, slot: Record) -> Record:
        return self.practitioners[actors(self.schedules[slot["schedule"]["reference"]], "Practitioner")[0]]

    def clear(self, absent: Record, first: str, last: str) -> str:
        own = {ref(slot): slot for slot in self.slots if self.owner(slot) is absent}
        services = {it for slot in own.values() for it in self._services(slot)}
        moving = [
            it
            for it in self.appointments
            if it["status"] in {"booked", "pending"}
            and takes_part(it, absent)
            and takes_part(it, self.place)
            and first <= day(it["start"]) <= last
        ]
        free = [it for it in own.values() if it["status"] == "free" and first <= day(it["start"]) <= last]
        for appointment in sorted(moving, key=lambda it: (it.get("priority") or _LAST_PRIORITY, instant(it["start"]))):
            self._move(appointment, absent, services)
        for slot in free:
            self.desk.change(slot, status="busy-unavailable")
        return "done" if moving or free else "nothing to do"

    def _services(self, slot: Record) -> set[str]:
        return specialties(self.schedules[slot["schedule"]["reference"]])

    def _move(self, appointment: Record, absent: Record, services: set[str]) -> None:
        patient = next(
            self.desk.records.get(reference) or {"resourceType": "Patient", "id": reference.partition("/")[2]}
            for it in appointment["participant"]
            if (reference := it["actor"]["reference"]).startswith("Patient/")
        )
        date = day(appointment["start"])
        fitting = [
            slot
            for slot in self.slots
            if slot["status"] == "free"
            and self.owner(slot) is not absent
            and self._services(slot) & services
            and date <= day(slot["start"]) <= days_before(date, -self.later_days)
            and length(slot) >= length(appointment)
            and not is_blocked(slot, patient, self.appointments, moving=appointment)
        ]
        old = self.desk.records[appointment["slot"][0]["reference"]]
        self.desk.change(old, status="busy-unavailable")
        if not fitting:
            self.desk.change(appointment, status="waitlist")
            return
        new = min(fitting, key=self._preference)
        participants = [
            {**it, "actor": {"reference": ref(self.owner(new))}} if it["actor"]["reference"] == ref(absent) else it
            for it in appointment["participant"]
        ]
        self.desk.change(
            appointment, slot=[{"reference": ref(new)}], start=new["start"], end=new["end"], participant=participants
        )
        self.desk.change(new, status="busy")

    def _preference(self, slot: Record) -> tuple[datetime, str, tuple[int, str]]:
        return instant(slot["start"]), self.owner(slot)["name"][0]["family"], id_order(slot)


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    calendar = _Calendar.read(desk, prompt)
    outcomes = []
    for letter, request in prompt.requests:
        asked = first_match(_REQUESTS, request)[1]
        (absent,) = [it for it in calendar.practitioners.values() if asked["doctor"] in full_names(it)]
        first, last = asked["first"] or asked["only"], asked["last"] or asked["only"]
        outcomes.append((letter, calendar.clear(absent, first, last)))
    desk.commit()
    return finish(outcomes)
