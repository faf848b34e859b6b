"""Solver of S4 (recalls): it reads the charts of all patients of the site at once."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from .desk import (
    Desk,
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
)

_REQUESTS = [
    (
        "recall",
        r"Please recall our patients with (?P<condition>.+) who have had no (?P<test>.+) since (?P<since>\S+)\.",
    ),
    (
        "recall",
        r"Everyone here with (?P<condition>.+) who has had no (?P<test>.+) since (?P<since>\S+) needs a recall\.",
    ),
    ("recall", r"Recall for (?P<test>.+): patients with (?P<condition>.+), none since (?P<since>\S+)\."),
]
_TEST = re.compile(
    r"^  - (?P<name>.+): (?P<code>\S+) in \S+ and (?P<other>\S+) in \S+;"
    r" limit (?P<limit>[\d.]+) \S+ \(\S+\) or (?P<other_limit>[\d.]+) \S+ \(\S+\)$",
    re.M,
)
_VALID = {"final", "amended", "corrected"}
_Charts = dict[str, list[Record]]


@dataclass
class _Rules:
    """What the rules name."""

    today: str
    conditions: dict[str, str]
    tests: dict[str, dict[str, float]]
    site: str
    laboratory: str
    order_days: int
    visit_days: int

    @classmethod
    def of(cls, prompt: Prompt) -> _Rules:
        rules = prompt.rules
        listed = find(r"The conditions have these SNOMED CT codes: (.+?)\.", rules)
        return cls(
            prompt.today,
            dict(it.rsplit(" ", 1) for it in listed.split(", ")),
            {
                it["name"]: {it["code"]: float(it["limit"]), it["other"]: float(it["other_limit"])}
                for it in _TEST.finditer(prompt.rules)
            },
            find(r"The requests are about the patients of (.+?): Patients", rules),
            find(r"a valueQuantity, and (.+) \(an Organization\) as performer", rules),
            int(find(r"an authoredOn in the last (\d+) days", rules)),
            int(find(r"that starts in the next (\d+) days", rules)),
        )


class _Site:
    """The charts of the patients of the site."""

    def __init__(self, desk: Desk, rules: _Rules, now: str) -> None:
        self.desk, self.rules, self.now = desk, rules, now
        named = desk.search_for("Organization?name:exact=", [rules.site, rules.laboratory])
        (site,), (laboratory,) = ([it for it in named if it["name"] == name] for name in (rules.site, rules.laboratory))
        self.laboratory = ref(laboratory)
        self.patients = [
            it
            for it in desk.search(f"Patient?organization={ref(site)}&active=true")
            if not it.get("deceasedBoolean") and "deceasedDateTime" not in it
        ]
        tests = ",".join(sorted({it for test in rules.tests.values() for it in test}))
        conditions = ",".join(sorted(rules.conditions.values()))
        self.conditions = self._read(f"Condition?code={conditions}&patient=", "subject")
        self.results = self._read(f"Observation?code={tests}&patient=", "subject")
        self.orders = self._read(f"ServiceRequest?code={tests}&patient=", "subject")
        self.consents = self._read("Consent?status=active&patient=", "patient")
        self.visits = self._read(f"Appointment?status=booked,pending&date=ge{rules.today}&patient=", "")

    def _read(self, query: str, element: str) -> _Charts:
        charts: _Charts = defaultdict(list)
        for record in self.desk.search_for(query, (patient["id"] for patient in self.patients)):
            whom = [record[element]] if element else [it.get("actor", {}) for it in record["participant"]]
            for reference in whom:
                charts[reference.get("reference", "")].append(record)
        return charts

    def has(self, patient: Record, condition: str) -> bool:
        return any(
            condition in codes(it["code"])
            and code(it.get("clinicalStatus")) in {"active", "recurrence", "relapse"}
            and code(it.get("verificationStatus")) == "confirmed"
            for it in self.conditions[ref(patient)]
        )

    def valid_results(self, patient: Record, test: dict[str, float]) -> list[Record]:
        valid = [
            it
            for it in self.results[ref(patient)]
            if it["status"] in _VALID
            and "valueQuantity" in it
            and codes(it["code"]) & set(test)
            and any(performer.get("reference") == self.laboratory for performer in it.get("performer", []))
        ]
        return sorted(valid, key=lambda it: instant(it["effectiveDateTime"]))

    def is_excused(self, patient: Record, test: dict[str, float]) -> bool:
        oldest = days_before(self.rules.today, self.rules.order_days)
        ordered = any(
            codes(it["code"]) & set(test)
            and it["intent"] == "order"
            and it["status"] in {"active", "on-hold"}
            and oldest <= day(it["authoredOn"]) <= self.rules.today
            for it in self.orders[ref(patient)]
        )
        last = days_before(self.rules.today, -self.rules.visit_days)
        comes = any(self.now < it["start"] and day(it["start"]) <= last for it in self.visits[ref(patient)])
        return ordered or comes or self._refuses(patient)

    def _refuses(self, patient: Record) -> bool:
        consents = [
            it
            for it in self.consents[ref(patient)]
            if any(purpose.get("code") == "CAREMGT" for purpose in it.get("provision", {}).get("purpose", []))
        ]
        latest = max(consents, key=lambda it: instant(it["dateTime"]), default=None)
        return latest is not None and latest["provision"].get("type") == "deny"

    def recall(self, patient: Record, condition: str, test: dict[str, float]) -> None:
        latest = self.valid_results(patient, test)[-1:]
        high = any(it["valueQuantity"]["value"] > test[next(iter(codes(it["code"]) & set(test)))] for it in latest)
        order = {
            "resourceType": "ServiceRequest",
            "status": "active",
            "intent": "order",
            "priority": "urgent" if high else "routine",
            "code": {"coding": [{"system": "http://loinc.org", "code": next(iter(test))}]},
            "subject": {"reference": ref(patient)},
            "authoredOn": self.rules.today,
            "reasonCode": [{"coding": [{"system": "http://snomed.info/sct", "code": condition}]}],
        }
        order |= self.desk.optional(authoredOn=self.now)
        self.desk.create(order)
        self.orders[ref(patient)].append(order)


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    rules = _Rules.of(prompt)
    site = _Site(desk, rules, f"{prompt.now:%Y-%m-%dT%H:%M:%SZ}")
    outcomes = []
    for letter, request in prompt.requests:
        asked = first_match(_REQUESTS, request)[1]
        condition, test = rules.conditions[asked["condition"]], rules.tests[asked["test"]]
        recalled = [
            patient
            for patient in site.patients
            if site.has(patient, condition)
            and not any(day(it["effectiveDateTime"]) >= asked["since"] for it in site.valid_results(patient, test))
            and not site.is_excused(patient, test)
        ]
        for patient in recalled:
            site.recall(patient, condition, test)
        outcomes.append((letter, "done" if recalled else "nothing to do"))
    desk.commit()
    return finish(outcomes)
