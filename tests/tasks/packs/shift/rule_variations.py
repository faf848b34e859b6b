"""What the reference solution does for each request, also without one of the rules that contain a number or a time.

Patches of what the solution reads or computes switch the rules off. A rule decides in an episode if some request then
has another outcome or other writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from fhir_gym import Episode
from fhir_gym.actions import Action
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.packs.shift import charts, formulary, place_records
from fhir_gym.tasks.packs.shift import i2_trends as i2
from fhir_gym.tasks.packs.shift import q1_bookings as q1
from fhir_gym.tasks.packs.shift import q2_changes as q2
from fhir_gym.tasks.packs.shift import q4_orders as q4
from fhir_gym.tasks.packs.shift.i1_medications import kind as i1
from fhir_gym.tasks.packs.shift.i3_contacts import kind as i3
from fhir_gym.tasks.packs.shift.i4_contradictions import kind as i4
from fhir_gym.tasks.packs.shift.kind import Knowledge, Request
from fhir_gym.tasks.packs.shift.laboratory import LabTest
from fhir_gym.tasks.packs.shift.p2_order_sets import rules as p2
from fhir_gym.tasks.packs.shift.policies import Library
from fhir_gym.tasks.packs.shift.q3_registrations import rules as q3
from fhir_gym.tasks.packs.shift.s1_absences.rules import LENGTH_IGNORED, PRIORITY_IGNORED, AbsenceCalendar
from fhir_gym.tasks.packs.shift.s2_duplicates import kind as s2
from fhir_gym.tasks.packs.shift.s3_insurers import kind as s3
from fhir_gym.tasks.packs.shift.s4_recalls.scene import RecallRules
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from tests.tasks.packs.shift.playing import answer_of, names_of_checks, params_of

Result = tuple[str, tuple[str, ...]]
"""The outcome of a request, and what is written for it."""
Given = dict[str, str]


@dataclass(frozen=True)
class Without:
    """What the reference solution does without a rule.

    Attributes:
        patches: Objects, names of their attributes, and other values.
        ask: Other values of the fields of requests.
        given: Changes the values in the rules.
    """

    patches: tuple[tuple[Any, str, Any], ...] = ()
    ask: Mapping[str, Any] = field(default_factory=dict)
    given: Callable[[Given], object] = lambda given: None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the patches."""
        with ExitStack() as stack:
            for owner, name, value in self.patches:
                stack.enter_context(patch.object(owner, name, value))
            yield


def results(episode: Episode, requests: Sequence[Request], rule: Without | None = None) -> list[Result]:
    """Solve some requests from the start state, and return their results."""
    task, rule = episode.task, rule or Without()
    assert isinstance(task, StaticShift)
    params = params_of(episode)
    given = dict(task.requests.rule_values(params.scene))
    rule.given(given)
    knowledge = Knowledge(given, parse_instant(params.now))
    episode.start()
    found = []
    with rule.applied():
        for request in requests:
            changed = {name: value for name, value in rule.ask.items() if hasattr(request.ask, name)}
            solution = task.requests.solve(request.ask.model_copy(update=changed), knowledge)
            found.append(_result(episode, solution))
    return found


def dependent_checks(episode: Episode) -> set[str]:
    """Return the names of the checks of the requests whose results depend on earlier requests."""
    requests = params_of(episode).requests
    right = results(episode, requests)
    alone = (results(episode, [request]) for request in requests)
    found = {*names_of_checks(outcome != [result] for outcome, result in zip(alone, right, strict=True))}
    episode.start()
    return found


def _result(episode: Episode, solution: Any) -> Result:
    """Return the result of one solution; it names the records that it has created itself by their types."""
    written: list[str] = []
    created: dict[str, str] = {}
    try:
        action: Action = next(solution)
        while True:
            response = answer_of(episode.step(action))
            if action.kind != "GET":
                text = f"{action.kind} {action.url} {action.body}"
                for reference, type in created.items():
                    text = text.replace(reference, f"{type}/new")
                written.append(text)
                if action.kind == "POST":
                    created[f"{response['resourceType']}/{response['id']}"] = response["resourceType"]
            action = solution.send(response)
    except StopIteration as end:
        return end.value, tuple(written)


def patched(*patches: tuple[Any, str, Any]) -> Without:
    return Without(patches)


def asked(**fields: Any) -> Without:
    return Without(ask=fields)


def calling(module: Any, name: str, *args: Any, **more: Any) -> tuple[Any, str, Any]:
    """Return the patch that calls a function with further arguments."""
    whole = getattr(module, name)
    return module, name, lambda *first: whole(*first, *args, **more)


def given_all(**fields: Any) -> Without:
    """Replace fields of the rules that are given as one value."""
    return Without(given=lambda given: given.update(all=json.dumps(json.loads(given["all"]) | fields)))


def items(change: Callable[[formulary.Item], Mapping[str, Any]]) -> Without:
    """Replace fields of the drugs and tests that can be ordered."""

    def replace(given: Given) -> None:
        found = formulary.Formulary.model_validate_json(given["formulary"])
        changed = tuple(item.model_copy(update=dict(change(item))) for item in found.items)
        given["formulary"] = found.model_copy(update={"items": changed}).model_dump_json()

    return Without(given=replace)


def policies(other: Callable[[str], str | None]) -> Without:
    """Replace the values of the points of policies for which a function returns another value."""
    valid = Library.values

    def values(self: Library, subject: str, department: str, now: datetime) -> dict[str, str]:
        found = valid(self, subject, department, now)
        return {name: other(name) or value for name, value in found.items()}

    return patched((Library, "values", values))


