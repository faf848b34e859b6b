"""Solver of S3 (ending insurance contracts): it reads the charts of all patients of the places at once."""

from __future__ import annotations

from dataclasses import dataclass

from .appointments import id_order, takes_part
from .desk import Desk, Prompt, Record, Send, Writing, day, days_before, finish, first_match, instant, ref, refers

_REQUESTS = [
    (
        "end",
        r"(?P<insurer>.+) ends its contract with (?P<place>.+); the last day is (?P<last>\S+)\."
        r" Please update our records\.",
    ),
    (
        "end",
        r"The contract of (?P<place>.+) with (?P<insurer>.+) ends on (?P<last>\S+)\."
        r" Please bring our records up to date\.",
    ),
    ("end", r"End of contract: (?P<insurer>.+) with (?P<place>.+), last day (?P<last>\S+)\."),
]
_TEXT = "Check insurance"


@dataclass
class _Office:
    """The contracts, and what belongs to the patients of the places."""

    desk: Desk
    now: str
    organizations: dict[str, Record]
    contracts: list[Record]
    patients: dict[str, Record]
    coverages: list[Record]
    accounts: list[Record]
    appointments: list[Record]
    tasks: list[Record]

    @classmethod
    def read(cls, desk: Desk, now: str, requests: list[dict[str, str]]) -> _Office:
        names = {asked[name] for asked in requests for name in ("insurer", "place")}
        organizations = {it["name"]: it for it in desk.search_for("Organization?name:exact=", names)}
        places = {ref(organizations[asked["place"]]) for asked in requests}
        contracts = desk.search_for("OrganizationAffiliation?participating-organization=", places)
        patients = {ref(it): it for it in desk.search_for("Patient?organization=", places)}
        return cls(
            desk,
            now,
            organizations,
            contracts,
            patients,
            desk.search_for("Coverage?beneficiary=", patients),
            desk.search_for("Account?status=active&subject=", patients),
            desk.search_for("Appointment?status=booked,pending&actor=", patients),
            desk.search_for("Task?status=requested,accepted,in-progress&subject=", patients),
        )

    def end(self, asked: dict[str, str]) -> str:
        place, insurer, last = self.organizations[asked["place"]], self.organizations[asked["insurer"]], asked["last"]
        concerned = [
            it
            for it in self.contracts
            if it["active"]
            and refers(it.get("organization"), insurer)
            and refers(it.get("participatingOrganization"), place)
            and _goes_on(it, last)
        ]
        for contract in concerned:
            self._end_period(contract, last)
        if not concerned:
            return "nothing to do"
        changed = self._end_coverages(place, insurer, last)
        for patient in self.patients.values():
            theirs = [it for it in changed if refers(it["beneficiary"], patient)]
            if theirs and not self._is_insured(patient, days_before(last, -1)):
                self._hold_accounts(patient, theirs)
                self._add_task(patient, last)
        return "done"

    def _end_period(self, record: Record, last: str) -> None:
        self.desk.change(record, period=record.get("period", {}) | {"end": last})

    def _end_coverages(self, place: Record, insurer: Record, last: str) -> list[Record]:
        changed = []
        for coverage in self.coverages:
            patient = self.patients[coverage["beneficiary"]["reference"]]
            if not (
                coverage["status"] == "active"
                and refers(patient.get("managingOrganization"), place)
                and any(refers(payor, insurer) for payor in coverage["payor"])
            ):
                continue
            if _goes_on(coverage, last):
                self._end_period(coverage, last)
            elif day(coverage.get("period", {}).get("start", last)) > last:
                self.desk.change(coverage, status="cancelled")
            else:
                continue
            changed.append(coverage)
        return changed

    def _is_insured(self, patient: Record, date: str) -> bool:
        return any(
            it["status"] == "active"
            and refers(it["beneficiary"], patient)
            and any(payor.get("reference", "").startswith("Organization/") for payor in it["payor"])
            and _includes(it, date)
            for it in self.coverages
        )

    def _hold_accounts(self, patient: Record, changed: list[Record]) -> None:
        for account in self.accounts:
            named = [it["coverage"] for it in account.get("coverage", [])]
            is_theirs = any(refers(subject, patient) for subject in account["subject"])
            if account["status"] == "active" and is_theirs and any(refers(it, *changed) for it in named):
                self.desk.change(account, status="on-hold")

    def _add_task(self, patient: Record, last: str) -> None:
        coming = [
            it
            for it in self.appointments
            if it["status"] in {"booked", "pending"} and takes_part(it, patient) and day(it["start"]) > last
        ]
        has_task = any(refers(it.get("for"), patient) and it.get("code", {}).get("text") == _TEXT for it in self.tasks)
        if not coming or has_task:
            return
        first = min(coming, key=lambda it: (instant(it["start"]), id_order(it)))
        task = {
            "resourceType": "Task",
            "status": "requested",
            "intent": "order",
            "code": {"text": _TEXT},
            "for": {"reference": ref(patient)},
            "focus": {"reference": ref(first)},
            **self.desk.optional(
                description="The contract with the insurer ends.",
                note=[{"text": f"The last day is {last}."}],
                priority="routine",
                authoredOn=self.now,
                lastModified=self.now,
            ),
        }
        self.desk.create(task)
        self.tasks.append(task)


def _includes(record: Record, date: str) -> bool:
    period = record.get("period", {})
    return day(period.get("start", date)) <= date <= day(period.get("end", date))


def _goes_on(record: Record, last: str) -> bool:
    """Return whether a period includes a day and goes on after it."""
    return _includes(record, last) and day(record.get("period", {}).get("end", "9999-12-31")) > last


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    requests = [(letter, first_match(_REQUESTS, request)[1]) for letter, request in prompt.requests]
    office = _Office.read(desk, f"{prompt.now:%Y-%m-%dT%H:%M:%SZ}", [asked for _, asked in requests])
    outcomes = [(letter, office.end(asked)) for letter, asked in requests]
    desk.commit()
    return finish(outcomes)
