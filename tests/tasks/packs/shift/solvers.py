"""Two solvers of the shift tasks that know the prompt and the server's responses only: nothing from the pack.

A solver is a generator: it yields actions as text and receives observations as text.
"""

import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any
from urllib.parse import quote

from fhir_gym import Episode, Step
from tests.tasks.packs.shift.shift_requests import (
    COMING,
    Record,
    Request,
    Shift,
    actors,
    alphabetical,
    finish,
    is_named,
    length,
    moment,
    new_appointment,
    offers,
    overlaps,
    path,
    read_pages,
    send,
)

Dialogue = Generator[str, str, None]
Solver = Callable[[str], Dialogue]

TAKING_TIME = (*COMING, "arrived")


def solve(episode: Episode, solver: Solver) -> Step:
    """Let a solver play an episode and return the last step."""
    dialogue = solver(episode.start())
    step = episode.step(next(dialogue))
    while not step.done:
        step = episode.step(dialogue.send(step.observation))
    return step


@dataclass
class Habits:
    """Errors that `plan_then_write` makes on purpose; the default makes none."""

    ignore_wishes: bool = False
    ignore_status: bool = False
    ignore_own_appointments: bool = False
    ignore_own_writes: bool = False
    first_page_only: bool = False
    only_first_request: bool = False
    decline_everything: bool = False


@dataclass
class Calendar:
    """The records that were read, with the changes that are not written yet."""

    shift: Shift
    habits: Habits
    records: dict[str, Record] = field(default_factory=dict)
    changed: dict[str, Record] = field(default_factory=dict)
    created: list[Record] = field(default_factory=list)

    def of_type(self, kind: str) -> list[Record]:
        """Return the records of one type."""
        return [record for record in self.records.values() if record["resourceType"] == kind]

    def change(self, record: Record, **values: Any) -> None:
        """Set elements of a record."""
        new = self.changed[path(record)] = {**record, **values}
        if not self.habits.ignore_own_writes:
            self.records[path(record)] = new

    def handle(self, request: Request) -> str:
        """Decide one request, note its changes, and return its outcome."""
        patients = [p for p in self.of_type("Patient") if p["birthDate"] == request.birth and is_named(p, request.name)]
        if len(patients) != 1:
            return "more than one such patient" if patients else "no such patient"
        patient = path(patients[0])
        own = [a for a in self.of_type("Appointment") if patient in actors(a, "Patient")]
        if request.kind == "book":
            return self._book(request, patient, own)
        return self._treat(request, own)

    def _book(self, request: Request, patient: str, own: list[Record]) -> str:
        for appointment in own:
            coming = appointment["status"] in COMING or self.habits.ignore_status
            if coming and moment(appointment["start"]) > self.shift.present and self._is_same(appointment, request):
                return "already done"
        slot = self._earliest(request, own)
        if slot is None:
            return "no free time"
        appointment = new_appointment(patient, self._doctor(slot), slot)
        self.created.append(appointment)
        if not self.habits.ignore_own_writes:
            self.records[f"Appointment/new-{len(self.created)}"] = {**appointment, "id": f"new-{len(self.created)}"}
        self.change(slot, status="busy")
        return "done"

    def _treat(self, request: Request, own: list[Record]) -> str:
        doctors = {path(p) for p in self.of_type("Practitioner") if is_named(p, request.doctor)}
        meant = [a for a in own if doctors & {*actors(a, "Practitioner")} and starts_on(a, request.day)]
        if not meant:
            return "nothing to do"
        assert len(meant) == 1, f"request {request.letter} may mean {[path(a) for a in meant]}"
        appointment = meant[0]
        decided = decline_change(request, appointment, self.shift.present)
        if decided and not self.habits.ignore_status:
            return decided
        old = self.records[appointment["slot"][0]["reference"]]
        if request.kind == "noshow":
            self.change(appointment, status="noshow")
        elif request.kind == "cancel":
            self.change(appointment, status="cancelled")
            self.change(old, status="free")
        else:
            others = [a for a in own if a is not appointment]
            doctor = actors(appointment, "Practitioner")[0]
            slot = self._earliest(request, others, doctor=doctor, minutes=length(old))
            if slot is None:
                return "no free time"
            self.change(appointment, slot=[{"reference": path(slot)}], start=slot["start"], end=slot["end"])
            self.change(old, status="free")
            self.change(slot, status="busy")
        return "done"

    def _earliest(self, request: Request, own: list[Record], doctor: str = "", minutes: float = 0) -> Record | None:
        """Return the slot to take."""
        taken = [a for a in own if a["status"] in TAKING_TIME] if not self.habits.ignore_own_appointments else []
        fitting = [
            slot
            for slot in self.of_type("Slot")
            if (slot["status"] == "free" or self.habits.ignore_status)
            and moment(slot["start"]) > self.shift.present
            and length(slot) >= minutes
            and (self._doctor(slot) == doctor if doctor else self._is_offered(slot, request))
            and (self._is_wished(slot, request) or self.habits.ignore_wishes)
            and not any(overlaps(slot, appointment) for appointment in taken)
        ]
        return min(fitting, key=self._order, default=None)

    def _order(self, slot: Record) -> tuple[datetime, str, str]:
        return moment(slot["start"]), alphabetical(self._practitioner(slot)), slot["id"]

    def _schedule(self, slot: Record) -> Record:
        return self.records[slot["schedule"]["reference"]]

    def _doctor(self, slot: Record) -> str:
        return actors(self._schedule(slot), "Practitioner")[0]

    def _practitioner(self, slot: Record) -> Record:
        return self.records[self._doctor(slot)]

    def _is_wished(self, slot: Record, request: Request) -> bool:
        return request.wishes.allow_slot(slot) and request.wishes.allow_practitioner(self._practitioner(slot))

    def _is_offered(self, slot: Record, request: Request) -> bool:
        schedule = self._schedule(slot)
        clinic = [path(place) for place in self.of_type("Location") if place["name"] == self.shift.clinic]
        return offers(schedule, request.service) and bool({*clinic} & {*actors(schedule, "Location")})

    def _is_same(self, appointment: Record, request: Request) -> bool:
        return any(self._is_offered(self.records[slot["reference"]], request) for slot in appointment["slot"])


