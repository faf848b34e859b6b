"""Reads policies, and solves bookings under policies, from the prompt and the server's responses only.

The solver reads everything first, decides all requests in memory, and writes one transaction.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from urllib.parse import quote
from xml.etree import ElementTree

from tests.tasks.packs.shift.shift_requests import (
    COMING,
    Record,
    Request,
    Shift,
    finish,
    length,
    moment,
    path,
    read_pages,
    send,
)
from tests.tasks.packs.shift.solvers import TAKING_TIME, Calendar, Dialogue, Habits, transaction

_POINTS = {
    "earliest": r"The day of an appointment is at least (\d+) days? after the day on which it is booked\.",
    "latest": r"The day of an appointment is at most (\d+) days after the day on which it is booked\.",
    "weekdays": r"New patients are seen on (\w+ and \w+) only\.",
    "shortest": r"The slot of a new patient lasts at least (\d+) minutes\.",
    "longest": r"The slot of a patient who is not new lasts at most (\d+) minutes\.",
    "weekly": r"A patient has no more than (\d+) appointments? in a week\.",
    "missed": r"A patient is not booked by the desk after missing (\d+) (?:appointment or more|or more appointments)\.",
}
POLICY_FLAWS = (
    "amendments",
    "departments",
    "other departments",
    "replaced",
    "drafts",
    "not in force",
    "policies",
    "new patients",
    "weeks",
    "missed",
)
"""Errors that the solver makes on purpose: what it ignores, or takes for valid."""


def text_of(document: Record) -> str:
    """Return the text of a policy."""
    return "\n".join(one.text or "" for one in ElementTree.fromstring(document["text"]["div"]))


def refers(document: Record, code: str) -> list[str]:
    """Return the references of a policy to others."""
    return [one["target"]["reference"] for one in document.get("relatesTo", []) if one["code"] == code]


@dataclass
class Policies:
    """The policies that were read."""

    documents: list[Record]
    present: datetime
    points: Mapping[str, str]
    flaw: str = ""

    def values(self, department: str) -> dict[str, str]:
        """Return the value of each point for a department."""
        found: dict[str, str] = {}
        for owner in (department, ""):
            if self.flaw == "departments" and owner:
                continue
            for document in self._valid(owner):
                for name, pattern in self.points.items():
                    if match := re.search(pattern, text_of(document)):
                        found.setdefault(name, match[1])
        return found

    def _since(self, document: Record) -> datetime:
        match = re.search(r"In force from (\S+) (\S+) \(UTC\)", text_of(document))
        assert match
        return moment(f"{match[1]}T{match[2]}:00Z")

    def _in_force(self, document: Record) -> bool:
        return (
            (document["status"] == "current" or self.flaw in ("replaced", "drafts"))
            and (document["docStatus"] == "final" or self.flaw == "drafts")
            and (self._since(document) <= self.present or self.flaw == "not in force")
        )

    def _owner(self, document: Record) -> str:
        codings = document.get("context", {}).get("practiceSetting", {}).get("coding", [])
        return codings[0]["display"] if codings else ""

    def _valid(self, owner: str) -> Iterable[Record]:
        """Yield the valid documents of an owner; those that go before others come first."""
        in_force = [one for one in self.documents if self._in_force(one)]
        replaced = {target for one in in_force for target in refers(one, "replaces") if self.flaw != "replaced"}
        standing = [one for one in in_force if path(one) not in replaced]
        whose = [one for one in standing if self._owner(one) == owner or (self.flaw == "other departments" and owner)]
        policies = [path(one) for one in whose if not refers(one, "appends")]
        amendments = [one for one in whose if {*refers(one, "appends")} & {*policies}]
        if self.flaw != "amendments":
            yield from sorted(amendments, key=self._since, reverse=True)
        # An agent that ignores what replaces a policy takes the oldest version.
        yield from sorted((one for one in whose if path(one) in policies), key=self._since)


@dataclass
class PolicyCalendar(Calendar):
    """The records that were read; it books within the limits of the policies."""

    policies: Policies = field(default_factory=lambda: Policies([], datetime.min, _POINTS))
    limits: dict[str, str] = field(default_factory=dict)
    is_new: bool = False
    weeks: list[tuple[int, int]] = field(default_factory=list)

    def _book(self, request: Request, patient: str, own: list[Record]) -> str:
        flaw, present = self.policies.flaw, self.shift.present
        coming = [one for one in own if one["status"] in COMING and moment(one["start"]) > present]
        if not any(self._is_same(one, request) for one in coming):
            self.limits = self.policies.values(request.service) if flaw != "policies" else {}
            missed = sum(one["status"] == "noshow" for one in own)
            if missed >= int(self.limits.get("missed", 99)) and flaw != "missed":
                return "not allowed"
            self.is_new = not any(one["status"] == "fulfilled" and self._is_same(one, request) for one in own)
            counting = [one for one in own if one["status"] in (*TAKING_TIME, "fulfilled")] if flaw != "weeks" else []
            self.weeks = [moment(one["start"]).isocalendar()[:2] for one in counting]
        return super()._book(request, patient, own)

    def _is_wished(self, slot: Record, request: Request) -> bool:
        return super()._is_wished(slot, request) and (not self.limits or self._is_within_limits(slot))

    def _is_within_limits(self, slot: Record) -> bool:
        day, today, minutes = moment(slot["start"]).date(), self.shift.present.date(), length(slot)
        first, last = (today + timedelta(days=int(self.limits[name])) for name in ("earliest", "latest"))
        if self.policies.flaw == "new patients" or not self.is_new:
            fits = minutes <= int(self.limits["longest"])
        else:
            fits = minutes >= int(self.limits["shortest"]) and f"{day:%A}s" in self.limits["weekdays"]
        return fits and first <= day <= last and self.weeks.count(week(day)) < int(self.limits["weekly"])


def week(day: date) -> tuple[int, int]:
    """Return the year and the number of a week."""
    return day.isocalendar()[:2]


def book_under_policies(prompt: str, flaw: str = "") -> Dialogue:
    """Read everything, decide all requests in memory, and write one transaction."""
    shift = Shift.parse(prompt)
    families = ",".join(sorted({quote(one.name.partition(" ")[2]) for one in shift.requests}))
    searches = (
        f"Patient?family={families}&_revinclude=Appointment:patient&_include:iterate=Appointment:slot"
        "&_include:iterate=Slot:schedule&_count=500",
        f"Location?name:exact={quote(shift.clinic)}&_revinclude=Schedule:actor&_include:iterate=Schedule:actor"
        "&_revinclude:iterate=Slot:schedule&_count=500",
        "DocumentReference?category=booking&_count=7",
    )
    records: dict[str, Record] = {}
    for search in searches:
        for record in (yield from read_pages(search)):
            records[path(record)] = record
    documents = [one for one in records.values() if one["resourceType"] == "DocumentReference"]
    policies = Policies(documents, shift.present, _POINTS, flaw)
    calendar = PolicyCalendar(shift, Habits(), records, policies=policies)
    outcomes = [(request, calendar.handle(request)) for request in shift.requests]
    if calendar.created:
        yield from send("POST", "/", transaction(calendar.created, calendar.changed))
    yield finish(outcomes)
