"""Solver of a live shift: it takes the Task that is due first, and lets the solver of its subject decide."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

from .desk import NO_PATIENT, SEVERAL_PATIENTS, Desk, Patients, Record, Send, find, full_names, instant, ref, refers
from .policies import in_force_from, rules_in_force

_NO_DATE = "[date of birth not given]"
_NOBODY = "0000-00-00"
_WHICH, _AGREED = "which-patient", "is-agreed"
_NO_ANSWERS = {"withdrawn", NO_PATIENT, SEVERAL_PATIENTS, "not taken", "no result", "no contact", "nothing wrong"}
_NEW_DESCRIPTION = "This replaces the description of my request: "
_POLICIES = "GET DocumentReference?type=policy&"
_ANY_TIME = datetime.max.replace(tzinfo=UTC)
_FAILED = {"409", "412"}
_PART = 5
"""Changes of a sweep after which the desk looks at the worklist again."""


@dataclass
class _Shift:
    """The desk of one shift.

    Attributes:
        text: The prompt.
        real_send: Function that performs an action.
        taken: The times at which the desk set Tasks to in-progress.
        asked: The questions by Task.
        policies: The responses to the searches for policies. (The text of an amendment says when it comes into force.)
        tasks: The worklist as the desk last saw it, without the Tasks that it has handled since.
        messages: The messages about these Tasks, and the questions and answers.
    """

    text: str
    real_send: Send
    now: datetime = field(init=False)
    taken: dict[str, datetime] = field(default_factory=dict)
    asked: dict[str, set[str]] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    tasks: list[Record] = field(default_factory=list)
    messages: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = instant(find(r"^Present: (\S+?),", self.text))
        self.wait = timedelta(
            seconds=int(find(r"at least (\d+) seconds after you sent the change to in-progress", self.text))
        )
        self.owner = find(r"owner is .+? \((Organization/\S+)\)", self.text)
        self.subjects = dict(re.findall(r"(?:: |, )([A-Z][\w ]+) \(code desk-(\w\d)\)", self.text))

    def send(self, action: str) -> str:
        observation = self.real_send(action)
        clock = find(r"^HTTP .*\((\d\d:\d\d:\d\d)\)$", observation.partition("\n")[0])
        hour, minute, second = map(int, clock.split(":"))
        later = self.now.replace(hour=hour, minute=minute, second=second)
        self.now = later if later >= self.now else later.replace(day=later.day + 1)
        return observation

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
            self._look()
            if not self.tasks:
                return "FINISH([])"
            if not self._serve(_ANY_TIME):
                self.write(*(_put({**it, "status": "on-hold"}) for it in self.tasks))
            while self._serve(_ANY_TIME):
                pass

    def _look(self) -> None:
        """Search for the open Tasks and the messages about them."""
        worklist = f"Task?owner={self.owner}&status=requested,in-progress"
        found = Desk(self.send).search(f"{worklist}&_revinclude=Communication:based-on")
        self.tasks = [it for it in found if it["resourceType"] == "Task"]
        self.messages = [it for it in found if it["resourceType"] == "Communication"]

    def _serve(self, before: datetime) -> bool:
        """Handle the Task that is due first; return False if none that is due before a time is ready."""
        ready = [
            it for it in self.tasks if _due(it) < before and set(self._answers(it)) >= self.asked.get(ref(it), set())
        ]
        # The next Task is taken, too: what others do about it in the first minutes happens during the other work.
        taken = [self._begun(it) for it in sorted(ready, key=_due)[:2]]
        if taken and taken[0]:
            self.tasks.remove(taken[0])
            self._handle(taken[0])
        return bool(ready)

    def _begun(self, task: Record) -> Record:
        """Return a Task of the worklist that is in-progress; an empty record if it is no longer requested."""
        begun = self._taken(task) if task["status"] == "requested" else task
        self.tasks = [begun if it is task else it for it in self.tasks if it is not task or begun]
        return begun

    def _about(self, task: Record) -> list[Record]:
        return [it for it in self.messages if any(refers(reference, task) for reference in it.get("basedOn", []))]

    def _answers(self, task: Record) -> dict[str, str]:
        """Return the answers about a Task by the code of the question."""
        about = self._about(task)
        questions = {ref(it): it["reasonCode"][0]["text"] for it in about if "reasonCode" in it}
        return {questions[question["reference"]]: _text(it) for it in about for question in it.get("inResponseTo", [])}

    def _wish(self, task: Record) -> str:
        """Return what the requester wants according to the last message; an empty text if the request is withdrawn."""
        sent = [it for it in self._about(task) if it.get("sender") == task["requester"]]
        if not sent:
            return str(task["description"])
        text = _text(max(sent, key=lambda it: instant(it["sent"])))
        return "" if text.endswith("I withdraw my request.") else text.removeprefix(_NEW_DESCRIPTION)

    def _handle(self, task: Record) -> None:
        """RequestContent about a Task what is not known; close the Task if all is known."""
        kind, wish, answers = self.subjects[task["code"]["text"]], self._wish(task), self._answers(task)
        born = self._birth_date(wish, answers)
        is_for_others = task["requester"]["reference"].startswith("Organization/") and not kind.startswith("i")
        wanted = ({_AGREED} if is_for_others else set()) | (set() if born else {_WHICH})
        if wish and wanted - set(answers):
            self.asked[ref(task)] = wanted
            self.write(*(_post(_question(task, code)) for code in sorted(wanted - set(answers))))
        else:
            refused = "not allowed" if "not agree" in answers.get(_AGREED, "") else ""
            self._solve(task, kind, wish.replace(_NO_DATE, born), refused if wish else "withdrawn")

    def _birth_date(self, wish: str, answers: dict[str, str]) -> str:
        """Return what stands for a missing date of birth; an empty text if the desk must ask."""
        if _WHICH in answers:
            return find(r"(\d{4}-\d\d-\d\d)", answers[_WHICH])
        if _NO_DATE not in wish:
            return _NOBODY
        name = find(r"(\S+ \S+?),? (?:born |\(date of birth )?\[date of birth not given\]", wish)
        found = [it for it in Patients(Desk(self.send), [name]).all if name in full_names(it)]
        return "" if len(found) > 1 else found[0]["birthDate"] if found else _NOBODY

    def _solve(self, task: Record, kind: str, description: str, known: str) -> None:
        """Decide, write and close the Task; leave it in the worklist if something changes before the first write."""
        wish = self._wish(task)
        while self.now < self.taken[ref(task)] + self.wait:
            self._look()
        if wish != self._wish(task):
            return
        start = self.now
        outcome, entries, documents = (known, [], []) if known else self._decision(kind, description, start)
        self._look()
        if wish != self._wish(task) or any(start < in_force_from(it) <= self.now for it in documents):
            return
        latest = next((it for it in self.tasks if ref(it) == ref(task)), task)  # somebody may have added a note
        closing = _put(_closed(latest, outcome, kind))
        first, *others = _parts(kind, [*entries, closing])
        if self.write(*first):
            while not self._go_on(task, others):
                entries = self._decision(kind, description, start)[1]
                others = _parts(kind, [*entries, closing])
            self.tasks = [it for it in self.tasks if ref(it) != ref(task)]

    def _go_on(self, task: Record, parts: list[list[Record]]) -> bool:
        """Write the other parts of a sweep, and handle what is due earlier; return False if a part is refused."""
        for part in parts:
            self._look()
            while self._serve(_due(task)):
                pass
            if not self.write(*part):
                return False
        return True

    def _taken(self, task: Record) -> Record:
        """Set a Task to in-progress and return it; return an empty record if it is no longer requested."""
        steps = [
            {"op": "test", "path": "/status", "value": "requested"},
            {"op": "replace", "path": "/status", "value": "in-progress"},
        ]
        self.taken[ref(task)] = self.now
        line, _, body = self.send(f"PATCH {ref(task)}\n{json.dumps(steps)}").partition("\n")
        return json.loads(body) if line.startswith("HTTP 200") else {}

    def _decision(self, kind: str, description: str, now: datetime) -> tuple[str, list[Record], list[Record]]:
        """Return the outcome and the changes of the solver of a subject, and the policies that it read."""
        entries: list[Record] = []
        documents: list[Record] = []

        def send(action: str) -> str:
            if not action.startswith("GET "):
                entries.extend(json.loads(action.partition("\n")[2])["entry"])
                return "HTTP 200 OK\n{}"
            if not action.startswith(_POLICIES):
                return self.send(action)
            if action not in self.policies:
                self.policies[action] = self.send(action)
            documents.extend(_policies(self.policies[action]))
            return self.policies[action]

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


def _parts(kind: str, entries: list[Record]) -> list[list[Record]]:
    """Divide the writes of a sweep; an appointment stays together with its slots."""
    parts: list[list[Record]] = [[]]
    for entry in entries:
        stays = entry["resource"]["resourceType"] == "Appointment" or entry["resource"].get("status") == "busy"
        if kind.startswith("s") and len(parts[-1]) >= _PART and not stays:
            parts.append([])
        parts[-1].append(entry)
    return parts


def _due(task: Record) -> datetime:
    return instant(task["restriction"]["period"]["end"])


def _text(message: Record) -> str:
    return " ".join(part["contentString"] for part in message["payload"])


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