def starts_on(appointment: Record, day: str) -> bool:
    """Return whether an appointment starts on a day."""
    return moment(appointment["start"]).date().isoformat() == day


def decline_change(request: Request, appointment: Record, present: datetime) -> str:
    """Return the outcome of a cancellation, a move or a missed appointment that changes nothing, else ""."""
    status = appointment["status"]
    if status == {"cancel": "cancelled", "noshow": "noshow"}.get(request.kind):
        return "already done"
    if status not in COMING:
        return "nothing to do"
    has_started = moment(appointment["start"]) <= present
    return "" if has_started == (request.kind == "noshow") else "not allowed"


def plan_then_write(prompt: str, habits: Habits | None = None) -> Dialogue:
    """Read everything in two large searches, decide all requests in memory, and write one transaction."""
    shift = Shift.parse(prompt)
    habits = habits or Habits()
    count = "&_count=20" if habits.first_page_only else "&_count=500"
    patients = {request.name.partition(" ")[2] for request in shift.requests}
    booked = "_revinclude=Appointment:patient&_include:iterate=Appointment:slot&_include:iterate=Slot:schedule"
    offered = "_revinclude=Schedule:actor&_include:iterate=Schedule:actor&_revinclude:iterate=Slot:schedule"
    families = {request.doctor.partition(" ")[2] for request in shift.requests}
    place = f"Location?name:exact={quote(shift.clinic)}"
    doctors = f"Practitioner?family={_listed(families)}"
    searches = (
        f"Patient?family={_listed(patients)}&{booked}{count}",
        f"{place if shift.clinic else doctors}&{offered}{count}",
    )
    calendar = Calendar(shift, habits)
    for search in searches:
        for record in (yield from read_pages(search, follow=not habits.first_page_only)):
            calendar.records[path(record)] = record
    outcomes: list[tuple[Request, str]] = []
    for request in shift.requests:
        if habits.only_first_request and outcomes:
            outcomes.append((request, "done"))
            continue
        outcome = calendar.handle(request)
        declines = habits.decline_everything and outcome == "done"
        outcomes.append((request, "no free time" if declines else outcome))
    if (calendar.changed or calendar.created) and not habits.decline_everything:
        yield from send("POST", "/", transaction(calendar.created, calendar.changed))
    yield finish(outcomes)


def _listed(values: set[str]) -> str:
    """Return alternatives for a search parameter."""
    return ",".join(quote(value) for value in sorted(values))


def transaction(created: Iterable[Record], changed: dict[str, Record]) -> Record:
    """Return a transaction Bundle of creations and updates."""
    posts = ({"request": {"method": "POST", "url": record["resourceType"]}, "resource": record} for record in created)
    puts = ({"request": {"method": "PUT", "url": url}, "resource": record} for url, record in changed.items())
    return {"resourceType": "Bundle", "type": "transaction", "entry": [*chain(posts, puts)]}


