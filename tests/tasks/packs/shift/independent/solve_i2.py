"""Solver of I2 (laboratory results over time): one search for patients and one for all their results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from .desk import Desk, Patients, Prompt, Record, Send, Writing, codes, day, finish, first_match, instant, who

_NO_RESULT = "no result"
_PERSON_0 = r"(?P<name>.+), born (?P<born>\S+)"
_PERSON_1 = r"(?P<name>.+) \(date of birth (?P<born>\S+)\)"
_PERSON_2 = r"(?P<name>.+), (?P<born>\d{4}-\d\d-\d\d)"
_TEST = r"(?P<test>.+?)"
_LIMIT = r"(?P<limit>[\d.]+) \S+"
_FROM = r"(?P<first>\S+) to (?P<last>\S+?)"
_BETWEEN = r"(?P<first>\S+) and (?P<last>\S+?)"
_QUESTIONS = [
    ("above", rf"How many {_TEST} values of {_PERSON_0}, were above {_LIMIT} from {_FROM}\?"),
    ("change", rf"By how much did the {_TEST} of {_PERSON_0}, change from {_FROM}\?"),
    ("mean", rf"What was the mean {_TEST} of {_PERSON_0}, from {_FROM}\?"),
    ("highest", rf"What was the highest {_TEST} of {_PERSON_0}, from {_FROM}\?"),
    ("above", rf"Please count the {_TEST} values above {_LIMIT} of {_PERSON_1} between {_BETWEEN}\."),
    ("change", rf"Please work out the change in {_TEST} of {_PERSON_1} between {_BETWEEN}\."),
    ("mean", rf"Please work out the average {_TEST} of {_PERSON_1} between {_BETWEEN}\."),
    ("highest", rf"Please look up the maximum {_TEST} of {_PERSON_1} between {_BETWEEN}\."),
    ("above", rf"{_PERSON_2}: number of {_TEST} values above {_LIMIT}, {_FROM}\."),
    ("change", rf"{_PERSON_2}: change in {_TEST}, {_FROM}\."),
    ("mean", rf"{_PERSON_2}: mean {_TEST}, {_FROM}\."),
    ("highest", rf"{_PERSON_2}: highest {_TEST}, {_FROM}\."),
]
_TEST_RULE = re.compile(
    r"^  - (?P<name>.+): (?P<code>\S+) in \S+, and (?P<other>\S+) in \S+;"
    r" the value in \S+ is (?P<factor>[\d.]+) times the value in \S+?(?:, plus (?P<plus>[\d.]+))?;"
    r" answer in \S+, with (?P<decimals>\d) decimals?$",
    re.M,
)


@dataclass(frozen=True)
class _Test:
    code: str
    other: str
    factor: Decimal
    plus: Decimal
    decimals: int

    def value(self, result: Record) -> Decimal:
        value = Decimal(str(result["valueQuantity"]["value"]))
        return value if self.code in codes(result["code"]) else value * self.factor + self.plus

    def round(self, value: Decimal) -> str:
        return str(value.quantize(Decimal(1).scaleb(-self.decimals), ROUND_HALF_UP))


def solve(text: str, send: Send, writing: Writing = "patch") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    tests = {
        rule["name"]: _Test(
            rule["code"], rule["other"], Decimal(rule["factor"]), Decimal(rule["plus"] or 0), int(rule["decimals"])
        )
        for rule in _TEST_RULE.finditer(prompt.rules)
    }
    questions = [(letter, *first_match(_QUESTIONS, request)) for letter, request in prompt.requests]
    patients = Patients(desk, {asked["name"] for _, _, asked in questions})
    ids = patients.ids((asked["name"], asked["born"]) for _, _, asked in questions)
    results = desk.search_for("Observation?patient=", ids)
    outcomes = []
    for letter, kind, asked in questions:
        found = patients.find(asked["name"], asked["born"])
        outcome = who(found) or _answer(kind, asked, tests[asked["test"]], found[0], results)
        outcomes.append((letter, outcome))
    return finish(outcomes)


def _answer(kind: str, asked: dict[str, str], test: _Test, patient: Record, results: list[Record]) -> str:
    latest: dict[str, Record] = {}
    for result in results:
        if not (
            result["subject"]["reference"] == f"Patient/{patient['id']}"
            and codes(result["code"]) & {test.code, test.other}
            and result["status"] in {"final", "amended", "corrected"}
            and asked["first"] <= day(result["effectiveDateTime"]) <= asked["last"]
        ):
            continue
        taken = instant(result["effectiveDateTime"]).isoformat()
        if taken not in latest or instant(result["issued"]) > instant(latest[taken]["issued"]):
            latest[taken] = result
    values = [test.value(latest[taken]) for taken in sorted(latest)]
    if not values or (kind == "change" and len(values) < 2):
        return _NO_RESULT
    if kind == "above":
        return str(sum(value > Decimal(asked["limit"]) for value in values))
    if kind == "mean":
        return test.round(sum(values, Decimal()) / len(values))
    return test.round(max(values) if kind == "highest" else values[-1] - values[0])
