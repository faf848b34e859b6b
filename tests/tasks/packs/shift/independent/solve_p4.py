"""Solver of P4 (critical results under policies): it reads all results of the departments, and judges each one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal

from .desk import Desk, Prompt, Record, Send, Writing, codes, find, finish, first_match, instant, ref, refers
from .policies import Policies

_TIME = r"(?P<since>\S+ \S+?)"
_REQUESTS = [
    ("check", rf"Please go through the results of (?P<department>.+) since {_TIME}, and see to the critical ones\."),
    (
        "check",
        rf"(?P<department>.+): was anybody told about the critical results since {_TIME}\? Please take care of it\.",
    ),
    ("check", rf"Critical results of (?P<department>.+), issued after {_TIME}\."),
]
_TEST = re.compile(
    r"^  - (?P<name>\w+): (?P<code>\S+) in (?P<unit>\S+), and (?P<other>\S+) in [^;\s]+"
    r"(?:; the value in \S+ is (?P<factor>[\d.]+) times the value in \S+)?$",
    re.M,
)
_TASK_SYSTEM = "http://example.org/task-codes"
_CRITICAL = "critical-result"
_VOID_TASKS = {"cancelled", "rejected", "failed", "entered-in-error"}


@dataclass
class _Department:
    """The results of a department, and who answers for them."""

    desk: Desk
    prompt: Prompt
    policies: Policies
    name: str
    results: list[Record]
    patients: dict[str, Record]
    tasks: list[Record]
    duties: list[Record]

    @classmethod
    def read(cls, desk: Desk, prompt: Prompt, policies: Policies, name: str) -> _Department:
        clinic_name = find(r"All requests are about (.+) \(an Organization\)", prompt.rules)
        (clinic,) = [it for it in desk.search(f"Organization?name:exact={clinic_name}") if it["name"] == clinic_name]
        (department,) = [it for it in desk.search(f"Organization?partof={ref(clinic)}") if _is_named(it, name)]
        results = desk.search(
            f"Observation?encounter.service-provider={ref(department)}&status=final,amended,corrected&code="
            + ",".join(code for test in _TEST.finditer(prompt.rules) for code in (test["code"], test["other"]))
        )
        people = {it["subject"]["reference"].partition("/")[2] for it in results}
        return cls(
            desk,
            prompt,
            policies,
            name,
            results,
            {ref(it): it for it in desk.search_for("Patient?_id=", people)},
            desk.search_for(f"Task?code={_CRITICAL}&focus=", (ref(it) for it in results)),
            desk.search(f"PractitionerRole?role=on-call&active=true&organization={ref(department)}"),
        )

    def _says(self, pattern: str) -> str:
        found = self.policies.point(self.name, pattern)
        assert found is not None, pattern
        return str(found[0])

    def _is_critical(self, result: Record) -> bool:
        test = next(it for it in _TEST.finditer(self.prompt.rules) if codes(result["code"]) & {it["code"], it["other"]})
        value = Decimal(str(result["valueQuantity"]["value"]))
        if test["code"] not in codes(result["code"]):
            value *= Decimal(test["factor"] or 1)
        born = date.fromisoformat(self.patients[result["subject"]["reference"]]["birthDate"])
        issued = instant(result["issued"]).date()
        age = issued.year - born.year - ((issued.month, issued.day) < (born.month, born.day))
        limit = r"For critical results, patients under (\d+) years are children, all others adults\."
        group = "In children" if age < int(self._says(limit)) else "In adults"
        return any(
            value < number if word == "below" else value > number
            for word, number in self._limits(group, test["name"], test["unit"])
        )

    def _limits(self, group: str, test: str, unit: str) -> Iterator[tuple[str, Decimal]]:
        for who in (group, "At any age"):
            for word in ("below", "above"):
                pattern = rf"{who}, a {test} {word} ([\d.]+) {re.escape(unit)} is critical\."
                found = self.policies.point(self.name, pattern)
                if found:
                    yield word, Decimal(found[0])

    def check(self, since: datetime) -> str:
        alarming = [
            it
            for it in self.results
            if instant(it["issued"]) > since
            and self._is_critical(it)
            and not any(refers(task.get("focus"), it) and task["status"] not in _VOID_TASKS for task in self.tasks)
        ]
        for result in alarming:
            self._report(result)
        return "done" if alarming else "nothing to do"

    def _on_call(self, moment: datetime) -> str:
        (duty,) = [
            it
            for it in self.duties
            if instant(it["period"]["start"]) <= moment
            and ("end" not in it["period"] or moment < instant(it["period"]["end"]))
        ]
        return str(duty["practitioner"]["reference"])

    def _report(self, result: Record) -> None:
        issued = instant(result["issued"])
        due = issued + timedelta(
            minutes=int(self._says(r"The Task is due (\d+) minutes after the result was issued\."))
        )
        task = {
            "resourceType": "Task",
            "status": "requested",
            "intent": "order",
            "priority": self._says(r"The Task for a critical result has the priority (\w+)\."),
            "code": {"coding": [{"system": _TASK_SYSTEM, "code": _CRITICAL}]},
            "focus": {"reference": ref(result)},
            "for": result["subject"],
            "owner": {"reference": self._on_call(issued)},
            "restriction": {"period": {"end": f"{due:%Y-%m-%dT%H:%M:%SZ}"}},
        }
        task |= self.desk.optional(
            encounter=result["encounter"],
            authoredOn=f"{self.prompt.now:%Y-%m-%dT%H:%M:%SZ}",
            description="Please see to this result.",
        )
        self.desk.create(task)
        self.tasks.append(task)


def _is_named(department: Record, name: str) -> bool:
    return name in {coding.get("display") for it in department.get("type", []) for coding in it["coding"]}


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    policies = Policies(desk, prompt)
    departments: dict[str, _Department] = {}
    outcomes = []
    for letter, request in prompt.requests:
        asked = first_match(_REQUESTS, request)[1]
        name = asked["department"]
        departments[name] = departments.get(name) or _Department.read(desk, prompt, policies, name)
        since = instant(asked["since"].replace(" ", "T") + ":00Z")
        outcomes.append((letter, departments[name].check(since)))
    desk.commit()
    return finish(outcomes)
