"""Solver of Q3 (registrations): it reads persons, parents, cards, insurers and coverages in five searches."""

from __future__ import annotations

from dataclasses import dataclass

from .appointments import id_order
from .desk import (
    Desk,
    Patients,
    Prompt,
    Record,
    Send,
    Writing,
    day,
    find,
    finish,
    first_match,
    full_names,
    ref,
    refers,
    who,
)

_CARD = "http://example.org/health-card"
_RELATIONSHIPS = "http://terminology.hl7.org/CodeSystem/subscriber-relationship"
_PHONE = r"(?P<phone>[\d-]+)(?:, health card (?P<card>\w+))?\."
_OWN = r"number (?P<member>\w+)"
_PERSON_0 = rf"Please register (?P<name>.+) \((?P<gender>\w+)\), born (?P<born>\S+), phone {_PHONE}"
_PERSON_1 = (
    r"(?P<name>.+) would like to become our patient: (?P<gender>\w+), date of birth (?P<born>\S+), phone " + _PHONE
)
_PERSON_2 = rf"Registration: (?P<name>.+), (?P<gender>\w+), (?P<born>[\d-]+), {_PHONE}"
_INSURER = r"(?P<insurer>.+?)"
_PARENT = r"(?P<parent>.+)"
_REQUESTS = [
    ("plain", _PERSON_0),
    ("parent", rf"{_PERSON_0} Insured with {_INSURER} through the \w+, {_PARENT}, born (?P<parent_born>\S+)\."),
    ("own", rf"{_PERSON_0} Own insurance with {_INSURER}, member {_OWN}, valid until (?P<until>\S+)\."),
    ("plain", _PERSON_1),
    (
        "parent",
        rf"{_PERSON_1} The insurer is {_INSURER}, through the \w+: {_PARENT}, date of birth (?P<parent_born>\S+)\.",
    ),
    ("own", rf"{_PERSON_1} The insurer is {_INSURER} \(own insurance, member {_OWN}, last day (?P<until>\S+)\)\."),
    ("plain", _PERSON_2),
    ("parent", rf"{_PERSON_2} Insurance: {_INSURER}, through \w+ {_PARENT}, (?P<parent_born>[\d-]+)\."),
    ("own", rf"{_PERSON_2} Insurance: {_INSURER}, own, {_OWN}, until (?P<until>[\d-]+)\."),
]


@dataclass
class _Office:
    """The records that decide about registrations, with those that requests have made."""

    desk: Desk
    today: str
    patients: list[Record]
    insurers: dict[str, Record]
    accepted: set[str]
    coverages: list[Record]

    @classmethod
    def read(cls, desk: Desk, prompt: Prompt, requests: list[dict[str, str]]) -> _Office:
        people = [asked[name] for asked in requests for name in ("name", "parent") if asked.get(name)]
        cards = {f"{_CARD}|{asked['card']}" for asked in requests if asked["card"]}
        found = Patients(desk, people).all + desk.search_for("Patient?identifier=", cards)
        patients = {ref(it): it for it in found if it.get("active") is not False}
        site = find(r"^- The requests are for (.+) \(an Organization\)", prompt.rules)
        names = {asked["insurer"] for asked in requests if asked.get("insurer")}
        organizations = {it["name"]: it for it in desk.search_for("Organization?name:exact=", names | {site})}
        affiliations = desk.search(f"OrganizationAffiliation?participating-organization={ref(organizations[site])}")
        accepted = {
            it["organization"]["reference"]
            for it in affiliations
            if it["active"] and "organization" in it and _includes(it.get("period", {}), prompt.today)
        }
        parents = {(asked["parent"], asked["parent_born"]) for asked in requests if asked.get("parent")}
        ids = {it["id"] for it in patients.values() for name, date in parents if _is(it, name, date)}
        coverages = desk.search_for("Coverage?beneficiary=", (f"Patient/{it}" for it in ids))
        return cls(desk, prompt.today, list(patients.values()), organizations, accepted, coverages)

    def is_on_file(self, asked: dict[str, str]) -> bool:
        return any(
            _is(patient, asked["name"], asked["born"])
            or (
                asked["card"]
                and any(
                    it.get("system") == _CARD and it.get("value") == asked["card"]
                    for it in patient.get("identifier", [])
                )
            )
            for patient in self.patients
        )

    def parent_coverage(self, parent: Record, insurer: Record) -> Record | None:
        fitting = [
            it
            for it in self.coverages
            if it["status"] == "active"
            and refers(it["beneficiary"], parent)
            and refers(it.get("subscriber"), parent)
            and any(refers(payor, insurer) for payor in it["payor"])
            and _includes(it.get("period", {}), self.today)
        ]
        fitting.sort(key=id_order)
        return max(fitting, key=lambda it: it["period"].get("start", ""), default=None)

    def register(self, asked: dict[str, str]) -> Record:
        given, _, family = asked["name"].partition(" ")
        patient = {
            "resourceType": "Patient",
            "name": [{"given": [given], "family": family}],
            "gender": asked["gender"],
            "birthDate": asked["born"],
            "telecom": [{"system": "phone", "value": asked["phone"]}],
        }
        if asked["card"]:
            patient["identifier"] = [{"system": _CARD, "value": asked["card"]}]
        self.desk.create(patient)
        self.patients.append(patient)
        return patient

    def insure(self, patient: Record, subscriber: Record, insurer: Record, number: str, until: str) -> None:
        coverage = {
            "resourceType": "Coverage",
            "status": "active",
            "beneficiary": {"reference": ref(patient)},
            "subscriber": {"reference": ref(subscriber)},
            "payor": [{"reference": ref(insurer)}],
            "period": {"start": self.today} | ({"end": until} if until else {}),
        }
        if number:
            coverage["subscriberId"] = number
        relationship = {"coding": [{"system": _RELATIONSHIPS, "code": "self" if subscriber is patient else "child"}]}
        coverage |= self.desk.optional(policyHolder=coverage["subscriber"], relationship=relationship)
        self.desk.create(coverage)
        self.coverages.append(coverage)


def _is(patient: Record, name: str, born: str) -> bool:
    return patient.get("birthDate") == born and name in full_names(patient)


def _includes(period: Record, date: str) -> bool:
    return day(period.get("start", date)) <= date <= day(period.get("end", date))


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    requests = [(letter, *first_match(_REQUESTS, request)) for letter, request in prompt.requests]
    office = _Office.read(desk, prompt, [asked for _, _, asked in requests])
    outcomes = [(letter, _handle(office, kind, asked)) for letter, kind, asked in requests]
    desk.commit()
    return finish(outcomes)


def _handle(office: _Office, kind: str, asked: dict[str, str]) -> str:
    if office.is_on_file(asked):
        return "already done"
    if kind == "plain":
        office.register(asked)
        return "done"
    parents = [it for it in office.patients if kind == "parent" and _is(it, asked["parent"], asked["parent_born"])]
    if kind == "parent" and who(parents):
        return who(parents)
    insurer = office.insurers.get(asked["insurer"])
    if insurer is None or ref(insurer) not in office.accepted:
        return "not allowed"
    if kind == "own":
        patient = office.register(asked)
        office.insure(patient, patient, insurer, asked["member"], asked["until"])
        return "done"
    coverage = office.parent_coverage(parents[0], insurer)
    if coverage is None:
        return "not allowed"
    patient = office.register(asked)
    office.insure(patient, parents[0], insurer, coverage.get("subscriberId", ""), coverage["period"].get("end", ""))
    return "done"
