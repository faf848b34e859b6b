"""A solver of S1 that knows the prompt only: it reads everything first, plans, and writes at the end.

Flaws make it break one rule each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import date, timedelta
from urllib.parse import quote

from tests.tasks.packs.shift.shift_requests import (
    Record,
    actors,
    alphabetical,
    is_named,
    length,
    moment,
    overlaps,
    path,
    read_pages,
    send,
)
from tests.tasks.packs.shift.solvers import TAKING_TIME, Dialogue, transaction

FLAWS = (
    *("priorities ignored", "priority 0 first", "own appointments ignored", "length ignored", "limit ignored"),
    *("any status moves", "both places", "any service", "namesakes too", "own writes forgotten", "first page only"),
    *("free slots left", "old slots left", "old slots freed", "everything waits", "last slot", "first request only"),
)


@dataclass
class Desk:
    prompt: str
    flaw: str = ""
    records: dict[str, Record] = field(default_factory=dict)
    changed: dict[str, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        place = re.search(r"about (.+?) \(a Location\)", self.prompt)
        limit = re.search(r"on (?:the|one of the) next (\d*) ?calendar day", self.prompt)
        assert place and limit
        self.place, self.limit = place[1], 365 if self.flaw == "limit ignored" else int(limit[1] or 1)
        self.lines: list[tuple[str, str]] = re.findall(r"^([A-Z])\. (.+)$", self.prompt, re.MULTILINE)

    def read(self) -> Generator[str, str, None]:
        follow = self.flaw != "first page only"
        places = yield from read_pages(f"Location?name={quote(self.place)}")
        (self.location,) = [path(one) for one in places if one["name"] == self.place]
        found = yield from read_pages(f"Schedule?actor={self.location}&_include=Schedule:actor&_count=100")
        doctors = [path(one) for one in found if one["resourceType"] == "Practitioner"]
        found += yield from read_pages(f"Slot?schedule.actor={self.location}&_count=100", follow=follow)
        found += yield from read_pages(f"Appointment?actor={','.join(doctors)}&_count=100", follow=follow)
        people = {one for record in found for one in actors(record, "Patient")}
        found += yield from read_pages(f"Appointment?patient={','.join(sorted(people))}&_count=100", follow=follow)
        self.records = {path(one): one for one in found}

    def of_type(self, kind: str) -> list[Record]:
        return [record for record in self.records.values() if record["resourceType"] == kind]

    def change(self, record: Record, **values: object) -> None:
        new = self.changed[path(record)] = {**self.changed.get(path(record), record), **values}
        if self.flaw != "own writes forgotten":
            self.records[path(record)] = new

    def handle(self, text: str) -> str:
        name = re.search(r"Dr\. (.+?)(?: is away|, who will|, from|, on)", text)
        days = re.findall(r"\d{4}-\d\d-\d\d", text)
        assert name
        family = name[1].split()[-1] if self.flaw == "namesakes too" else name[1]
        doctors = [one for one in self.of_type("Practitioner") if is_named(one, name[1])]
        if self.flaw == "namesakes too":
            doctors = [one for one in self.of_type("Practitioner") if one["name"][0]["family"].endswith(family)]
        work = [self._clear(path(one), days[0], days[-1]) for one in doctors]
        return "done" if any(work) else "nothing to do"

    def _clear(self, doctor: str, first: str, last: str) -> bool:
        (schedule,) = [one for one in self.of_type("Schedule") if doctor in actors(one, "Practitioner")]
        statuses = ("booked", "pending")
        moving = [
            one
            for one in self.of_type("Appointment")
            if doctor in actors(one, "Practitioner")
            and (self.location in actors(one, "Location") or self.flaw == "both places")
            and (one["status"] in statuses or self.flaw == "any status moves")
            and first <= one["start"][:10] <= last
        ]
        closing = [one for one in self._slots_of([schedule]) if first <= one["start"][:10] <= last]
        closing = [one for one in closing if one["status"] == "free" and self.flaw != "free slots left"]
        for one in sorted(moving, key=self._order):
            self._move(one, doctor, schedule)
        for one in closing:
            self.change(one, status="busy-unavailable")
        return bool(moving or closing)

    def _order(self, appointment: Record) -> tuple[int, str]:
        priority = appointment.get("priority", 0)
        if not priority and not (self.flaw == "priority 0 first" and "priority" in appointment):
            priority = 10
        return 0 if self.flaw == "priorities ignored" else priority, appointment["start"]

    def _slots_of(self, schedules: list[Record]) -> list[Record]:
        names = [path(one) for one in schedules]
        return [one for one in self.of_type("Slot") if one["schedule"]["reference"] in names]

    def _move(self, one: Record, doctor: str, schedule: Record) -> None:
        service = schedule["specialty"]
        others = [other for other in self.of_type("Schedule") if path(other) != path(schedule)]
        others = [other for other in others if other["specialty"] == service or self.flaw == "any service"]
        latest = date.fromisoformat(one["start"][:10]) + timedelta(days=self.limit)
        own = [
            other
            for other in self.of_type("Appointment")
            if {*actors(other, "Patient")} & {*actors(one, "Patient")}
            and path(other) != path(one)
            and other["status"] in TAKING_TIME
            and self.flaw != "own appointments ignored"
        ]
        fitting = [
            slot
            for slot in self._slots_of(others)
            if slot["status"] == "free"
            and one["start"][:10] <= slot["start"][:10] <= latest.isoformat()
            and (length(slot) >= length(one) or self.flaw == "length ignored")
            and not any(overlaps(slot, other) for other in own)
        ]
        fitting.sort(key=self._slot_order, reverse=self.flaw == "last slot")
        if self.flaw != "old slots left":
            status = "free" if self.flaw == "old slots freed" else "busy-unavailable"
            old = one["slot"][0]["reference"]
            if old in self.records:  # slots at other places were not read
                self.change(self.records[old], status=status)
        if not fitting or self.flaw == "everything waits":
            return self.change(one, status="waitlist")
        slot = fitting[0]
        new = self._doctor(slot)
        participants = [
            {**who, "actor": {"reference": path(new)}} if who["actor"]["reference"] == doctor else who
            for who in one["participant"]
        ]
        times = {"start": slot["start"], "end": slot["end"], "slot": [{"reference": path(slot)}]}
        self.change(slot, status="busy")
        return self.change(one, **times, participant=participants)

    def _doctor(self, slot: Record) -> Record:
        return self.records[actors(self.records[slot["schedule"]["reference"]], "Practitioner")[0]]

    def _slot_order(self, slot: Record) -> tuple[object, ...]:
        return moment(slot["start"]), alphabetical(self._doctor(slot)), slot["id"]

    def answer(self) -> str:
        outcomes = []
        for number, (letter, text) in enumerate(self.lines):
            skipped = self.flaw == "first request only" and number
            outcomes.append(f"{letter}: {'done' if skipped else self.handle(text)}")
        return f"FINISH({json.dumps(outcomes)})"


def plan_and_write_at_once(prompt: str, flaw: str = "") -> Dialogue:
    """Write one transaction at the end."""
    desk = Desk(prompt, flaw)
    yield from desk.read()
    answer = desk.answer()
    if desk.changed:
        yield from send("POST", "/", transaction([], desk.changed))
    yield answer


def plan_and_patch(prompt: str) -> Dialogue:
    """Write JSON patches, first of the slots, and from the last one to the first one."""
    desk = Desk(prompt)
    yield from desk.read()
    before = dict(desk.records)
    answer = desk.answer()
    for url, record in sorted(desk.changed.items(), reverse=True):
        names = [name for name in record if record[name] != before[url].get(name)]
        yield from send("PATCH", url, [{"op": "replace", "path": f"/{name}", "value": record[name]} for name in names])
    yield answer
