"""Solver of a live shift: it takes one Task after the other, and lets the solver of its subject decide."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import Any

from .desk import NO_PATIENT, SEVERAL_PATIENTS, Desk, Patients, Record, Send, find, full_names, instant, ref, refers
from .policies import in_force_from, rules_in_force

_NO_DATE = "[date of birth not given]"
_NOBODY = "0000-00-00"
_WHICH, _AGREED = "which-patient", "is-agreed"
_NO_ANSWERS = {NO_PATIENT, SEVERAL_PATIENTS, "not taken", "no result", "no contact", "nothing wrong"}
_FAILED = {"409", "412"}


@dataclass
class _Shift:
    """The desk of one shift.

    Attributes:
        text: The prompt.
        real_send: Function that performs an action.
        asked: The questions by Task.
    """

    text: str
    real_send: Send
    now: datetime = field(init=False)
    asked: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = instant(find(r"^Present: (\S+?),", self.text))
        self.owner = find(r"owner is .+? \((Organization/\S+)\)", self.text)
        self.subjects = dict(re.findall(r"(?:: |, )([A-Z][\w ]+) \(code desk-(\w\d)\)", self.text))
        self.desk = Desk(self.send)

    def send(self, action: str) -> str:
        observation = self.real_send(action)
        clock = find(r"^HTTP .*\((\d\d:\d\d:\d\d)\)$", observation.partition("\n")[0])
        hour, minute, second = map(int, clock.split(":"))
        later = self.now.replace(hour=hour, minute=minute, second=second)
        self.now = later if later >= self.now else later.replace(day=later.day + 1)
        return observation

    def search(self, query: str) -> list[Record]:
        """Search without the copies of earlier searches."""
        return Desk(self.send).search(query)

    def write(self, *entries: Record) -> bool:
        """Send a transaction; return whether the server accepted it."""
        for entry in entries:
            version = entry["resource"].get("meta", {}).get("versionId")
            if entry["request"]["method"] == "PUT" and version:
                entry["request"]["ifMatch"] = f'W/"{version}"'
        body = {"resourceType": "Bundle", "type": "transaction", "entry": list(entries)}
        line, _, rest = self.send(f"POST /\n{json.dumps(body)}").partition("\n")
        status = line.split(" ")[1]
        if not status.startswith("2") and status not in _FAILED:
            raise RuntimeError(f"{line} {rest[:500]}")
        return status.startswith("2")

    def work(self) -> str:
        """Handle all Tasks; return the FINISH action."""
        while True:
            worklist = f"Task?owner={self.owner}&status=requested,in-progress"
            found = self.search(f"{worklist}&_revinclude=Communication:based-on")
            tasks = [it for it in found if it["resourceType"] == "Task"]
            messages = [it for it in found if it["resourceType"] == "Communication"]
            if not tasks:
                return "FINISH([])"
            answers = {ref(it): self._answers(it, messages) for it in tasks}
            ready = [it for it in tasks if set(answers[ref(it)]) >= self.asked.get(ref(it), set())]
            if ready:
                task = min(ready, key=lambda it: instant(it["restriction"]["period"]["end"]))
                self._handle(task, answers[ref(task)])
            else:
                self.write(*(_put({**it, "status": "on-hold"}) for it in tasks))

    def _answers(self, task: Record, messages: list[Record]) -> dict[str, str]:
        """Return the answers about a Task by the code of the question."""
        about = [it for it in messages if any(refers(reference, task) for reference in it.get("basedOn", []))]
        questions = {ref(it): it["reasonCode"][0]["text"] for it in about if "reasonCode" in it}
        return {
            questions[question["reference"]]: " ".join(part["contentString"] for part in it["payload"])
            for it in about
            for question in it.get("inResponseTo", [])
        }

    def _handle(self, task: Record, answers: dict[str, str]) -> None:
        if task["status"] == "requested" and not (task := self._taken(task)):
            return
        kind, born = self.subjects[task["code"]["text"]], self._birth_date(task, answers)
        wanted = {_AGREED} if _is_for_others(task) and not kind.startswith("i") else set()
        wanted |= set() if born else {_WHICH}
        if wanted - set(answers):
            self.asked[ref(task)] = wanted
            self.write(*(_post(_question(task, code)) for code in sorted(wanted - set(answers))))
        elif "not agree" in answers.get(_AGREED, ""):
            self.write(_put(_closed(task, "not allowed", kind)))
        else:
            self._solve(task, kind, task["description"].replace(_NO_DATE, born))

    def _birth_date(self, task: Record, answers: dict[str, str]) -> str:
        """Return what stands for a missing date of birth; an empty text if the desk must ask."""
        if _WHICH in answers:
            return find(r"(\d{4}-\d\d-\d\d)", answers[_WHICH])
        if _NO_DATE not in task["description"]:
            return _NOBODY
        name = find(r"(\S+ \S+?),? (?:born |\(date of birth )?\[date of birth not given\]", task["description"])
        found = [it for it in Patients(Desk(self.send), [name]).all if name in full_names(it)]
        return "" if len(found) > 1 else found[0]["birthDate"] if found else _NOBODY

    def _solve(self, task: Record, kind: str, description: str) -> None:
        """Decide, write and close the Task; start again if something has changed in the meantime."""
        while True:
            start = self.now
            outcome, entries, documents = self._decision(kind, description)
            changed = any(start < in_force_from(it) <= self.now for it in documents)
            if not changed and self.write(*entries, _put(_closed(task, outcome, kind))):
                return

    def _taken(self, task: Record) -> Record:
        """Set a Task to in-progress and return it; return an empty record if it is no longer requested."""
        steps = [
            {"op": "test", "path": "/status", "value": "requested"},
            {"op": "replace", "path": "/status", "value": "in-progress"},
        ]
        line, _, body = self.send(f"PATCH {ref(task)}\n{json.dumps(steps)}").partition("\n")
        return json.loads(body) if line.startswith("HTTP 200") else {}

    def _decision(self, kind: str, description: str) -> tuple[str, list[Record], list[Record]]:
        """Return the outcome and the changes of the solver of a subject, and the policies that it read."""
        entries: list[Record] = []
        documents: list[Record] = []

        def send(action: str) -> str:
            if not action.startswith("GET "):
                entries.extend(json.loads(action.partition("\n")[2])["entry"])
                return "HTTP 200 OK\n{}"
            observation = self.send(action)
            documents.extend(_policies(observation))
            return observation

        now = self.now
        policies = Desk(send).search(f"DocumentReference?type=policy&category=desk-{kind}")
        rules = "\n".join(rules_in_force(policies, now))
        present = find(r"^(Present: .+)$", self.text)
        prompt = f"{present}\nPolicies at: {now.isoformat()}\n\nA. {description}\n\nRules:\n{rules}"
        solver: Any = import_module(f"{__package__}.solve_{kind}")
        (told,) = json.loads(solver.solve(prompt, send, "transaction").removeprefix("FINISH(").removesuffix(")"))
        return told.removeprefix("A: "), entries, documents


def _policies(observation: str) -> Iterator[Record]:
    entries = json.loads(observation.partition("\n")[2]).get("entry", [])
    for record in (entry["resource"] for entry in entries):
        if record["resourceType"] == "DocumentReference" and "In force from" in record.get("text", {}).get("div", ""):
            yield record


def _is_for_others(task: Record) -> bool:
    return str(task["requester"]["reference"]).startswith("Organization/")


def _put(record: Record) -> Record:
    return {"resource": record, "request": {"method": "PUT", "url": ref(record)}}


def _post(record: Record) -> Record:
    return {"resource": record, "request": {"method": "POST", "url": record["resourceType"]}}


def _question(task: Record, code: str) -> Record:
    return {
        "resourceType": "Communication",
        "status": "completed",
        "basedOn": [{"reference": ref(task)}],
        "reasonCode": [{"text": code}],
    }


def _closed(task: Record, outcome: str, kind: str) -> Record:
    if kind.startswith("i") and outcome not in _NO_ANSWERS:
        output = [{"type": {"text": "answer"}, "valueString": outcome}]
        return {**task, "status": "completed", "businessStatus": {"text": "done"}, "output": output}
    status = "completed" if outcome == "done" else "rejected"
    return {**task, "status": status, "businessStatus": {"text": outcome}}


def solve(text: str, send: Send) -> str:
    """Return the FINISH action after a shift."""
    return _Shift(text, send).work()