@dataclass
class Desk:
    """The state of `one_by_one`: it reads what a request needs and writes at once."""

    shift: Shift
    random: random.Random

    def handle(self, request: Request) -> Generator[str, str, str]:
        """Handle one request and return its outcome."""
        given, _, family = request.name.partition(" ")
        url = f"Patient?given={quote(given)}&family={quote(family)}&birthdate={request.birth}"
        found = yield from read_pages(f"{url}&_revinclude=Appointment:patient")
        patients = [r for r in found if r["resourceType"] == "Patient" and is_named(r, request.name)]
        if not patients:
            return "no such patient"
        if len(patients) > 1:
            return "more than one such patient"
        own = [r for r in found if r["resourceType"] == "Appointment" and path(patients[0]) in actors(r, "Patient")]
        if request.kind == "book":
            return (yield from self._book(request, path(patients[0]), own))
        return (yield from self._change(request, own))

    def _book(self, request: Request, patient: str, own: list[Record]) -> Generator[str, str, str]:
        """Book the earliest slot of the practitioners of one service."""
        url = f"Schedule?actor:Location.name:exact={quote(self.shift.clinic)}&_include=Schedule:actor"
        found = yield from read_pages(url)
        people = {path(r): r for r in found if r["resourceType"] == "Practitioner"}
        schedules = [r for r in found if r["resourceType"] == "Schedule" and offers(r, request.service)]
        if not schedules:
            return "no free time"
        coming = [a for a in own if a["status"] in COMING and moment(a["start"]) > self.shift.present]
        if coming:
            references = [r["reference"].removeprefix("Slot/") for a in coming for r in a["slot"]]
            taken = yield from read_pages(f"Slot?_id={','.join(references)}")
            if {slot["schedule"]["reference"] for slot in taken} & {path(schedule) for schedule in schedules}:
                return "already done"
        practitioner = {path(schedule): people[actors(schedule, "Practitioner")[0]] for schedule in schedules}
        wanted = [s for s in practitioner if request.wishes.allow_practitioner(practitioner[s])]
        slots = (yield from self._free_slots(f"schedule={','.join(wanted)}", request, own)) if wanted else []
        if not slots:
            return "no free time"
        first = [s for s in slots if moment(s["start"]) == moment(slots[0]["start"])]
        first.sort(key=lambda s: (alphabetical(practitioner[s["schedule"]["reference"]]), s["id"]))
        body = new_appointment(patient, path(practitioner[first[0]["schedule"]["reference"]]), first[0])
        if self.random.random() < 0.5:
            yield from send("POST", "Appointment", body)
        else:
            name = f"desk-{request.letter.lower()}-{self.random.randrange(10**6)}"
            yield from send("PUT", f"Appointment/{name}", {**body, "id": name})
        yield from self._set_status(path(first[0]), "busy")
        return "done"

    def _change(self, request: Request, own: list[Record]) -> Generator[str, str, str]:
        """Cancel or move an appointment, or record that the patient missed it."""
        given, _, family = request.doctor.partition(" ")
        found = yield from read_pages(f"Practitioner?given={quote(given)}&family={quote(family)}")
        doctors = {path(r) for r in found if is_named(r, request.doctor)}
        meant = [a for a in own if starts_on(a, request.day) and doctors & {*actors(a, "Practitioner")}]
        if not meant:
            return "nothing to do"
        appointment = meant[0]
        if declined := decline_change(request, appointment, self.shift.present):
            return declined
        old = appointment["slot"][0]["reference"]
        if request.kind == "noshow":
            yield from self._set_status(path(appointment), "noshow")
        elif request.kind == "cancel":
            yield from self._set_status(path(appointment), "cancelled")
            yield from self._set_status(old, "free")
        else:
            others = [a for a in own if a["id"] != appointment["id"]]
            doctor = actors(appointment, "Practitioner")[0]
            slots = yield from self._free_slots(f"schedule.actor={doctor}", request, others)
            slots = [slot for slot in slots if length(slot) >= length(appointment)]
            if not slots:
                return "no free time"
            new = {"slot": [{"reference": path(slots[0])}], "start": slots[0]["start"], "end": slots[0]["end"]}
            patch = [{"op": "replace", "path": f"/{name}", "value": value} for name, value in new.items()]
            yield from send("PATCH", path(appointment), patch)
            yield from self._set_status(path(slots[0]), "busy")
            yield from self._set_status(old, "free")
        return "done"

    def _free_slots(self, query: str, request: Request, own: list[Record]) -> Generator[str, str, list[Record]]:
        """Return the free slots that a request allows, earliest first, then in the order of their ids."""
        after = quote(self.shift.present.isoformat())
        slots = yield from read_pages(f"Slot?{query}&status=free&start=gt{after}&_sort=start&_count=200")
        blocked = [a for a in own if a["status"] in TAKING_TIME]
        fitting = [s for s in slots if request.wishes.allow_slot(s) and not any(overlaps(s, a) for a in blocked)]
        return sorted(fitting, key=lambda slot: (moment(slot["start"]), slot["id"]))

    def _set_status(self, url: str, status: str) -> Generator[str, str, None]:
        yield from send("PATCH", url, [{"op": "replace", "path": "/status", "value": status}])


def one_by_one(prompt: str) -> Dialogue:
    """Handle each request with small searches, and write its changes before the next one."""
    shift = Shift.parse(prompt)
    desk = Desk(shift, random.Random(len(prompt)))
    outcomes: list[tuple[Request, str]] = []
    for request in shift.requests:
        outcomes.append((request, (yield from desk.handle(request))))
    yield finish(outcomes)
