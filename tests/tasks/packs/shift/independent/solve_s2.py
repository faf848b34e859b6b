"""Solver of S2 (duplicate records): it groups the patients of a site with a graph, and merges in one transaction."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations
from typing import Any

from .appointments import id_order, takes_part
from .desk import Desk, Prompt, Record, Send, Writing, code, day, finish, first_match, instant, ref, refers

_CARD = "http://example.org/health-card"
_SITE = r"(?P<site>.+?)"
_BORN = r"(?: born (?:before (?P<before>[\d-]+)|on or after (?P<since>[\d-]+)))?"
_REQUESTS = [
    ("merge", rf"Some patients of {_SITE}{_BORN} may be on file more than once\. Please merge their records\."),
    ("merge", rf"Please look for duplicate records among the patients of {_SITE}{_BORN}, and merge them\."),
    ("merge", rf"Duplicates: {_SITE}, (?:all )?patients{_BORN}\."),
]


class _Registry:
    """The patients of all sites that are asked for, and the records that may refer to them."""

    def __init__(self, desk: Desk, site_names: Iterable[str], today: str) -> None:
        self.desk, self.today = desk, today
        self.sites = {it["name"]: it for it in desk.search_for("Organization?name:exact=", site_names)}
        self.patients = desk.search_for("Patient?organization=", (ref(it) for it in self.sites.values()))
        references = [ref(it) for it in self.patients]
        self.appointments = desk.search_for("Appointment?actor=", references)
        self.others = [
            *desk.search_for("Condition?subject=", references),
            *desk.search_for("ServiceRequest?subject=", references),
        ]
        roles = ("beneficiary", "subscriber", "policy-holder", "payor")
        coverages = [it for role in roles for it in desk.search_for(f"Coverage?{role}=", references)]
        self.others += {ref(it): it for it in coverages}.values()

    def covered(self, asked: dict[str, str]) -> list[Record]:
        return [
            it
            for it in self.patients
            if refers(it.get("managingOrganization"), self.sites[asked["site"]])
            and it.get("active") is not False
            and (asked["before"] or "9999") > it["birthDate"] >= (asked["since"] or "")
        ]

    def merge(self, groups: list[list[Record]]) -> None:
        new_reference: dict[str, str] = {}
        for group in groups:
            kept, *merged = sorted(group, key=self._preference)
            _merge(self.desk, kept, merged)
            new_reference |= {ref(it): ref(kept) for it in merged}
        for record in [*self.appointments, *self.others]:
            moved = {name: _moved(value, new_reference) for name, value in record.items()}
            changed = {name: value for name, value in moved.items() if value != record[name]}
            if changed and self._is_open(record):
                self.desk.change(record, **changed)

    def _is_open(self, record: Record) -> bool:
        match record["resourceType"]:
            case "Appointment":
                return record["status"] in {"booked", "pending"}
            case "Condition":
                return code(record.get("clinicalStatus")) == "active"
            case "ServiceRequest":
                return record["status"] in {"active", "on-hold"}
            case _:
                return record["status"] == "active" and day(record.get("period", {}).get("end", "9999")) >= self.today

    def _preference(self, patient: Record) -> tuple[bool, float, tuple[int, str]]:
        has_card = any(
            it.get("use") == "official" and it.get("system") == _CARD for it in patient.get("identifier", [])
        )
        visits = [
            instant(it["start"]).timestamp()
            for it in self.appointments
            if it["status"] == "fulfilled" and takes_part(it, patient)
        ]
        return not has_card, -max(visits, default=0), id_order(patient)


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    requests = [(letter, first_match(_REQUESTS, request)[1]) for letter, request in prompt.requests]
    registry = _Registry(desk, {asked["site"] for _, asked in requests}, prompt.today)
    outcomes = []
    for letter, asked in requests:
        groups = _groups(registry.covered(asked))
        registry.merge(groups)
        outcomes.append((letter, "done" if groups else "nothing to do"))
    desk.commit()
    return finish(outcomes)


def _groups(patients: list[Record]) -> list[list[Record]]:
    """Return the records of each person who has several."""
    leader = {ref(it): ref(it) for it in patients}

    def find(reference: str) -> str:
        while leader[reference] != reference:
            reference = leader[reference]
        return reference

    for patient, other in combinations(patients, 2):
        if (
            patient["birthDate"] == other["birthDate"]
            and _names(patient) & _names(other)
            and _numbers(patient) & _numbers(other)
        ):
            leader[find(ref(patient))] = find(ref(other))
    groups = defaultdict(list)
    for patient in patients:
        groups[find(ref(patient))].append(patient)
    return [group for group in groups.values() if len(group) > 1]


def _names(patient: Record) -> set[tuple[str, str]]:
    return {(" ".join(it.get("given", [])), it.get("family", "")) for it in patient.get("name", [])}


def _cards(patient: Record) -> dict[str, Record]:
    return {it["value"]: it for it in patient.get("identifier", []) if it.get("system") == _CARD}


def _numbers(patient: Record) -> set[str]:
    phones = {
        re.sub(r"\D", "", it["value"].strip().removeprefix("+1"))
        for it in patient.get("telecom", [])
        if it.get("system") == "phone" and it.get("use") != "old"
    }
    return {f"phone {it}" for it in phones} | {f"card {it}" for it in _cards(patient)}


def _merge(desk: Desk, kept: Record, merged: list[Record]) -> None:
    identifiers = list(kept.get("identifier", []))
    links = list(kept.get("link", []))
    for other in merged:
        known = {it.get("value") for it in identifiers if it.get("system") == _CARD}
        identifiers += [
            {"use": "secondary", "system": _CARD, "value": number} for number in _cards(other) if number not in known
        ]
        links.append({"other": {"reference": ref(other)}, "type": "replaces"})
        own_links = [*other.get("link", []), {"other": {"reference": ref(kept)}, "type": "replaced-by"}]
        desk.change(other, active=False, link=own_links)
    changed = {"link": links}
    if len(identifiers) > len(kept.get("identifier", [])):
        changed["identifier"] = identifiers
    desk.change(kept, **changed)


def _moved(value: Any, new_reference: dict[str, str]) -> Any:
    """Return a copy of an element in which references to merged records are references to the kept ones."""
    if isinstance(value, list):
        return [_moved(it, new_reference) for it in value]
    if isinstance(value, dict):
        copy = {name: _moved(it, new_reference) for name, it in value.items()}
        if copy.get("reference") in new_reference:
            copy["reference"] = new_reference[copy["reference"]]
        return copy
    return value
