"""Solver of Q2 (changed appointments): it reads the patients' appointments and all slots of their practitioners."""

from __future__ import annotations

from dataclasses import dataclass

from .appointments import Wishes, actors, id_order, is_blocked, length, takes_part
from .desk import Desk, Patients, Prompt, Record, Send, Writing, day, finish, first_match, full_names, instant, ref, who

_0 = r"(?P<name>.+), born (?P<born>\S+),"
_1 = r"(?P<name>.+) \(date of birth (?P<born>\S+)\)"
_2 = r"(?P<name>.+), (?P<born>\S+), Dr\. (?P<doctor>.+)"
_DOCTOR = r"Dr\. (?P<doctor>.+) on (?P<day>\S+)"
_WISHES = r"(?P<wishes>.*)"
_REQUESTS = [
    ("move", rf"{_0} cannot see {_DOCTOR} at the agreed time\. Please find another one\.{_WISHES}"),
    ("cancel", rf"{_0} cannot see {_DOCTOR}\. Please cancel the appointment\."),
    ("miss", rf"{_0} did not come to {_DOCTOR}\. Please record that\."),
    ("move", rf"Please move the appointment of {_1} with {_DOCTOR}\.{_WISHES}"),
    ("cancel", rf"Please cancel the appointment of {_1} with {_DOCTOR}\."),
    ("miss", rf"Please record that {_1} missed the appointment with {_DOCTOR}\."),
    ("move", rf"New time needed: {_2}, now on (?P<day>[\d-]+)\.{_WISHES}"),
    ("cancel", rf"Cancellation: {_2}, (?P<day>[\d-]+)\."),
    ("miss", rf"Missed: {_2}, (?P<day>[\d-]+)\."),
]
_GOAL = {"cancel": "cancelled", "miss": "noshow", "move": ""}


@dataclass
class _Calendar:
    """The appointments of the patients, and the slots of their practitioners."""

    desk: Desk
    prompt: Prompt
    appointments: list[Record]
    practitioners: list[Record]
    slots: dict[str, list[Record]]

    @classmethod
    def read(cls, desk: Desk, prompt: Prompt, patient_ids: list[str]) -> _Calendar:
        appointments = desk.search_for("Appointment?patient=", patient_ids)
        references = {person["actor"]["reference"] for it in appointments for person in it["participant"]}
        ids = {it.partition("/")[2] for it in references if it.startswith("Practitioner/")}
        practitioners = desk.search_for("Practitioner?_id=", ids)
        owners = {
            ref(schedule): actors(schedule, "Practitioner")[0]
            for schedule in desk.search_for("Schedule?actor=", (f"Practitioner/{it}" for it in ids))
        }
        slots: dict[str, list[Record]] = {owner: [] for owner in owners.values()}
        for slot in desk.search_for("Slot?schedule=", owners):
            slots[owners[slot["schedule"]["reference"]]].append(slot)
        return cls(desk, prompt, appointments, practitioners, slots)

    def find(self, patient: Record, asked: dict[str, str]) -> tuple[Record, Record] | None:
        """Return the appointment of a request and its practitioner."""
        matches = [
            (appointment, doctor)
            for appointment in self.appointments
            for doctor in self.practitioners
            if takes_part(appointment, patient)
            and takes_part(appointment, doctor)
            and asked["doctor"] in full_names(doctor)
            and day(appointment["start"]) == asked["day"]
        ]
        if len(matches) > 1:
            raise ValueError(f"several appointments: {matches}")
        return matches[0] if matches else None

    def slot_of(self, appointment: Record) -> Record:
        return self.desk.records[appointment["slot"][0]["reference"]]

    def move(self, appointment: Record, patient: Record, doctor: Record, wishes: Wishes) -> str:
        old = self.slot_of(appointment)
        fitting = [
            slot
            for slot in self.slots[ref(doctor)]
            if slot["status"] == "free"
            and instant(slot["start"]) > self.prompt.now
            and length(slot) >= length(old)
            and wishes.meet(slot, doctor)
            and not is_blocked(slot, patient, self.appointments, moving=appointment)
        ]
        if not fitting:
            return "no free time"
        new = min(fitting, key=lambda slot: (instant(slot["start"]), id_order(slot)))
        self.desk.change(appointment, slot=[{"reference": ref(new)}], start=new["start"], end=new["end"])
        self.desk.change(new, status="busy")
        self.desk.change(old, status="free")
        return "done"


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    requests = [(letter, *first_match(_REQUESTS, request)) for letter, request in prompt.requests]
    patients = Patients(desk, {asked["name"] for _, _, asked in requests})
    calendar = _Calendar.read(desk, prompt, patients.ids((asked["name"], asked["born"]) for _, _, asked in requests))
    outcomes = []
    for letter, kind, asked in requests:
        found = patients.find(asked["name"], asked["born"])
        outcomes.append((letter, who(found) or _handle(calendar, kind, found[0], asked)))
    desk.commit()
    return finish(outcomes)


def _handle(calendar: _Calendar, kind: str, patient: Record, asked: dict[str, str]) -> str:
    match = calendar.find(patient, asked)
    if match is None:
        return "nothing to do"
    appointment, doctor = match
    if appointment["status"] == _GOAL[kind]:
        return "already done"
    if appointment["status"] not in {"booked", "pending"}:
        return "nothing to do"
    started = instant(appointment["start"]) <= calendar.prompt.now
    if started != (kind == "miss"):
        return "not allowed"
    if kind == "move":
        return calendar.move(appointment, patient, doctor, Wishes.of(asked["wishes"]))
    if kind == "cancel":
        calendar.desk.change(calendar.slot_of(appointment), status="free")
    reason = calendar.desk.optional(cancelationReason={"text": "The patient asked for it."}) if kind == "cancel" else {}
    calendar.desk.change(appointment, status=_GOAL[kind], **reason)
    return "done"
