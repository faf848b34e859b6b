"""Solver of I4 (contradictions): it reads the whole record of every patient asked for, and judges each entry."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime

from .desk import Desk, Patients, Prompt, Record, Send, Writing, codes, day, finish, first_match, instant, ref, who

_NOTHING_WRONG = "nothing wrong"
_0 = r"(?P<name>.+), born (?P<born>\S+)"
_1 = r"(?P<name>.+) \(date of birth (?P<born>\S+)\)"
_2 = r"(?P<name>.+), (?P<born>\d{4}-\d\d-\d\d)"
_QUESTIONS = [
    ("number", rf"How many (?P<what>\w+) of {_0}, cannot be right\?"),
    ("ids", rf"Which (?P<what>\w+) of {_0}, cannot be right\?"),
    ("number", rf"Please count the (?P<what>\w+) of {_1} that cannot be right\."),
    ("ids", rf"Please list the (?P<what>\w+) of {_1} that cannot be right\."),
    ("number", rf"{_2}: number of (?P<what>\w+) that cannot be right\."),
    ("ids", rf"{_2}: ids of the (?P<what>\w+) that cannot be right\."),
]
_TYPES = {
    "encounters": ["Encounter"],
    "results": ["Observation"],
    "procedures": ["Procedure"],
    "diagnoses": ["Condition"],
    "records": ["Encounter", "Observation", "Procedure", "Condition"],
}
_VOID = {
    "Encounter": {"cancelled", "entered-in-error"},
    "Observation": {"cancelled", "entered-in-error"},
    "Procedure": {"not-done", "entered-in-error"},
    "Condition": {"refuted", "entered-in-error"},
}
_CODE_RULE = re.compile(r"^  - .+ \((?P<type>\w+), (?:SNOMED CT|LOINC) (?P<code>\S+)\): (?P<clauses>.+)$", re.M)
_GENDERS = {"women": "female", "men": "male"}
_Rules = dict[tuple[str, str], dict[str, str]]


def solve(text: str, send: Send, writing: Writing = "patch") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    rules = {(rule["type"], rule["code"]): _clauses(rule["clauses"]) for rule in _CODE_RULE.finditer(prompt.rules)}
    questions = [(letter, *first_match(_QUESTIONS, request)) for letter, request in prompt.requests]
    patients = Patients(desk, {asked["name"] for _, _, asked in questions})
    ids = patients.ids((asked["name"], asked["born"]) for _, _, asked in questions)
    records = defaultdict(list)
    for resource_type in _TYPES["records"]:
        for record in desk.search_for(f"{resource_type}?subject=", (f"Patient/{it}" for it in ids)):
            records[record["subject"]["reference"]].append(record)
    mentioned = {
        record["encounter"]["reference"] for chart in records.values() for record in chart if "encounter" in record
    }
    unknown = {reference.partition("/")[2] for reference in mentioned if reference not in desk.records}
    desk.search_for("Encounter?_id=", unknown)
    outcomes = []
    for letter, kind, asked in questions:
        found = patients.find(asked["name"], asked["born"])
        outcome = who(found)
        if not outcome:
            wrong = _wrong(found[0], records[ref(found[0])], rules, desk)
            chosen = [record["id"] for record in wrong if record["resourceType"] in _TYPES[asked["what"]]]
            outcome = _NOTHING_WRONG if not chosen else str(len(chosen)) if kind == "number" else ", ".join(chosen)
        outcomes.append((letter, outcome))
    return finish(outcomes)


def _clauses(text: str) -> dict[str, str]:
    found = {}
    for clause in text.split("; "):
        name, _, value = clause.rpartition(" ")
        found[name.removesuffix(" the").removesuffix(" for")] = _GENDERS.get(value, value)
    return found


def _void(record: Record) -> bool:
    status = record.get("verificationStatus") if record["resourceType"] == "Condition" else record["status"]
    return bool(_VOID[record["resourceType"]] & (codes(status) if isinstance(status, dict) else {status}))


def _time(record: Record) -> str:
    if record["resourceType"] == "Encounter":
        return str(record["period"]["start"])
    return str(record.get("effectiveDateTime") or record.get("performedDateTime") or record["onsetDateTime"])


def _wrong(patient: Record, chart: list[Record], rules: _Rules, desk: Desk) -> list[Record]:
    counting = [record for record in chart if not _void(record)]
    about = {ref(record): _about(record, rules) for record in counting}
    wrong = [record for record in counting if _impossible(record, patient, about[ref(record)], desk)]
    removed: dict[str, datetime] = {}
    for record in counting:
        organ = about[ref(record)].get("removes")
        if organ and record not in wrong:
            moment = instant(_time(record))
            removed[organ] = min(moment, removed.get(organ, moment))
    for record in counting:
        organ = about[ref(record)].get("removes") or about[ref(record)].get("is about")
        if record not in wrong and organ in removed and instant(_time(record)) > removed[organ]:
            wrong.append(record)
    return wrong


def _about(record: Record, rules: _Rules) -> dict[str, str]:
    found: dict[str, str] = {}
    for coding in codes(record.get("code")):
        found |= rules.get((record["resourceType"], coding), {})
    return found


def _impossible(record: Record, patient: Record, about: dict[str, str], desk: Desk) -> bool:
    """Return whether a record is wrong for a reason other than an organ that is gone."""
    time, died = _time(record), patient.get("deceasedDateTime")
    encounter = desk.records.get(record.get("encounter", {}).get("reference", ""))
    end = record.get("period", {}).get("end")
    return (
        day(time) < patient["birthDate"]
        or (died is not None and instant(time) > instant(died))
        or (end is not None and instant(end) < instant(time))
        or (encounter is not None and encounter["subject"]["reference"] != ref(patient))
        or about.get("only possible", patient.get("gender")) != patient.get("gender")
    )
