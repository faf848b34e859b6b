"""Mistakes of agents: an agent that solves the tasks in the right way misreads the prompt or the records.

The agents are the independent solvers, which know the prompt only. Each mistake changes what they read, so that they
break one rule, but changes nothing on the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from tests.tasks.packs.shift.independent.desk import Record, Send, instant

Reading = Callable[[Record], Any]
"""Changes a record that the agent reads. If it returns False, the agent overlooks the record."""


@dataclass(frozen=True)
class Misreading:
    """What an agent misreads.

    Attributes:
        read: See `Reading`.
        url: A pattern in the agent's searches, and what the agent writes instead.
        prompt: A pattern in the prompt, and what the agent reads instead.
        first_page: Whether the agent follows no links to further pages.
        once: Whether the agent handles one request after the other, and repeats no search.
    """

    read: Reading = lambda record: True
    url: tuple[str, str] = ("^$", "")
    prompt: tuple[str, str] = ("^$", "")
    first_page: bool = False
    once: bool = False

    def sender(self, send: Send) -> Send:
        """Return a function that performs an action and returns what the agent reads."""
        known: dict[str, str] = {}

        def misread(action: str) -> str:
            if not action.startswith("GET "):
                return send(action)
            if action not in known or not self.once:
                known[action] = self._observation(send(re.sub(*self.url, action)))
            return known[action]

        return misread

    def _observation(self, observation: str) -> str:
        line, _, body = observation.partition("\n")
        bundle = json.loads(body)
        bundle["entry"] = [entry for entry in bundle.get("entry", []) if self.read(entry["resource"]) is not False]
        if self.first_page:
            bundle["link"] = []
        return f"{line}\n{json.dumps(bundle)}"


def seen(resource_type: str, change: Reading | None = None, **elements: Any) -> Misreading:
    """Return the misreading that records of a type have other elements."""

    def read(record: Record) -> Any:
        if record["resourceType"] == resource_type:
            record.update(elements)
            return change(record) if change else True
        return True

    return Misreading(read)


def overlooked(resource_type: str, which: Reading = lambda record: True) -> Misreading:
    """Return the misreading that there are no such records of a type."""
    return seen(resource_type, lambda record: not which(record))


def reworded(pattern: str, words: str) -> Misreading:
    return Misreading(prompt=(pattern, words))


def searched(pattern: str, other: str = "") -> Misreading:
    return Misreading(url=(pattern, other))


def coded(code: str) -> Record:
    return {"coding": [{"code": code}]}


def mirrored(text: str) -> str:
    """Return a time that is the earlier, the later a time is."""
    return (_MIDDLE + (_MIDDLE - instant(text))).isoformat()


def at_status(status: str, *types: str) -> Misreading:
    """Return the misreading that all records of some types have a status."""

    def read(record: Record) -> Any:
        if record["resourceType"] in types:
            record["status"] = status

    return Misreading(read)


def mirrored_times(*names: str) -> Reading:
    def read(record: Record) -> Any:
        record.update({name: mirrored(record[name]) for name in names if name in record})

    return read


def without_provisions(*names: str) -> Reading:
    def read(record: Record) -> Any:
        for name in names:
            record["provision"].pop(name, None)

    return read


def _last_a_minute(record: Record) -> Any:
    record["end"] = (instant(record["start"]) + timedelta(minutes=1)).isoformat()


def _swap_lists(letter: Record) -> Any:
    for part in letter.get("payload", []):
        text = part["contentString"].replace("at discharge", "at DISCHARGE").replace("at admission", "at discharge")
        part["contentString"] = text.replace("at DISCHARGE", "at admission")


def _instructions(record: Record) -> list[Record]:
    return [*record.get("dosageInstruction", []), *record.get("dosage", [])]


def _regular(record: Record) -> Any:
    for instruction in _instructions(record):
        instruction.pop("asNeededBoolean", None)


def _in_milligrams(record: Record) -> Any:
    for instruction in _instructions(record):
        for part in instruction["doseAndRate"]:
            part["doseQuantity"].update(unit="mg")


def _close(encounter: Record) -> Any:
    for stay in encounter["location"]:
        stay["period"].setdefault("end", stay["period"]["start"])


def _valid(record: Record) -> Any:
    if record["resourceType"] == "Condition":
        record["verificationStatus"] = coded("confirmed")
    elif record["resourceType"] in ("Encounter", "Observation", "Procedure"):
        record["status"] = "final"


def _open(record: Record) -> Any:
    status = {"Appointment": "booked", "ServiceRequest": "active", "Coverage": "active"}
    if record["resourceType"] in status:
        record["status"] = status[record["resourceType"]]
    elif record["resourceType"] == "Condition":
        record["clinicalStatus"] = coded("active")


def of_patients(**elements: Any) -> Reading:
    """Return the misreading of documents of patients, which are no policies."""
    return lambda document: document.update(elements) if "subject" in document else None


def _without_replacement(document: Record) -> Any:
    document["relatesTo"] = [relation for relation in document.get("relatesTo", []) if relation["code"] != "replaces"]


def _in_force_already(document: Record) -> Any:
    if "text" in document:
        document["text"]["div"] = re.sub(r"In force from \d{4}", "In force from 2019", document["text"]["div"])


def _quantity(**elements: Any) -> Reading:
    return lambda record: record["valueQuantity"].update(elements)


_MIDDLE = instant("2030-01-01")
_ANY_WISH = r" (?:The practitioner must|Only|It has to be|Not before|The slot must)[^.]*\."
_POLICIES: Mapping[str, Misreading] = MappingProxyType(
    {
        "amendments": overlooked("DocumentReference", lambda resource: '"appends"' in json.dumps(resource)),
        "departments": overlooked(
            "DocumentReference",
            lambda resource: "subject" not in resource and "practiceSetting" in resource.get("context", {}),
        ),
        "replaced": seen("DocumentReference", _without_replacement),
        "drafts": seen("DocumentReference", docStatus="final"),
        "not in force": seen("DocumentReference", _in_force_already),
    }
)


_ORDERS: Mapping[str, Misreading] = MappingProxyType(
    {
        "results of any status": seen("Observation", status="final"),
        "units ignored": seen("Observation", _quantity(unit="kg", code="kg")),
        "first result": seen("Observation", mirrored_times("effectiveDateTime")),
        "no allergies": overlooked("AllergyIntolerance"),
        "intolerances count": seen("AllergyIntolerance", type="allergy"),
        "old allergies count": seen("AllergyIntolerance", clinicalStatus=coded("active")),
        "no pregnancy": overlooked("Condition"),
        "any pregnancy": seen("Condition", clinicalStatus=coded("active"), verificationStatus=coded("confirmed")),
        "orders of any status": at_status("active", "MedicationRequest", "ServiceRequest"),
        "no orders": Misreading(
            lambda resource: resource["resourceType"] not in ("MedicationRequest", "ServiceRequest")
        ),
    }
)

MISREADINGS: Mapping[str, Mapping[str, Misreading]] = MappingProxyType(
    {
        "I1": {
            "records of any status": at_status("active", "MedicationRequest", "MedicationStatement"),
            "plans count": seen("MedicationRequest", intent="order"),
            "statements": overlooked("MedicationStatement"),
            "letters": overlooked("Communication"),
            "trade names": reworded(r"trade name \S+", "trade name None"),
            "admission": seen("Communication", _swap_lists),
            "oldest": Misreading(mirrored_times("authoredOn", "dateAsserted", "sent")),
            "supply": overlooked("MedicationDispense"),
            "void dispenses": seen("MedicationDispense", status="completed"),
            "as needed": Misreading(_regular),
            "grams": Misreading(_in_milligrams),
        },
        "I2": {
            "window": reworded(r"\d{4}-\d\d-\d\d( to | and )", r"1900-01-01\1"),
            "status": seen("Observation", status="final"),
            "repeats": seen("Observation", mirrored_times("issued")),
            "unit": reworded(r"is [\d.]+ times the value in (\S+?)(, plus [\d.]+)?;", r"is 1 times the value in \1;"),
        },
        "I3": {
            "encounter status": seen("Encounter", status="finished"),
            "stay status": seen(
                "Encounter", lambda resource: [stay.update(status="completed") for stay in resource["location"]]
            ),
            "beds only": overlooked("Location", lambda resource: resource["name"].startswith("Bed")),
            "window": reworded(r"\d{4}-\d\d-\d\d \d\d:\d\d( to | and )", r"1900-01-01 00:00\1"),
            "any time": reworded(r"(at least|for) \d+ minutes", r"\1 1 minutes"),
            "open end": seen("Encounter", _close),
        },
        "I4": {
            "death": seen("Patient", lambda resource: resource.pop("deceasedDateTime", None)),
            "order": seen("Encounter", lambda resource: resource["period"].pop("end", None)),
            "encounter": Misreading(lambda resource: resource.pop("encounter", None)),
            "gender": reworded(r"only possible for (women|men)", "is common"),
            "organ": reworded(r"removes the (\w+)", r"is about the \1"),
            "void": Misreading(_valid),
            "removals only": reworded(r"is about the \w+", "is common"),
        },
        "P1": {
            **_POLICIES,
            "missed": seen(
                "Appointment",
                lambda resource: resource.update(status="cancelled") if resource["status"] == "noshow" else None,
            ),
            "weeks": overlooked("Appointment", lambda resource: resource["status"] in ("booked", "pending", "arrived")),
            "new patients": overlooked("Appointment", lambda resource: resource["status"] == "fulfilled"),
        },
        "P2": {**_POLICIES, **{name: mistake for name, mistake in _ORDERS.items() if name != "no pregnancy"}},
        "P3": {
            **_POLICIES,
            "no consents": overlooked("Consent"),
            "first consent": seen("Consent", mirrored_times("dateTime")),
            "any consent status": seen("Consent", status="active"),
            "any period": seen("Consent", without_provisions("period")),
            "any purpose": seen("Consent", without_provisions("purpose")),
            "any actor": seen("Consent", without_provisions("actor")),
            "any code": seen("Consent", without_provisions("code")),
            "old consents": seen("Consent", dateTime="2023-11-12"),
            "any document status": seen("DocumentReference", of_patients(status="current")),
            "any text status": seen("DocumentReference", of_patients(docStatus="final")),
            "old documents": seen("DocumentReference", of_patients(date="2023-11-12T00:00:00Z")),
            "restricted documents": seen("DocumentReference", of_patients(securityLabel=[coded("N")])),
            "no repeats": overlooked("Communication"),
            "any release status": seen("Communication", status="completed"),
            "old releases": seen("Communication", sent="2023-11-12"),
        },
        "P4": {
            **_POLICIES,
            "any status": searched("status=final,amended,corrected&"),
            "everybody adult": seen("Patient", birthDate="1950-01-01"),
            "time of the specimen": seen(
                "Observation", lambda resource: resource.update(issued=resource["effectiveDateTime"])
            ),
            "units ignored": reworded(r" is [\d.]+ times the value", " is 1 times the value"),
            "all results": reworded(r"(issued )(after|since) \d{4}", r"\1\2 1900"),
            "Tasks ignored": overlooked("Task"),
            "void Tasks count": seen("Task", status="requested"),
            "other Tasks count": searched("code=critical-result&"),
        },
        "Q1": {
            "wishes ignored": reworded(_ANY_WISH, ""),
            "taken slots": seen("Slot", status="free"),
            "own appointments": overlooked("Appointment"),
            "any status": seen("Appointment", status="booked"),
        },
        "Q2": {
            "wishes ignored": reworded(_ANY_WISH, ""),
            "taken slots": seen("Slot", status="free"),
            "any status": seen("Appointment", status="booked"),
            "shorter slots": seen(
                "Slot", lambda resource: _last_a_minute(resource) if resource["status"] != "free" else None
            ),
        },
        "Q3": {
            "cards": seen("Patient", identifier=[]),
            "former names": seen("Patient", lambda resource: resource.update(name=resource["name"][:1])),
            "active": seen("Patient", active=True),
            "void contracts": seen("OrganizationAffiliation", active=True),
            "ended contracts": seen("OrganizationAffiliation", period={}),
            "void coverages": seen("Coverage", status="active"),
            "ended coverages": seen("Coverage", lambda resource: resource["period"].pop("end", None)),
            "subscribers": seen("Coverage", lambda resource: resource.update(subscriber=resource["beneficiary"])),
            "places": searched("participating-organization=[^&]+", "active=true,false"),
        },
        "Q4": {
            **_ORDERS,
            "plans count": Misreading(
                lambda resource: resource.update(intent="order") if "intent" in resource else None
            ),
            "orders of any date": Misreading(
                lambda resource: resource.update(authoredOn="2023-11-12") if "authoredOn" in resource else None
            ),
            "no maximum": reworded(r"at most [\d.]+ mg", "at most 99999 mg"),
            "never half": reworded(r"half of the dose per kg if the creatinine is above [\d.]+", "half"),
            "classes ignored": reworded(r"\((RxNorm \d+); [^)]+\)", r"(\1)"),
        },
        "S1": {
            "priorities ignored": seen("Appointment", lambda resource: resource.pop("priority", None)),
            "priority 0 first": seen(
                "Appointment", lambda resource: resource.update(priority=0.5) if resource.get("priority") == 0 else None
            ),
            "length ignored": seen("Appointment", _last_a_minute),
            "limit ignored": reworded(r"or on (one of the next \d+|the next)", "or on one of the next 365"),
            "any status moves": seen("Appointment", status="booked"),
            "any service": seen("Schedule", specialty=[{"coding": [{"display": "any"}]}]),
            "taken slots": seen(
                "Slot",
                lambda resource: resource.update(status="free") if resource["status"] == "busy-tentative" else None,
            ),
        },
        "S2": {
            "dates of birth": reworded(
                r" born (before|on or after) \d{4}-\d\d-\d\d( and (before|on or after) \d{4}-\d\d-\d\d)?", ""
            ),
            "inactive patients": seen("Patient", active=True),
            "old numbers": seen(
                "Patient", lambda resource: [each.pop("use", None) for each in resource.get("telecom", [])]
            ),
            "former names": seen("Patient", lambda resource: resource.update(name=resource["name"][:1])),
            "cards": seen("Patient", lambda resource: resource.update(identifier=[])),
            "latest visit": overlooked("Appointment", lambda resource: resource["status"] == "fulfilled"),
            "closed records move": Misreading(_open),
            "ended coverages": seen("Coverage", lambda resource: resource.pop("period", None)),
        },
        "S3": {
            "void contracts": seen("OrganizationAffiliation", active=True),
            "void coverages": seen("Coverage", status="active"),
            "self-pay counts": seen(
                "Coverage",
                lambda resource: [
                    each.update(reference=each["reference"].replace("Patient/", "Organization/"))
                    for each in resource["payor"]
                ],
            ),
            "days of coverages": seen("Coverage", lambda resource: resource["period"].pop("end", None)),
            "closed accounts": replace(
                seen(
                    "Account",
                    lambda resource: resource.update(status="active") if resource["status"] != "on-hold" else None,
                ),
                url=("status=active&", ""),
            ),
            "appointments of any status": replace(
                at_status("booked", "Appointment"), url=("status=booked,pending&", "")
            ),
            "open Tasks": overlooked("Task"),
            "closed Tasks": searched("status=requested,accepted,in-progress&"),
        },
        "S4": {
            "everybody's patients": searched("organization=[^&]+&"),
            "inactive patients": searched("&active=true"),
            "the dead": seen(
                "Patient",
                lambda resource: [resource.pop(name, None) for name in ("deceasedBoolean", "deceasedDateTime")],
            ),
            "any clinical status": seen("Condition", clinicalStatus=coded("active")),
            "any verification": seen("Condition", verificationStatus=coded("confirmed")),
            "any result": seen("Observation", status="final"),
            "empty results": seen("Observation", lambda resource: resource.setdefault("valueQuantity", {"value": 0})),
            "no results": overlooked("Observation"),
            "only the first code": reworded(r"(  - .+: \S+ in \S+ and )\S+( in )", r"\1none\2"),
            "no orders": overlooked("ServiceRequest"),
            "orders of any status": seen("ServiceRequest", status="active"),
            "plans count": seen("ServiceRequest", intent="order"),
            "orders of any date": reworded(r"in the last \d+ days", "in the last 9000 days"),
            "no visits": overlooked("Appointment"),
            "visits of any status": searched("status=booked,pending&"),
            "visits of any time": reworded(r"in the next \d+ days", "in the next 9000 days"),
            "no consents": overlooked("Consent"),
            "consents of any status": searched(r"status=active&(patient=)", r"\1"),
            "any purpose": seen(
                "Consent", lambda resource: resource["provision"].update(purpose=[{"code": "CAREMGT"}])
            ),
            "first consent": seen("Consent", mirrored_times("dateTime")),
            "always routine": reworded(r"limit [\d.]+ (\S+ \(\S+\)) or [\d.]+", r"limit 99999 \1 or 99999"),
            "oldest result": seen("Observation", mirrored_times("effectiveDateTime")),
            "first unit only": reworded(r"limit ([\d.]+) (\S+ \(\S+\)) or [\d.]+", r"limit \1 \2 or \1"),
        },
    }
)
"""For each kind, the mistakes by name."""
FORGETFUL = Misreading(once=True)
"""The agent does not look at what it wrote for earlier requests."""


def first_page(count: int) -> Misreading:
    """Return the misreading that each search has one page with so many matches."""
    return Misreading(url=(r"_count=\d+", f"_count={count}"), first_page=True)
