"""A solver of the ends of contracts with insurers that knows the prompt and the server's responses only.

It reads everything about the places first, plans all requests, and writes one transaction for each of them.
"""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

from tests.tasks.packs.shift.shift_requests import Record, actors, path, read_pages, send

WORDINGS = (
    r"(?P<insurer>.+?) ends its contract with (?P<place>.+?); the last day is (?P<day>\S{10})\. Please update .+",
    r"The contract of (?P<place>.+?) with (?P<insurer>.+?) ends on (?P<day>\S{10})\. Please bring .+",
    r"End of contract: (?P<insurer>.+?) with (?P<place>.+?), last day (?P<day>\S{10})\.",
)
LOOKUPS = ("Coverage?beneficiary", "Account?subject", "Appointment?actor", "Task?subject")
AT_ONCE = 40


@dataclass(frozen=True)
class EndingHabits:
    """Errors that the solver makes on purpose; the default makes none."""

    ignore_contracts: bool = False
    ignore_coverage_status: bool = False
    ignore_coverage_days: bool = False
    ignore_other_coverage: bool = False
    count_self_pay: bool = False
    hold_all_accounts: bool = False
    ignore_appointment_status: bool = False
    ignore_appointment_days: bool = False
    any_appointment: bool = False
    ignore_open_tasks: bool = False
    no_tasks: bool = False
    no_accounts: bool = False
    only_first_request: bool = False
    decline_everything: bool = False


@dataclass
class Desk:
    """The records as the solver knows them, with its own changes."""

    habits: EndingHabits
    records: dict[str, Record] = field(default_factory=dict)

    def of_type(self, kind: str) -> list[Record]:
        """Return the records of one type."""
        return [one for one in self.records.values() if one["resourceType"] == kind]

    def end(self, place: str, insurer: str, day: str) -> Iterator[Record]:
        """End a contract: yield the records that change and the new tasks; nothing if there is no contract."""
        contracts = [
            one
            for one in self.of_type("OrganizationAffiliation")
            if (one["organization"]["reference"], one["participatingOrganization"]["reference"]) == (insurer, place)
            and one["active"]
            and on(one, day)
            and on(one, tomorrow(day))
        ]
        if not contracts and not self.habits.ignore_contracts:
            return
        yield from (ended(one, day) for one in contracts)
        coverages = [*self._coverages(place, insurer, day)]
        yield from coverages
        changed = {path(one) for one in coverages}
        after = {path(one): one for one in (*self.of_type("Coverage"), *coverages)}
        for patient in dict.fromkeys(one["beneficiary"]["reference"] for one in coverages):
            own = [one for one in after.values() if one["beneficiary"]["reference"] == patient]
            if self.habits.ignore_other_coverage or not any(self._insures(one, tomorrow(day)) for one in own):
                yield from self._for_uninsured(patient, day, changed)

    def _coverages(self, place: str, insurer: str, day: str) -> Iterator[Record]:
        here = {path(one) for one in self.of_type("Patient") if one["managingOrganization"]["reference"] == place}
        for one in self.of_type("Coverage"):
            if one["payor"][0]["reference"] != insurer or one["beneficiary"]["reference"] not in here:
                continue
            if one["status"] != "active" and not self.habits.ignore_coverage_status:
                continue
            if one["period"]["start"] > day and not self.habits.ignore_coverage_days:
                yield {**one, "status": "cancelled"}
            elif self.habits.ignore_coverage_days or (on(one, day) and on(one, tomorrow(day))):
                yield ended(one, day)

    def _insures(self, coverage: Record, day: str) -> bool:
        self_pay = coverage["payor"][0]["reference"].startswith("Patient/") and not self.habits.count_self_pay
        return coverage["status"] == "active" and not self_pay and on(coverage, day)

    def _for_uninsured(self, patient: str, day: str, changed: set[str]) -> Iterator[Record]:
        for one in self.of_type("Account"):
            listed = {part["coverage"]["reference"] for part in one["coverage"]}
            concerned = one["status"] == "active" and (self.habits.hold_all_accounts or listed & changed)
            if one["subject"][0]["reference"] == patient and concerned and not self.habits.no_accounts:
                yield {**one, "status": "on-hold"}
        tasks = [one for one in self.of_type("Task") if one["for"]["reference"] == patient]
        waiting = {"requested", "accepted", "in-progress"} & {
            one["status"] for one in tasks if one["code"]["text"] == "Check insurance"
        }
        visits = sorted(
            (one["start"], one["id"]) for one in self.of_type("Appointment") if self._comes(one, patient, day)
        )
        if visits and (not waiting or self.habits.ignore_open_tasks) and not self.habits.no_tasks:
            place = -1 if self.habits.any_appointment else 0
            yield {
                "resourceType": "Task",
                "status": "requested",
                "intent": "order",
                "code": {"text": "Check insurance"},
                "description": "The insurance ends.",
                "focus": {"reference": f"Appointment/{visits[place][1]}", "type": "Appointment"},
                "for": {"reference": patient, "display": "the patient"},
            }

    def _comes(self, visit: Record, patient: str, day: str) -> bool:
        return (
            patient in actors(visit, "Patient")
            and (visit["status"] in ("booked", "pending") or self.habits.ignore_appointment_status)
            and (visit["start"][:10] > day or self.habits.ignore_appointment_days)
        )


