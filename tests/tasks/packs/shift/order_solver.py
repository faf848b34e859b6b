"""A solver of Q4 that knows the prompt only: it reads everything first, plans, and writes one transaction.

Flaws make it break one rule each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

from fhir_gym import Episode, Step
from fhir_gym.actions import Finish, Get, Post
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.playing import answer_of

FLAWS = (
    *("results of any status", "units ignored", "first result", "no maximum", "never half", "rounded up"),
    *("orders of any status", "orders of any date", "plans count", "no duplicates", "own orders forgotten"),
    *("classes ignored", "no allergies", "intolerances count", "old allergies count", "only the same drug"),
    *("no pregnancy", "any pregnancy", "limits ignored", "weight assumed"),
)

_BORN = r"(\d{4}-\d\d-\d\d)"
_REQUESTS = (
    rf"([A-Z])\. Please order (?P<item>.+) for (?P<name>.+), born {_BORN}\.",
    rf"([A-Z])\. (?P<name>.+) \(date of birth {_BORN}\) needs (?P<item>.+)\.",
    rf"([A-Z])\. For (?P<name>.+), {_BORN}: (?P<item>.+)\.",
)
_ITEM = re.compile(r"  - (?P<name>.+) \((?P<system>RxNorm|LOINC) (?P<code>[\d-]+)(?:; (?P<group>.+?))?\)(?P<rest>.*)")
_SYSTEMS = {"RxNorm": "http://www.nlm.nih.gov/research/umls/rxnorm", "LOINC": "http://loinc.org"}
_TYPES = ("MedicationRequest", "ServiceRequest", "AllergyIntolerance", "Condition", "Observation")


@dataclass
class Item:
    name: str
    system: str
    code: str
    group: str
    rest: str

    def number(self, pattern: str) -> Decimal | None:
        found = re.search(pattern, self.rest)
        return Decimal(found[1]) if found else None

    @property
    def kind(self) -> str:
        return "MedicationRequest" if self.group else "ServiceRequest"


@dataclass
class Solver:
    prompt: str
    flaw: str = ""
    records: dict[str, dict[str, list[Resource]]] = field(default_factory=dict)
    written: list[Resource] = field(default_factory=list)
    people: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lines = self.prompt.splitlines()
        items = (found.groupdict() for line in lines if (found := _ITEM.fullmatch(line)))
        self.items = {one["name"]: Item(**{name: value or "" for name, value in one.items()}) for one in items}
        self.now = datetime.fromisoformat(re.findall(r"Present: (\S+),", self.prompt)[0])
        self.requests = []
        for line in lines:
            found = next((one for pattern in _REQUESTS if (one := re.fullmatch(pattern, line))), None)
            if found:
                born = re.findall(_BORN, line)[0]
                self.requests.append((line[0], found["name"], born, self.items[found["item"]]))

    def solve(self, episode: Episode) -> Step:
        """Play an episode; `answers` then has the outcomes, and `written` the orders."""
        self.people = {(name, born): self.find(episode, name, born) for _, name, born, _ in self.requests}
        for found in self.people.values():
            if len(found) == 1 and found[0] not in self.records:
                self.records[found[0]] = self.read(episode, found[0])
        self.plan()
        entries: list[Json] = [
            {"resource": one, "request": {"method": "POST", "url": one["resourceType"]}} for one in self.written
        ]
        if entries:
            episode.step(Post("/", {"resourceType": "Bundle", "type": "transaction", "entry": entries}))
        told = zip(self.requests, self.answers, strict=True)
        return episode.step(Finish([f"{request[0]}: {answer}" for request, answer in told]))

    def plan(self) -> None:
        """Decide about the requests in order, by the records that were read."""
        self.answers = [self.decide(self.people[name, born], item) for _, name, born, item in self.requests]

    def with_flaw(self, flaw: str) -> Solver:
        """Return what a flawed solver plans after it has read the same records."""
        other = Solver(self.prompt, flaw, self.records, people=self.people)
        other.plan()
        return other

    def find(self, episode: Episode, name: str, born: str) -> list[str]:
        bundle = answer_of(episode.step(Get("/Patient", {"birthdate": born, "_count": "100"})))
        people = [one["resource"] for one in bundle.get("entry", [])]
        return [one["id"] for one in people if f"{one['name'][0]['given'][0]} {one['name'][0]['family']}" == name]

    def read(self, episode: Episode, patient: str) -> dict[str, list[Resource]]:
        queries: list[Json] = [
            {"request": {"method": "GET", "url": f"{one}?patient=Patient/{patient}&_count=200"}} for one in _TYPES
        ]
        bundle = answer_of(episode.step(Post("/", {"resourceType": "Bundle", "type": "batch", "entry": queries})))
        pages = [one["resource"].get("entry", []) for one in bundle["entry"]]
        return {name: [one["resource"] for one in page] for name, page in zip(_TYPES, pages, strict=True)}

    def decide(self, patients: list[str], item: Item) -> str:
        if len(patients) != 1:
            return "more than one such patient" if patients else "no such patient"
        chart, flaw = self.records[patients[0]], self.flaw
        mine = [one for one in self.written if one["subject"]["reference"] == f"Patient/{patients[0]}"]
        orders = [*chart[item.kind], *([] if flaw == "own orders forgotten" else mine)]
        orders = [one for one in orders if one["resourceType"] == item.kind]
        orders = [one for one in orders if one["intent"] == "order" or flaw == "plans count"]
        if flaw != "no duplicates" and any(self.is_duplicate(one, item) for one in orders):
            return "already done"
        if any(self.restrictions(chart, orders, item)):
            return "not allowed"
        self.write(item, patients[0], self.dose(chart, item))
        return "done"

    def is_duplicate(self, order: Resource, item: Item) -> bool:
        recent = datetime.fromisoformat(order["authoredOn"]) >= self.now - timedelta(days=30)
        return (
            code_of(order) == item.code
            and (order["status"] in ("active", "completed") or self.flaw == "orders of any status")
            and (recent or self.flaw == "orders of any date")
        )

    def restrictions(self, chart: dict[str, list[Resource]], orders: list[Resource], item: Item) -> list[bool]:
        flaw, group = self.flaw, [one.code for one in self.items.values() if one.group == item.group and item.group]
        others = [one for one in orders if code_of(one) in group and code_of(one) != item.code]
        limit, creatinine = item.number(r"above ([\d.]+) mg/dL"), self.latest(chart, "2160-0", "14682-9")
        over = limit is not None and creatinine is not None and creatinine > limit and flaw != "limits ignored"
        allergic = [item.code] if flaw == "only the same drug" else group
        return [
            flaw != "classes ignored" and any(one["status"] == "active" for one in others),
            flaw != "no allergies" and any(code_of(a) in allergic and self.is_allergy(a) for a in chart[_TYPES[2]]),
            "not allowed in pregnancy" in item.rest and any(map(self.is_pregnancy, chart["Condition"])),
            over and "not allowed if the creatinine" in item.rest,
            limit is not None and creatinine is None and flaw != "limits ignored",
            bool(item.group) and flaw != "weight assumed" and self.latest(chart, "29463-7") is None,
        ]

    def is_allergy(self, one: Resource) -> bool:
        active = (code_of(one, "clinicalStatus"), code_of(one, "verificationStatus") != "refuted") == ("active", True)
        right = one["type"] == "allergy" or self.flaw == "intolerances count"
        return right and (active or self.flaw == "old allergies count")

    def is_pregnancy(self, one: Resource) -> bool:
        if self.flaw == "no pregnancy" or code_of(one) != "77386006":
            return False
        status = (code_of(one, "clinicalStatus"), code_of(one, "verificationStatus"))
        return status == ("active", "confirmed") or self.flaw == "any pregnancy"

    def latest(self, chart: dict[str, list[Resource]], *codes: str) -> Decimal | None:
        valid = ("final", "amended", "corrected")
        counting = [one for one in chart["Observation"] if code_of(one) in codes]
        counting = [one for one in counting if one["status"] in valid or self.flaw == "results of any status"]
        counting.sort(key=lambda one: one["effectiveDateTime"], reverse=self.flaw != "first result")
        if not counting:
            return None
        value, unit = Decimal(str(counting[0]["valueQuantity"]["value"])), counting[0]["valueQuantity"]["unit"]
        if self.flaw == "units ignored":
            return value
        return value * Decimal("0.4536") if unit == "lb" else value / Decimal("88.4") if unit == "umol/L" else value

    def dose(self, chart: dict[str, list[Resource]], item: Item) -> int:
        if not item.group:
            return 0
        weight, per_kg = self.latest(chart, "29463-7") or Decimal(70), item.number(r"([\d.]+) mg per kg")
        limit, creatinine = item.number(r"above ([\d.]+) mg/dL"), self.latest(chart, "2160-0", "14682-9")
        assert per_kg is not None
        dose = weight * per_kg
        if self.flaw not in ("never half", "limits ignored") and limit and creatinine and creatinine > limit:
            dose /= 2
        most = item.number(r"at most ([\d.]+) mg")
        assert most is not None
        dose = dose if self.flaw == "no maximum" else min(dose, most)
        return next(n for n in count(0, 5) if n + (0 if self.flaw == "rounded up" else 5) > dose)

    def write(self, item: Item, patient: str, dose: int) -> None:
        coded = {"coding": [{"system": _SYSTEMS[item.system], "code": item.code}], "text": item.name}
        order: dict[str, Any] = {
            "resourceType": item.kind,
            "status": "active",
            "intent": "order",
            "medicationCodeableConcept" if item.group else "code": coded,
            "subject": {"reference": f"Patient/{patient}"},
            "authoredOn": self.now.date().isoformat() + "T00:00:00Z",
        }
        if item.group:
            quantity = {"value": dose, "unit": "mg"}
            order["dosageInstruction"] = [{"doseAndRate": [{"doseQuantity": quantity}]}]
        self.written.append(order)


def code_of(record: Resource, name: str = "") -> str:
    concept = record.get(name) if name else record.get("code", record.get("medicationCodeableConcept"))
    return str(concept["coding"][0]["code"]) if concept else ""
