"""A solver of P3 that knows the prompt only: it reads everything first, plans, and writes one transaction.

Flaws make it break one rule each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from fhir_gym import Episode, Step
from fhir_gym.actions import Finish, Get, Post
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.playing import answer_of
from tests.tasks.packs.shift.policy_solver import Policies

FLAWS = (
    *("no consents", "first consent", "any consent status", "any period", "any purpose", "any actor", "any code"),
    *("old consents", "refusals only if needed", "any document status", "any text status", "any department"),
    *("old documents", "restricted documents", "no repeats", "own releases forgotten", "any release status"),
    *("any recipient", "old releases", "releases of any department"),
    *("amendments", "departments", "replaced", "drafts", "not in force"),
)
_POLICY_FLAWS = FLAWS[-5:]
_POINTS = {
    "treatment": r"A release for treatment needs ([^.]+)\.",
    "payment": r"A release for payment needs ([^.]+)\.",
    "research": r"A release for research needs ([^.]+)\.",
    "consent": r"A consent counts for (\d+) days after the day of its dateTime\.",
    "span": r"The desk releases documents of the last (\d+) days\.",
    "restricted": r"Restricted documents are ([^.]+)\.",
    "repeat": r"A release is not repeated within (\d+) days\.",
}
_BORN = r"(?P<born>\d{4}-\d\d-\d\d)"
_REQUESTS = (
    rf"([A-Z])\. (?P<to>.+) asks for the (?P<department>.+) documents of (?P<name>.+), born {_BORN}, "
    r"for (?P<purpose>\w+)\.",
    rf"([A-Z])\. Please send (?P<to>.+) what we have from (?P<department>.+) on (?P<name>.+) "
    rf"\(date of birth {_BORN}\)\. It is for (?P<purpose>\w+)\.",
    rf"([A-Z])\. (?P<department>.+) documents for (?P<purpose>\w+), (?P<name>.+), {_BORN}, to (?P<to>.+)\.",
)
_TYPES = ("Communication", "Consent", "DocumentReference")
_SYSTEM = "http://terminology.hl7.org/CodeSystem/v3-ActReason"


@dataclass
class Solver:
    prompt: str
    flaw: str = ""
    people: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    charts: dict[str, list[Resource]] = field(default_factory=dict)
    organizations: dict[str, str] = field(default_factory=dict)
    documents: list[Resource] = field(default_factory=list)
    written: list[Resource] = field(default_factory=list)

    def __post_init__(self) -> None:
        lines = self.prompt.splitlines()
        self.now = datetime.fromisoformat(re.findall(r"Present: (\S+),", self.prompt)[0])
        self.requests = [found for line in lines for one in _REQUESTS if (found := re.fullmatch(one, line))]
        listed = re.findall(r"The departments have these SNOMED CT codes: ([^.]+)\.", self.prompt)[0]
        self.codes = {name: code for name, code in (one.rsplit(" ", 1) for one in listed.split(", "))}
        self.purposes = {name: code for name, code in re.findall(r"(treatment|payment|research) ([A-Z]+)", self.prompt)}

    def solve(self, episode: Episode) -> Step:
        """Play an episode; `written` then has the releases, and `answers` the outcomes."""
        self.documents = self.search(episode, "/DocumentReference?type=policy&category=release&_count=100")
        for request in self.requests:
            who = (request["name"], request["born"])
            if who not in self.people:
                self.people[who] = self.find(episode, *who)
                for patient in self.people[who] if len(self.people[who]) == 1 else ():
                    self.charts[patient] = self.read(episode, patient)
            if request["to"] not in self.organizations:
                (found,) = self.search(episode, f"/Organization?name:exact={request['to'].replace(' ', '%20')}")
                self.organizations[request["to"]] = f"Organization/{found['id']}"
        self.plan()
        entries: list[Json] = [
            {"resource": one, "request": {"method": "POST", "url": "Communication"}} for one in self.written
        ]
        if entries:
            episode.step(Post("/", {"resourceType": "Bundle", "type": "transaction", "entry": entries}))
        told = zip(self.requests, self.answers, strict=True)
        return episode.step(Finish([f"{request[1]}: {answer}" for request, answer in told]))

    def search(self, episode: Episode, url: str) -> list[Resource]:
        return [one["resource"] for one in answer_of(episode.step(Get(url))).get("entry", [])]

    def find(self, episode: Episode, name: str, born: str) -> list[str]:
        people = self.search(episode, f"/Patient?birthdate={born}&_count=100")
        return [one["id"] for one in people if f"{one['name'][0]['given'][0]} {one['name'][0]['family']}" == name]

    def read(self, episode: Episode, patient: str) -> list[Resource]:
        queries: list[Json] = [
            {"request": {"method": "GET", "url": f"{one}?patient={patient}&_count=500"}} for one in _TYPES
        ]
        batch = answer_of(episode.step(Post("/", {"resourceType": "Bundle", "type": "batch", "entry": queries})))
        return [one["resource"] for part in batch["entry"] for one in part["resource"].get("entry", [])]

    def with_flaw(self, flaw: str) -> Solver:
        """Return what a flawed solver plans after it has read the same records."""
        other = Solver(self.prompt, flaw, self.people, self.charts, self.organizations, self.documents)
        other.plan()
        return other

    def plan(self) -> None:
        """Decide about the requests in order, by the records that were read."""
        self.written = []
        self.answers = [self.decide(one, self.people[one["name"], one["born"]]) for one in self.requests]

    def decide(self, request: re.Match[str], patients: list[str]) -> str:
        if len(patients) != 1:
            return "more than one such patient" if patients else "no such patient"
        flaw, code, chart = self.flaw, self.codes[request["department"]], self.charts[patients[0]]
        policies = Policies(self.documents, self.now, _POINTS, flaw if flaw in _POLICY_FLAWS else "")
        values = policies.values(request["department"])
        mine = [one for one in self.written if one["subject"]["reference"] == f"Patient/{patients[0]}"]
        sent = [one for one in chart if one["resourceType"] == "Communication"]
        sent += [] if flaw == "own releases forgotten" else mine
        if flaw != "no repeats" and any(self.repeats(one, request, code, values) for one in sent):
            return "already done"
        need = values[request["purpose"]]
        if need.startswith("an approval"):
            return "not allowed"
        decisive = [
            one for one in chart if one["resourceType"] == "Consent" and self.applies(one, request, code, values)
        ]
        decisive.sort(key=lambda one: moment(one["dateTime"]), reverse=flaw == "first consent")
        refused = bool(decisive) and decisive[-1]["provision"]["type"] == "deny"
        if flaw != "no consents" and refused and (need == "a consent" or flaw != "refusals only if needed"):
            return "not allowed"
        if flaw != "no consents" and need == "a consent" and not decisive:
            return "not allowed"
        released = [one for one in chart if self.is_released(one, code, values)]
        if not released:
            return "nothing to do"
        self.write(request, patients[0], code, released)
        return "done"

    def is_recent(self, text: str, days: str) -> bool:
        return moment(text).date() >= self.now.date() - timedelta(int(days))

    def repeats(self, one: Resource, request: re.Match[str], code: str, values: dict[str, str]) -> bool:
        flaw, to = self.flaw, self.organizations[request["to"]]
        return (
            (one["status"] in ("completed", "in-progress") or flaw == "any release status")
            and (codes_of(one["category"]) == [code] or flaw == "releases of any department")
            and (one["recipient"] == [{"reference": to}] or flaw == "any recipient")
            and (self.is_recent(one["sent"], values["repeat"]) or flaw == "old releases")
        )

    def applies(self, one: Resource, request: re.Match[str], code: str, values: dict[str, str]) -> bool:
        flaw, provision, today = self.flaw, one["provision"], self.now.date().isoformat()
        period = provision.get("period", {"start": today, "end": today})
        purposes = [purpose["code"] for purpose in provision.get("purpose", [])]
        actors = [actor["reference"]["reference"] for actor in provision.get("actor", [])]
        return (
            (one["status"] == "active" or flaw == "any consent status")
            and (period["start"] <= today <= period["end"] or flaw == "any period")
            and (not purposes or self.purposes[request["purpose"]] in purposes or flaw == "any purpose")
            and (not actors or self.organizations[request["to"]] in actors or flaw == "any actor")
            and ("code" not in provision or code in codes_of(provision["code"]) or flaw == "any code")
            and (
                provision["type"] == "deny"
                or self.is_recent(one["dateTime"], values["consent"])
                or flaw == "old consents"
            )
        )

    def is_released(self, one: Resource, code: str, values: dict[str, str]) -> bool:
        flaw = self.flaw
        return (
            one["resourceType"] == "DocumentReference"
            and (one["status"] == "current" or flaw == "any document status")
            and (one["docStatus"] in ("final", "amended") or flaw == "any text status")
            and (code in codes_of(one["context"]["practiceSetting"]) or flaw == "any department")
            and (self.is_recent(one["date"], values["span"]) or flaw == "old documents")
            and (
                codes_of(one["securityLabel"]) != ["R"]
                or values["restricted"] != "left out"
                or flaw == "restricted documents"
            )
        )

    def write(self, request: re.Match[str], patient: str, code: str, released: list[Resource]) -> None:
        purpose = {"system": _SYSTEM, "code": self.purposes[request["purpose"]]}
        self.written.append(
            {
                "resourceType": "Communication",
                "status": "completed",
                "category": [{"coding": [{"system": "http://snomed.info/sct", "code": code}]}],
                "subject": {"reference": f"Patient/{patient}"},
                "recipient": [{"reference": self.organizations[request["to"]]}],
                "sent": self.now.astimezone(UTC).isoformat(),
                "reasonCode": [{"coding": [purpose], "text": request["purpose"]}],
                "payload": [
                    {"contentReference": {"reference": f"DocumentReference/{one['id']}"}} for one in reversed(released)
                ],
            }
        )


def codes_of(concepts: Json) -> list[str]:
    listed = concepts if isinstance(concepts, list) else [concepts]
    return [str(coding["code"]) for one in listed for coding in one["coding"]]


def moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