def policy(name: str, value: str) -> Without:
    return policies({name: value}.get)


def limits(side: str, group: str) -> Without:
    """Replace critical limits by limits that no value reaches."""
    never = {"above": "1000000", "below": "-1"}
    return policies(
        lambda name: (
            next((never[limit] for limit in never if f"-{limit}-" in name and side in ("", limit)), None)
            if name.endswith(group)
            else None
        )
    )


def _long_ago(moment: datetime) -> str:
    return "1900-01-01T00:00:00Z"


_NEVER = 10**6
_POUNDS = patched((charts, "KG_PER_POUND", 1))
_MOLES = patched((charts, "UMOL_PER_MG", 1))
_WISHES = {"first day": asked(first_day=""), "weekdays": asked(weekdays=()), "part of the day": asked(part="")}

RULES: Mapping[str, Mapping[str, Without]] = MappingProxyType(
    {
        "Q1": {
            **_WISHES,
            "length": asked(minutes=0),
            "after the present": patched((q1, "instant", _long_ago), (place_records, "instant", _long_ago)),
        },
        "Q2": {
            **_WISHES,
            "as long as the present slot": patched((q2, "_AsLong", lambda ask, least: ask)),
            "has started": patched((q2, "instant", _long_ago), (place_records, "instant", _long_ago)),
        },
        "Q3": {"periods": patched((q3, "_includes", lambda record, day: True))},
        "Q4": {
            "duplicates in 30 days": patched((q4, "DUPLICATE_DAYS", 10_000)),
            "largest dose": items(lambda item: {"most": _NEVER}),
            "half of the dose": items(lambda item: {"limit": 0} if item.halved else {}),
            "forbidden above a creatinine": items(lambda item: {} if item.halved else {"limit": 0}),
            "rounding": patched((formulary, "STEP", 1)),
            "pounds": _POUNDS,
            "umol/L": _MOLES,
        },
        "S1": {
            "calendar days": Without(given=lambda given: given.update(days="365")),
            "length": patched(calling(AbsenceCalendar, "clear", LENGTH_IGNORED)),
            "priorities": patched(calling(AbsenceCalendar, "clear", PRIORITY_IGNORED)),
        },
        "S2": {
            "dates of birth": asked(before="", since=""),
            "latest visit": patched(calling(s2, "Merge", flaw="latest visit")),
            "status and period": patched(calling(s2, "Merge", flaw="status")),
        },
        "S3": {
            "ended coverages": patched(calling(s3, "Ending", flaw="ended coverages")),
            "later coverages": patched(calling(s3, "Ending", flaw="later coverages")),
            "days of appointments": patched(calling(s3, "Ending", flaw="appointment days")),
        },
        "S4": {
            "since": asked(since="9999-01-01"),
            "days of orders": given_all(order_days=10_000),
            "days of visits": given_all(visit_days=10_000),
            "limit": patched((RecallRules, "limit", lambda self, test, code: _NEVER)),
            "units of the limit": patched((RecallRules, "limit", lambda self, test, code: float(self.limits[test]))),
        },
        "I1": {
            rule: patched(calling(i1, "decisions", rule), calling(i1, "outcome_of", rule))
            for rule in ("newest", "supply", "instructions", "needed", "unit")
        },
        "I2": {
            "window": patched(calling(i2, "exact_answer", "window")),
            "unit": patched(calling(i2, "exact_answer", "unit")),
            "same time": patched(calling(i2, "exact_answer", "repeats")),
            "limit": asked(limit="0"),
            "rounding": patched(calling(i2, "exact_answer", "rounding")),
        },
        "I3": {rule: patched(calling(i3, "outcome_of", rule)) for rule in ("window", "minutes", "sum", "twice")},
        "I4": {rule: patched(calling(i4, "outcome_of", rule)) for rule in ("birth", "death", "order", "organ", "time")},
        "P1": {
            "first day": policy("first-day", "0 days"),
            "last day": policy("last-day", "60"),
            "weekdays": policy("weekdays", "Mondays Tuesdays Wednesdays Thursdays Fridays"),
            "shortest slot of new patients": policy("new-patients", "0"),
            "longest slot of others": policy("known-patients", "1440"),
            "appointments in a week": policy("week", "99 appointments"),
            "missed appointments": policy("missed", "99 or more appointments"),
        },
        "P2": {
            "largest dose": policy("most", f"{_NEVER}"),
            "half of the dose": policy("creatinine", f"{_NEVER}"),
            "age of the weight": policy("weight", "100000"),
            "repeated tests": policy("repeat", "-1"),
            "rounding": patched((p2, "STEP", 1)),
            "pounds": _POUNDS,
            "umol/L": _MOLES,
        },
        "P3": {
            "age of consents": policy("consent-days", "100000"),
            "age of documents": policy("span", "100000"),
            "repeated releases": policy("repeat", "-1"),
        },
        "P4": {
            "age of children": policy("child-age", "0"),
            "limits above": limits("above", ""),
            "limits below": limits("below", ""),
            "limits for adults": limits("", "adults"),
            "limits for children": limits("", "children"),
            "minutes until due": policy("minutes", "1"),
            "units": patched((LabTest, "converted", lambda self, code, value: value)),
            "issued since": asked(since="1900-01-01T00:00:00Z"),
        },
    }
)
"""For each kind, the rules that contain a number or a time, or compare times."""
