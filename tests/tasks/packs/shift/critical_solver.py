"""A solver of P4 that knows the prompt only: it reads everything first, plans, and writes one transaction.

Flaws make it break one rule each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import quote

from tests.tasks.packs.shift.policy_solver import Policies
from tests.tasks.packs.shift.shift_requests import Record, moment, path, read_pages, send
from tests.tasks.packs.shift.solvers import Dialogue, transaction

_POLICY_FLAWS = ("amendments", "departments", "other departments", "replaced", "drafts", "not in force")
FLAWS = (
    *_POLICY_FLAWS,
    *("any status", "units ignored", "everybody adult", "time of the specimen", "similar tests", "all results"),
    *("Tasks ignored", "void Tasks count", "other Tasks count", "on call now", "exchanged duties", "attending"),
    *("no due time", "routine", "first request only", "first page only"),
)
_WHO = {"In adults": "adult", "In children": "child", "At any age": "any"}
_POINTS = {
    "age": r"patients under (\d+) years are children",
    "priority": r"The Task for a critical result has the priority (\w+)\.",
    "minutes": r"The Task is due (\d+) minutes after the result was issued\.",
    **{
        f"{who} {test} {side}": rf"{start}, a {test} {side} ([\d.]+) \S+ is critical\."
        for start, who in _WHO.items()
        for test in ("potassium", "sodium", "glucose", "hemoglobin", "creatinine")
        for side in ("above", "below")
    },
}
_SIMILAR = {
    "2828-2": "potassium",
    "2955-3": "sodium",
    "2350-7": "glucose",
    "4548-4": "hemoglobin",
    "2161-8": "creatinine",
}
_CODES = re.compile(r"  - (\w+): ([\d-]+) in \S+, and ([\d-]+) in [^;\n]+(?:;.*? is ([\d.]+) times)?")


@dataclass
class Desk:
    prompt: str
    flaw: str = ""
    records: dict[str, Record] = field(default_factory=dict)
    tasks: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        place, present = re.search(r"about (.+?) \(an Organ", self.prompt), re.search(r"Present: (\S+),", self.prompt)
        assert place and present
        self.place, self.present = place[1], moment(present[1])
        self.lines: list[tuple[str, str]] = re.findall(r"^([A-Z])\. (.+)$", self.prompt, re.MULTILINE)
        self.tests: dict[str, tuple[str, float]] = {}
        for name, main, other, factor in _CODES.findall(self.prompt):
            self.tests |= {
                main: (name, 1.0),
                other: (name, float(factor or 1) if self.flaw != "units ignored" else 1.0),
            }
        if self.flaw == "similar tests":
            self.tests |= {code: (name, 1.0) for code, name in _SIMILAR.items()}

    def read(self) -> Generator[str, str, None]:
        follow = self.flaw != "first page only"
        found = yield from read_pages(f"Organization?name={quote(self.place)}&_revinclude=Organization:partof")
        (hospital,) = [path(one) for one in found if one["name"] == self.place]
        self.departments = {one["name"]: one for one in found if one.get("partOf", {}).get("reference") == hospital}
        for one in self.departments.values():
            found += yield from read_pages(f"Encounter?service-provider={path(one)}&_include=Encounter:patient")
            found += yield from read_pages(
                f"Observation?encounter.service-provider={path(one)}&_count=20", follow=follow
            )
            found += yield from read_pages(f"PractitionerRole?organization={path(one)}&_count=50")
        patients = [one["id"] for one in found if one["resourceType"] == "Patient"]
        found += yield from read_pages(f"Task?patient={','.join(patients)}&_count=50")
        found += yield from read_pages("DocumentReference?type=policy&category=critical-results&_count=50")
        self.records = {path(one): one for one in found}
        flaw = self.flaw if self.flaw in _POLICY_FLAWS else ""
        self.policies = Policies(self.of_type("DocumentReference"), self.present, _POINTS, flaw)

    def of_type(self, kind: str) -> list[Record]:
        return [one for one in self.records.values() if one["resourceType"] == kind]

    def handle(self, text: str) -> str:
        department = next(one for name, one in self.departments.items() if name in text)
        since = re.search(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d)", text)
        assert since
        values = self.policies.values(department["name"])
        before = len(self.tasks)
        start = moment(f"{since[1]}T{since[2]}:00Z")
        for result in self.of_type("Observation"):
            stay = self.records[result["encounter"]["reference"]]
            if stay["serviceProvider"]["reference"] == path(department) and self._needs_task(result, start, values):
                self.tasks.append(self._task(result, department, values))
        return "done" if len(self.tasks) > before else "nothing to do"

    def _needs_task(self, result: Record, since: datetime, values: dict[str, str]) -> bool:
        told = self.flaw != "Tasks ignored" and any(self._is_about(one, result) for one in self.of_type("Task"))
        return self._is_new(result, since) and self._is_critical(result, values) and not told

    def _is_new(self, result: Record, since: datetime) -> bool:
        time = result["effectiveDateTime" if self.flaw == "time of the specimen" else "issued"]
        counts = result["status"] in ("final", "amended", "corrected") or self.flaw == "any status"
        return counts and (moment(time) > since or self.flaw == "all results")

    def _is_critical(self, result: Record, values: dict[str, str]) -> bool:
        code = result["code"]["coding"][0]["code"]
        if code not in self.tests:
            return False
        name, factor = self.tests[code]
        value = result["valueQuantity"]["value"] * factor
        born = self.records[result["subject"]["reference"]]["birthDate"]
        day = moment(result["issued"]).date().isoformat()
        age = int(day[:4]) - int(born[:4]) - (day[5:] < born[5:])
        child = age < int(values["age"]) and self.flaw != "everybody adult"
        groups = ("any", "child" if child else "adult")
        return any(
            f"{who} {name} {side}" in values and (value > float(values[f"{who} {name} {side}"])) == (side == "above")
            for who in groups
            for side in ("above", "below")
        )

    def _is_about(self, task: Record, result: Record) -> bool:
        code = task["code"]["coding"][0]["code"]
        void = task["status"] in ("cancelled", "rejected", "failed", "entered-in-error")
        return (
            task["focus"]["reference"] == path(result)
            and (code == "critical-result" or self.flaw == "other Tasks count")
            and (not void or self.flaw == "void Tasks count")
        )

    def _on_call(self, department: Record, time: datetime) -> str:
        role = "attending" if self.flaw == "attending" else "on-call"
        return next(
            str(one["practitioner"]["reference"])
            for one in self.of_type("PractitionerRole")
            if one["organization"]["reference"] == path(department)
            and one["code"][0]["coding"][0]["code"] == role
            and (one["active"] or self.flaw == "exchanged duties")
            and moment(one["period"]["start"]) <= time < moment(one["period"]["end"])
        )

    def _task(self, result: Record, department: Record, values: dict[str, str]) -> Record:
        issued = moment(result["issued"])
        due = issued + timedelta(minutes=int(values["minutes"]))
        task: Record = {
            "resourceType": "Task",
            "status": "requested",
            "intent": "order",
            "priority": "routine" if self.flaw == "routine" else values["priority"],
            "code": {"coding": [{"system": "http://example.org/task-codes", "code": "critical-result"}]},
            "description": "Please look at this result",
            "focus": {"reference": path(result)},
            "for": result["subject"],
            "encounter": result["encounter"],
            "authoredOn": self.present.isoformat(),
            "owner": {"reference": self._on_call(department, self.present if self.flaw == "on call now" else issued)},
        }
        if self.flaw != "no due time":
            task["restriction"] = {"period": {"end": due.isoformat()}}
        return task

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
    if desk.tasks:
        yield from send("POST", "/", transaction(desk.tasks, {}))
    yield answer


def write_one_by_one(prompt: str) -> Dialogue:
    """Write the Tasks in reverse order, with ids of the agent's choice."""
    desk = Desk(prompt)
    yield from desk.read()
    answer = desk.answer()
    for number, task in enumerate(reversed(desk.tasks)):
        yield from send("PUT", f"Task/notice-{number}", {**task, "id": f"notice-{number}"})
    yield answer
