"""A solver of P2 that knows the prompt only: it reads everything first, plans, and writes one transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal

from typing_extensions import override

from fhir_gym import Episode, Step
from fhir_gym.actions import Get
from fhir_gym.types import Resource
from tests.tasks.packs.shift.order_solver import Solver, code_of
from tests.tasks.packs.shift.playing import answer_of
from tests.tasks.packs.shift.policy_solver import Policies

_BORN = r"(?P<born>\d{4}-\d\d-\d\d)"
_REQUESTS = (
    rf"([A-Z])\. (?P<ward>.+) would like the order set (?P<set>.+) for (?P<name>.+), born {_BORN}\.",
    rf"([A-Z])\. Please use the order set (?P<set>.+) for (?P<name>.+) \(date of birth {_BORN}\), "
    r"who is with (?P<ward>.+)\.",
    rf"([A-Z])\. (?P<ward>.+), order set (?P<set>[^:]+): (?P<name>.+), {_BORN}\.",
)
_OF_SET = {
    "drug": r"The drug of the order set {} is (.+)\.",
    "substitute": r"For patients who are allergic to its drug, the order set {} has (.+) instead\.",
    "dose": r"The dose in the order set {} is (\S+) mg per kg",
    "tests": r"The tests of the order set {} are (.+) and (?:.+)\.",
    "test": r"The tests of the order set {} are .+ and (.+)\.",
}
_POINTS = {
    "most": r"No order set has a dose of more than (\d+) mg\.",
    "creatinine": r"If the creatinine is above (\S+) mg/dL, all order sets have half of the dose per kg\.",
    "weight": r"A body weight that is older than (\d+) days does not count\.",
    "repeat": r"A test of an order set is left out if it was ordered in the last (\d+) days\.",
    "pregnancy": r"In pregnancy, no order set is used if its drug belongs to the (.+)\.",
}
SET_FLAWS = (
    *("results of any status", "units ignored", "orders of any status", "no allergies", "intolerances count"),
    *("no substitute", "given drugs ignored", "old weights", "no maximum", "never half", "all tests", "no tests"),
    "own orders forgotten",
)
"""Errors besides those of reading policies."""


@dataclass
class OrderSetSolver(Solver):
    policies: Policies = field(default_factory=lambda: Policies([], datetime.min, {}))

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked: list[tuple[str, str, str, str, str]] = []
        for line in self.prompt.splitlines():
            for found in (re.fullmatch(pattern, line) for pattern in _REQUESTS):
                if found:
                    self.asked.append((line[0], found["name"], found["born"], found["ward"], found["set"]))
        unused = next(iter(self.items.values()))
        self.requests = [(letter, name, born, unused) for letter, name, born, _, _ in self.asked]

    @override
    def solve(self, episode: Episode) -> Step:
        found = answer_of(episode.step(Get("/DocumentReference", {"category": "order-sets", "_count": "100"})))
        sets = {one for *_, one in self.asked}
        points = {f"{one} {name}": text.format(one) for one in sets for name, text in _OF_SET.items()} | _POINTS
        documents = [one["resource"] for one in found["entry"]]
        self.policies = Policies(documents, self.now, points, self.flaw)
        return super().solve(episode)

    @override
    def plan(self) -> None:
        self.answers = [
            self.use(self.people[name, born], ward, order_set) for _, name, born, ward, order_set in self.asked
        ]

    def use(self, patients: list[str], ward: str, order_set: str) -> str:
        """Plan the orders of one request, and return its outcome."""
        if len(patients) != 1:
            return "more than one such patient" if patients else "no such patient"
        values, chart = self.policies.values(ward), self.records[patients[0]]
        drug = self.items[values[f"{order_set} drug"]]
        if self.is_allergic(chart, drug.group):
            drug = self.items[values[f"{order_set} substitute"]]
            if self.is_allergic(chart, drug.group) or self.flaw == "no substitute":
                return "not allowed"
        mine = [one for one in self.written if one["subject"]["reference"] == f"Patient/{patients[0]}"]
        orders = [one for name in ("MedicationRequest", "ServiceRequest") for one in chart[name]]
        orders += [] if self.flaw == "own orders forgotten" else mine
        orders = [one for one in orders if one["intent"] == "order"]
        group = [one.code for one in self.items.values() if one.group == drug.group]
        given = [one for one in orders if code_of(one) in group and one["status"] in ("active", "on-hold")]
        if given and self.flaw != "given drugs ignored":
            return "already done"
        weight, creatinine = self.weight(chart, values), self.latest(chart, "2160-0", "14682-9")
        pregnant = any(map(self.is_pregnancy, chart["Condition"]))
        if (pregnant and drug.group in values["pregnancy"].split(" or ")) or weight is None or creatinine is None:
            return "not allowed"
        dose = weight * Decimal(values[f"{order_set} dose"])
        if creatinine > Decimal(values["creatinine"]) and self.flaw != "never half":
            dose /= 2
        dose = dose if self.flaw == "no maximum" else min(dose, Decimal(values["most"]))
        self.write(drug, patients[0], int(dose // 5 * 5))
        for name in (values[f"{order_set} tests"], values[f"{order_set} test"]):
            if self.flaw != "no tests" and not self.is_recent(orders, self.items[name].code, values):
                self.write(self.items[name], patients[0], 0)
        return "done"

    def is_allergic(self, chart: dict[str, list[Resource]], group: str) -> bool:
        codes = [one.code for one in self.items.values() if one.group == group]
        found = [one for one in chart["AllergyIntolerance"] if code_of(one) in codes and self.is_allergy(one)]
        return bool(found) and self.flaw != "no allergies"

    def weight(self, chart: dict[str, list[Resource]], values: dict[str, str]) -> Decimal | None:
        dates = [
            one["effectiveDateTime"][:10]
            for one in chart["Observation"]
            if code_of(one) == "29463-7" and one["status"] in ("final", "amended", "corrected")
        ]
        oldest = self.now.date() - timedelta(days=int(values["weight"]))
        fresh = bool(dates) and date.fromisoformat(max(dates)) >= oldest
        return self.latest(chart, "29463-7") if fresh or self.flaw == "old weights" else None

    def is_recent(self, orders: list[Resource], code: str, values: dict[str, str]) -> bool:
        first = self.now.date() - timedelta(days=int(values["repeat"]))
        counting = ("active", "completed")
        return self.flaw != "all tests" and any(
            code_of(one) == code
            and (one["status"] in counting or self.flaw == "orders of any status")
            and date.fromisoformat(one["authoredOn"][:10]) >= first
            for one in orders
        )
