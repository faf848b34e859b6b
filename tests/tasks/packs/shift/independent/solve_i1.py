"""Solver of I1 (what a patient takes): it turns orders, statements and letters into one list of records per drug."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from .desk import (
    Desk,
    Patients,
    Prompt,
    Record,
    Send,
    Writing,
    codes,
    day,
    days_before,
    find,
    finish,
    first_match,
    instant,
    ref,
    who,
)

_NOT_TAKEN = "not taken"
_0 = r"(?P<name>.+), born (?P<born>\S+)"
_1 = r"(?P<name>.+) \(date of birth (?P<born>\S+)\)"
_2 = r"(?P<name>.+), (?P<born>\d{4}-\d\d-\d\d)"
_QUESTIONS = [
    ("dose", rf"How many mg of (?P<drug>\w+) a day does {_0}, take now\?"),
    ("names", rf"Which of the drugs does {_0}, take now\?"),
    ("number", rf"How many of the drugs does {_0}, take now\?"),
    ("dose", rf"Please work out the daily dose of (?P<drug>\w+), in mg, that {_1} takes now\."),
    ("names", rf"Please list the drugs that {_1} takes now\."),
    ("number", rf"Please count the drugs that {_1} takes now\."),
    ("dose", rf"{_2}: (?P<drug>\w+), mg a day now\."),
    ("names", rf"{_2}: drugs taken now\."),
    ("number", rf"{_2}: number of drugs taken now\."),
]
_DRUG = re.compile(r"^  - (?P<name>\w+): RxNorm (?P<code>\w+), trade name (?P<trade>\w+)$", re.M)
_COUNTED = {
    "MedicationRequest": {"active", "on-hold", "completed", "stopped"},
    "MedicationStatement": {"active", "on-hold", "completed", "stopped", "not-taken"},
}
_TIMES_A_DAY = {
    "once a day": Decimal(1),
    "twice a day": Decimal(2),
    "three times a day": Decimal(3),
    "every other day": Decimal("0.5"),
}
_DAYS = {"h": Decimal(1) / 24, "d": Decimal(1), "wk": Decimal(7)}


@dataclass(frozen=True)
class _Entry:
    """What a record says about one drug of one patient."""

    patient: str
    drug: str
    time: datetime
    taken: bool
    dose: Decimal


class _Charts:
    """All entries and all supplies of the patients."""

    def __init__(self, desk: Desk, ids: list[str], rules: str, today: str) -> None:
        self.drugs = {it["name"]: it["code"] for it in _DRUG.finditer(rules)}
        self.by_name = {it[word].lower(): it["name"] for it in _DRUG.finditer(rules) for word in ("name", "trade")}
        self.today = today
        self.entries = [
            entry
            for kind in _COUNTED
            for record in desk.search_for(f"{kind}?subject=", ids)
            for entry in self._from_record(record)
        ]
        letters = desk.search_for("Communication?subject=", ids)
        self.entries += [entry for letter in letters for entry in self._from_letter(letter)]
        self.dispenses = desk.search_for("MedicationDispense?subject=", ids)

    def _drug(self, record: Record) -> str:
        named = codes(record["medicationCodeableConcept"])
        return next((name for name, it in self.drugs.items() if it in named), "")

    def _from_record(self, record: Record) -> list[_Entry]:
        is_order = record["resourceType"] == "MedicationRequest"
        counts = record["status"] in _COUNTED[record["resourceType"]] and (not is_order or record["intent"] == "order")
        if not counts or not self._drug(record):
            return []
        time = instant(record["authoredOn" if is_order else "dateAsserted"])
        taken = record["status"] == "active"
        instructions = record["dosageInstruction" if is_order else "dosage"]
        dose = sum((_dose(it) for it in instructions), Decimal()) if taken else Decimal()
        return [_Entry(record["subject"]["reference"], self._drug(record), time, taken, dose)]

    def _from_letter(self, letter: Record) -> list[_Entry]:
        text = "\n".join(part.get("contentString", "") for part in letter.get("payload", []))
        if letter["status"] != "completed" or "Medication at discharge:" not in text:
            return []
        listed = find(r"Medication at discharge:\n((?:- .+(?:\n|$))*)", text)
        return [
            _Entry(
                letter["subject"]["reference"],
                self.by_name[name.lower()],
                instant(letter["sent"]),
                words != "stopped",
                _dose_in_words(words),
            )
            for name, words in re.findall(r"^- ([^:]+): (.+)$", listed, re.M)
            if name.lower() in self.by_name
        ]

    def current(self, patient: Record) -> dict[str, Decimal]:
        """Return the drugs that a patient takes, with the daily doses."""
        found = {}
        for drug in sorted(self.drugs):
            entries = [it for it in self.entries if it.patient == ref(patient) and it.drug == drug]
            newest = max(entries, key=lambda it: it.time, default=None)
            if newest is not None and newest.taken and not self._has_run_out(patient, drug):
                found[drug] = newest.dose
        return found

    def _has_run_out(self, patient: Record, drug: str) -> bool:
        last_days = [
            days_before(day(it["whenHandedOver"]), 1 - int(it["daysSupply"]["value"]))
            for it in self.dispenses
            if it["subject"]["reference"] == ref(patient) and it["status"] == "completed" and self._drug(it) == drug
        ]
        return bool(last_days) and max(last_days) < self.today


def _dose(instruction: Record) -> Decimal:
    """Return the mg a day of an instruction."""
    if instruction.get("asNeededBoolean") or "asNeededCodeableConcept" in instruction:
        return Decimal()
    repeat = instruction["timing"]["repeat"]
    per_day = Decimal(repeat.get("frequency", 1)) / (Decimal(str(repeat["period"])) * _DAYS[repeat["periodUnit"]])
    return sum((_mg(**it["doseQuantity"]) for it in instruction["doseAndRate"]), Decimal()) * per_day


def _mg(value: float, unit: str, **_: str) -> Decimal:
    return Decimal(str(value)) * (1000 if unit == "g" else 1)


def _dose_in_words(words: str) -> Decimal:
    """Return the mg a day of "0.5 g twice a day and 250 mg once a day as needed"."""
    total = Decimal()
    for part in words.split(" and "):
        if part == "stopped" or part.endswith(" as needed"):
            continue
        value, unit, often = part.split(" ", 2)
        every = re.fullmatch(r"every (\d+) hours", often)
        total += _mg(float(value), unit) * (Decimal(24) / int(every[1]) if every else _TIMES_A_DAY[often])
    return total


def solve(text: str, send: Send, writing: Writing = "patch") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    questions = [(letter, *first_match(_QUESTIONS, request)) for letter, request in prompt.requests]
    patients = Patients(desk, {asked["name"] for _, _, asked in questions})
    ids = patients.ids((asked["name"], asked["born"]) for _, _, asked in questions)
    charts = _Charts(desk, ids, prompt.rules, prompt.today)
    outcomes = []
    for letter, kind, asked in questions:
        found = patients.find(asked["name"], asked["born"])
        outcomes.append((letter, who(found) or _answer(kind, asked, charts.current(found[0]))))
    return finish(outcomes)


def _answer(kind: str, asked: dict[str, str], current: dict[str, Decimal]) -> str:
    if kind == "dose":
        dose = current.get(asked["drug"])
        return _NOT_TAKEN if dose is None else f"{dose:.6f}".rstrip("0").rstrip(".")
    if not current:
        return _NOT_TAKEN
    return ", ".join(current) if kind == "names" else str(len(current))
