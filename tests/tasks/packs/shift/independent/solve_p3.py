"""Solver of P3 (releases under policies): it reads consents, releases and documents once, and decides from its copy."""

from __future__ import annotations

from dataclasses import dataclass

from .desk import (
    Desk,
    Patients,
    Prompt,
    Record,
    Send,
    Writing,
    code,
    codes,
    day,
    days_before,
    find,
    finish,
    first_match,
    instant,
    ref,
    refers,
    who,
)
from .policies import Policies

_REQUESTS = [
    (
        "release",
        r"(?P<site>.+) asks for the (?P<department>.+) documents of (?P<name>.+), born (?P<born>\S+),"
        r" for (?P<purpose>\w+)\.",
    ),
    (
        "release",
        r"Please send (?P<site>.+) what we have from (?P<department>.+) on (?P<name>.+)"
        r" \(date of birth (?P<born>\S+)\)\. It is for (?P<purpose>\w+)\.",
    ),
    (
        "release",
        r"(?P<department>.+) documents for (?P<purpose>\w+), (?P<name>.+), (?P<born>[\d-]+), to (?P<site>.+)\.",
    ),
]
_DEPARTMENT_SYSTEM = "http://snomed.info/sct"
_PURPOSE_SYSTEM = "http://terminology.hl7.org/CodeSystem/v3-ActReason"


def _coded(rules: str, pattern: str) -> dict[str, str]:
    """Return the codes of a list such as "treatment TREAT, payment HPAYMT"."""
    return dict(it.rsplit(" ", 1) for it in find(pattern, rules).split(", "))


@dataclass
class _Office:
    """The records that decide about releases."""

    desk: Desk
    prompt: Prompt
    policies: Policies
    departments: dict[str, str]
    purposes: dict[str, str]
    sites: dict[str, Record]
    releases: list[Record]
    consents: list[Record]
    documents: list[Record]

    @classmethod
    def read(cls, desk: Desk, prompt: Prompt, sites: set[str], ids: list[str]) -> _Office:
        return cls(
            desk,
            prompt,
            Policies(desk, prompt),
            _coded(prompt.rules, r"The departments have these SNOMED CT codes: (.+?)\."),
            _coded(prompt.rules, r"The purposes have these codes of \S+: (.+?)\."),
            {it["name"]: it for it in desk.search_for("Organization?name:exact=", sites)},
            desk.search_for("Communication?subject=", ids),
            desk.search_for("Consent?patient=", ids),
            desk.search_for("DocumentReference?subject=", (f"Patient/{it}" for it in ids)),
        )

    def since(self, number: str) -> str:
        return days_before(self.prompt.today, int(number))


@dataclass
class _Release:
    """One request."""

    office: _Office
    patient: Record
    site: Record
    department: str
    purpose_name: str

    @property
    def purpose(self) -> str:
        return self.office.purposes[self.purpose_name]

    def _says(self, pattern: str) -> str:
        found = self.office.policies.point(self.department, pattern)
        assert found is not None, pattern
        return str(found[0])

    def handle(self) -> str:
        if self._is_done():
            return "already done"
        need = self._says(
            rf"A release for {self.purpose_name} needs (no consent|a consent|an approval that the desk cannot give)\."
        )
        consent = max(filter(self._applies, self.office.consents), key=lambda it: instant(it["dateTime"]), default=None)
        denied = consent is not None and consent["provision"]["type"] == "deny"
        if need.startswith("an approval") or denied or (need == "a consent" and consent is None):
            return "not allowed"
        documents = self._documents()
        if not documents:
            return "nothing to do"
        self._release(documents)
        return "done"

    def _is_done(self) -> bool:
        first = self.office.since(self._says(r"A release is not repeated within (\d+) days\."))
        return any(
            refers(it["subject"], self.patient)
            and any(self._is_department(category) for category in it.get("category", []))
            and any(refers(recipient, self.site) for recipient in it.get("recipient", []))
            and it["status"] in {"completed", "in-progress"}
            and day(it["sent"]) >= first
            for it in self.office.releases
        )

    def _is_department(self, concept: Record) -> bool:
        return self.office.departments[self.department] in codes(concept)

    def _applies(self, consent: Record) -> bool:
        provision, today = consent["provision"], self.office.prompt.today
        period = provision.get("period", {})
        oldest = self.office.since(self._says(r"A consent counts for (\d+) days after the day of its dateTime\."))
        return (
            refers(consent["patient"], self.patient)
            and consent["status"] == "active"
            and day(period.get("start", today)) <= today <= day(period.get("end", today))
            and self.purpose in {it["code"] for it in provision.get("purpose", [{"code": self.purpose}])}
            and ("actor" not in provision or any(refers(it["reference"], self.site) for it in provision["actor"]))
            and ("code" not in provision or any(map(self._is_department, provision["code"])))
            and (provision["type"] == "deny" or day(consent["dateTime"]) >= oldest)
        )

    def _documents(self) -> list[Record]:
        first = self.office.since(self._says(r"The desk releases documents of the last (\d+) days\."))
        restricted = self._says(r"Restricted documents are (left out|released like others)\.")
        return [
            it
            for it in self.office.documents
            if refers(it["subject"], self.patient)
            and self._is_department(it.get("context", {}).get("practiceSetting"))
            and it["status"] == "current"
            and it.get("docStatus") in {"final", "amended"}
            and first <= day(it["date"])
            and not (restricted == "left out" and any(code(label) == "R" for label in it.get("securityLabel", [])))
        ]

    def _release(self, documents: list[Record]) -> None:
        now = self.office.prompt.now
        department = {"system": _DEPARTMENT_SYSTEM, "code": self.office.departments[self.department]}
        release = {
            "resourceType": "Communication",
            "status": "completed",
            "category": [{"coding": [department]}],
            "subject": {"reference": ref(self.patient)},
            "sent": f"{now:%Y-%m-%d}",
            "recipient": [{"reference": ref(self.site)}],
            "reasonCode": [{"coding": [{"system": _PURPOSE_SYSTEM, "code": self.purpose}]}],
            "payload": [{"contentReference": {"reference": ref(it)}} for it in documents],
        }
        release |= self.office.desk.optional(sent=f"{now:%Y-%m-%dT%H:%M:%SZ}")
        self.office.desk.create(release)
        self.office.releases.append(release)


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    requests = [(letter, first_match(_REQUESTS, request)[1]) for letter, request in prompt.requests]
    patients = Patients(desk, {asked["name"] for _, asked in requests})
    ids = patients.ids((asked["name"], asked["born"]) for _, asked in requests)
    office = _Office.read(desk, prompt, {asked["site"] for _, asked in requests}, ids)
    outcomes = []
    for letter, asked in requests:
        found, site = patients.find(asked["name"], asked["born"]), office.sites[asked["site"]]
        outcome = who(found) or _Release(office, found[0], site, asked["department"], asked["purpose"]).handle()
        outcomes.append((letter, outcome))
    desk.commit()
    return finish(outcomes)