def on(record: Record, day: str) -> bool:
    """Return whether the period of a record includes a day."""
    return bool(record["period"]["start"] <= day <= record["period"].get("end", "9999"))


def tomorrow(day: str) -> str:
    """Return the next day."""
    return str(date.fromisoformat(day) + timedelta(days=1))


def ended(record: Record, day: str) -> Record:
    """Return a record whose period ends on a day."""
    return {**record, "period": {**record["period"], "end": day}}


def end_contracts(prompt: str, habits: EndingHabits | None = None) -> Generator[str, str, None]:
    """Solve the requests of a prompt."""
    habits = habits or EndingHabits()
    desk, ids, outcomes = Desk(habits), dict[str, str](), []
    requests = [parsed(text) for text in re.findall(r"^[A-Z]\. (.+)$", prompt, re.MULTILINE)]
    for request in requests:
        for name in (request["place"], request["insurer"]):
            if name not in ids:
                found = yield from read_pages("/Organization?_count=200&name=" + quoted(name))
                ids[name] = next(path(one) for one in found if one["name"] == name)
    for place in dict.fromkeys(request["place"] for request in requests):
        yield from read_place(ids[place], desk)
    for number, request in enumerate(requests):
        found = []
        if not habits.decline_everything and (number == 0 or not habits.only_first_request):
            found = [*desk.end(ids[request["place"]], ids[request["insurer"]], request["day"])]
        entries: list[Any] = []
        for count, one in enumerate(found):
            desk.records[path(one) if "id" in one else f"Task/new-{number}-{count}"] = one
            method = {"method": "PUT", "url": path(one)} if "id" in one else {"method": "POST", "url": "Task"}
            entries.append({"resource": one, "request": method})
        if entries:
            yield from send("POST", "/", {"resourceType": "Bundle", "type": "transaction", "entry": entries})
        outcomes.append(f'"{"ABC"[number]}: {"done" if entries else "nothing to do"}"')
    yield f"FINISH([{', '.join(outcomes)}])"


def parsed(text: str) -> dict[str, str]:
    """Read a request in any of the wordings."""
    found = next(found for wording in WORDINGS if (found := re.fullmatch(wording, text)))
    return found.groupdict()


def quoted(name: str) -> str:
    """Return a name for a URL."""
    return name.replace(" ", "%20").replace("'", "%27")


def read_place(place: str, desk: Desk) -> Generator[str, str, None]:
    """Read the contracts and patients of a place, and the records of the patients."""
    contracts = yield from read_pages(f"/OrganizationAffiliation?participating-organization={place}&_count=200")
    patients = yield from read_pages(f"/Patient?organization={place}&_count=200")
    desk.records |= {path(one): one for one in (*contracts, *patients)}
    names = [path(one) for one in patients]
    for first in range(0, len(names), AT_ONCE):
        for lookup in LOOKUPS:
            found = yield from read_pages(f"/{lookup}={','.join(names[first : first + AT_ONCE])}&_count=200")
            desk.records |= {path(one): one for one in found}
