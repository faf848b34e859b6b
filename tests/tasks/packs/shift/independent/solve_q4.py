"""Solver of Q4 (orders with safety rules): it reads every patient's chart once, and computes with decimals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

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
    finish,
    first_match,
    instant,
    ref,
    who,
)

_REQUESTS = [
    ("order", r"Please order (?P<item>.+) for (?P<name>.+), born (?P<born>\S+)\."),
    ("order", r"(?P<name>.+) \(date of birth (?P<born>\S+)\) needs (?P<item>.+)\."),
    ("order", r"For (?P<name>.+), (?P<born>[\d-]+): (?P<item>.+)\."),
]
_ITEM = re.compile(
    r"^  - (?P<name>.+) \((?P<system>RxNorm|LOINC) (?P<code>[^;)]+)(?:; (?P<group>[^)]+))?\)(?:: (?P<rule>.+))?$", re.M
)
_SYSTEMS = {"RxNorm": "http://www.nlm.nih.gov/research/umls/rxnorm", "LOINC": "http://loinc.org"}
_VALID = {"final", "amended", "corrected"}
_POUND, _MICROMOL = Decimal("0.4536"), Decimal("88.4")


@dataclass(frozen=True)
class Item:
    """A drug or test of the list."""

    system: str
    code: str
    group: str
    rule: str

    @classmethod
    def listed(cls, rules: str) -> dict[str, Item]:
        """Return the drugs and tests of the list in the rules, by name."""
        return {
            it["name"]: cls(it["system"], it["code"], it["group"] or "", it["rule"] or "")
            for it in _ITEM.finditer(rules)
        }

    @property
    def is_drug(self) -> bool:
        return self.system == "RxNorm"

    def _number(self, pattern: str) -> Decimal:
        """Return a number of the rule; infinity without one."""
        match = re.search(pattern.replace("#", r"([\d.]+)"), self.rule)
        return Decimal(match[1] if match else "inf")

    @property
    def needs_creatinine(self) -> bool:
        return "creatinine" in self.rule

    def is_allowed(self, creatinine: Decimal, pregnant: bool) -> bool:
        too_high = creatinine > self._number("not allowed if the creatinine is above # mg/dL")
        return not too_high and not (pregnant and "not allowed in pregnancy" in self.rule)

    def dose(self, weight: Decimal, creatinine: Decimal) -> int:
        per_kg, most = self._number("# mg per kg"), self._number("at most # mg")
        if creatinine > self._number("half of the dose per kg if the creatinine is above # mg/dL"):
            per_kg /= 2
        return int(min(weight * per_kg, most) // 5 * 5)


class Chart:
    """The records of the patients that matter."""

    def __init__(self, desk: Desk, ids: list[str]) -> None:
        self.desk = desk
        self.orders = desk.search_for("MedicationRequest?patient=", ids)
        self.orders += desk.search_for("ServiceRequest?patient=", ids)
        self.allergies = desk.search_for("AllergyIntolerance?patient=", ids)
        self.conditions = desk.search_for("Condition?code=http://snomed.info/sct|77386006&patient=", ids)
        self.results = desk.search_for("Observation?code=29463-7,2160-0,14682-9&patient=", ids)

    def orders_of(self, patient: Record) -> list[Record]:
        return [it for it in self.orders if it["subject"]["reference"] == ref(patient) and it["intent"] == "order"]

    def allergic_to(self, patient: Record) -> set[str]:
        return {
            found
            for it in self.allergies
            if it["patient"]["reference"] == ref(patient)
            and it.get("type") == "allergy"
            and code(it.get("clinicalStatus")) == "active"
            and code(it.get("verificationStatus")) != "refuted"
            for found in codes(it["code"])
        }

    def is_pregnant(self, patient: Record) -> bool:
        return any(
            it["subject"]["reference"] == ref(patient)
            and code(it.get("clinicalStatus")) == "active"
            and code(it.get("verificationStatus")) == "confirmed"
            for it in self.conditions
        )

    def _latest(self, patient: Record, wanted: set[str]) -> Record | None:
        valid = [
            it
            for it in self.results
            if it["subject"]["reference"] == ref(patient) and it["status"] in _VALID and codes(it["code"]) & wanted
        ]
        return max(valid, key=lambda it: instant(it["effectiveDateTime"]), default=None)

    def weighing(self, patient: Record) -> Record | None:
        """Return the latest valid weight."""
        return self._latest(patient, {"29463-7"})

    def weight(self, patient: Record) -> Decimal | None:
        result = self.weighing(patient)
        if result is None:
            return None
        quantity = result["valueQuantity"]
        value = Decimal(str(quantity["value"]))
        return value if quantity.get("code", quantity["unit"]) == "kg" else value * _POUND

    def creatinine(self, patient: Record) -> Decimal | None:
        result = self._latest(patient, {"2160-0", "14682-9"})
        if result is None:
            return None
        value = Decimal(str(result["valueQuantity"]["value"]))
        return value if "2160-0" in codes(result["code"]) else value / _MICROMOL


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    items = Item.listed(prompt.rules)
    requests = [(letter, first_match(_REQUESTS, request)[1]) for letter, request in prompt.requests]
    patients = Patients(desk, {asked["name"] for _, asked in requests})
    chart = Chart(desk, patients.ids((asked["name"], asked["born"]) for _, asked in requests))
    outcomes = []
    for letter, asked in requests:
        found = patients.find(asked["name"], asked["born"])
        outcome = who(found) or _handle(chart, prompt, found[0], items[asked["item"]], list(items.values()))
        outcomes.append((letter, outcome))
    desk.commit()
    return finish(outcomes)


def _handle(chart: Chart, prompt: Prompt, patient: Record, item: Item, items: list[Item]) -> str:
    orders = chart.orders_of(patient)
    for order in orders:
        recent = days_before(prompt.today, 30) <= day(order["authoredOn"]) <= prompt.today
        if item.code in order_codes(order) and order["status"] in {"active", "completed"} and recent:
            return "already done"
    relatives = {it.code for it in items if item.is_drug and it.group == item.group}
    weight, creatinine = chart.weight(patient), chart.creatinine(patient)
    if (
        any(order["status"] == "active" and order_codes(order) & (relatives - {item.code}) for order in orders)
        or chart.allergic_to(patient) & relatives
        or (item.is_drug and weight is None)
        or (item.needs_creatinine and creatinine is None)
        or not item.is_allowed(creatinine or Decimal(), chart.is_pregnant(patient))
    ):
        return "not allowed"
    dose = item.dose(weight, creatinine or Decimal()) if item.is_drug and weight else None
    order = new_order(prompt, patient, item, dose)
    order |= chart.desk.optional(authoredOn=f"{prompt.now:%Y-%m-%dT%H:%M:%SZ}")
    chart.desk.create(order)
    chart.orders.append(order)
    return "done"


def order_codes(order: Record) -> set[str]:
    return codes(order.get("medicationCodeableConcept") or order.get("code"))


def new_order(prompt: Prompt, patient: Record, item: Item, dose: int | None) -> Record:
    """Return an order of a drug, with a dose in mg, or of a test."""
    order = {
        "resourceType": "ServiceRequest",
        "status": "active",
        "intent": "order",
        "subject": {"reference": ref(patient)},
        "authoredOn": prompt.today,
    }
    concept = {"coding": [{"system": _SYSTEMS[item.system], "code": item.code}]}
    if dose is None:
        return {**order, "code": concept}
    quantity = {"value": dose, "unit": "mg", "system": "http://unitsofmeasure.org", "code": "mg"}
    return {
        **order,
        "resourceType": "MedicationRequest",
        "medicationCodeableConcept": concept,
        "dosageInstruction": [{"doseAndRate": [{"doseQuantity": quantity}]}],
    }
