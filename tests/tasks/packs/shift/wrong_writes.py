"""Elements that an agent writes wrongly, one at a time, and elements that it may add."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fhir_gym.tasks.packs.shift.registry import CARD
from fhir_gym.types import Resource

Edit = Callable[[Resource], Any]


def with_elements(**elements: Any) -> Edit:
    return lambda body: body.update(elements)


def without(name: str) -> Edit:
    return lambda body: body.pop(name, None)


def dose_with(**changes: Any) -> Edit:
    def edit(order: Resource) -> None:
        order["dosageInstruction"][0]["doseAndRate"][0]["doseQuantity"].update(changes)

    return edit


def period_with(**changes: Any) -> Edit:
    return lambda body: body["period"].update(changes)


def _with_another(name: str, element: Any) -> Edit:
    return lambda body: body.setdefault(name, []).append(element)


def _with_another_code(body: Resource) -> None:
    body["code"]["coding"].append({"system": "urn:x", "code": "1"})


def _in_another_system(name: str) -> Edit:
    def edit(body: Resource) -> None:
        concept = body[name][0] if isinstance(body[name], list) else body[name]
        concept["coding"][0].update(system="urn:x")

    return edit


def _swap_urgency(order: Resource) -> None:
    order["priority"] = "routine" if order["priority"] == "urgent" else "urgent"


def _first_participants(count: int) -> Edit:
    return lambda resource: resource.update(participant=resource["participant"][:count])


_DEPARTMENTS = "General practice, Cardiology, Dermatology, Endocrinology, Neurology, Obstetrics and gynecology"
_OTHER_CODE = {"coding": [{"system": "urn:x", "code": "1"}]}
_OTHER_DOCUMENT = {"contentReference": {"reference": "DocumentReference/other"}}
_OTHER_SITE = {"reference": "Organization/other"}

WRONG_WRITES: Mapping[str, Mapping[tuple[str, str], Edit]] = MappingProxyType(
    {
        "Q1": {
            ("Appointment", "another status"): with_elements(status="proposed"),
            ("Appointment", "another start"): with_elements(start="2023-12-24T08:00:00Z"),
            ("Appointment", "no slot"): without("slot"),
            ("Appointment", "no participants"): without("participant"),
            ("Appointment", "patient only"): _first_participants(1),
            ("Slot", "tentative"): with_elements(status="busy-tentative"),
            ("Slot", "a comment"): with_elements(comment="taken"),
        },
        "Q2": {
            ("Appointment", "another status"): with_elements(status="entered-in-error"),
            ("Appointment", "a comment"): with_elements(comment="as asked"),
            ("Appointment", "patient only"): _first_participants(1),
            ("Appointment", "another end"): with_elements(end="2030-01-01T00:00:00Z"),
        },
        "Q3": {
            ("Patient", "another sex"): with_elements(gender="other"),
            ("Patient", "another phone"): _with_another("telecom", {"system": "phone", "value": "212-555-0999"}),
            ("Patient", "a former name"): _with_another(
                "name", {"use": "old", "family": "Elsewhere", "given": ["Nobody"]}
            ),
            ("Patient", "another card"): _with_another("identifier", {"system": CARD, "value": "Z1"}),
            ("Patient", "deceased"): with_elements(deceasedBoolean=True),
            ("Coverage", "not active"): with_elements(status="draft"),
            ("Coverage", "the whole year"): with_elements(period={"start": "2023-01-01", "end": "2023-12-31"}),
            ("Coverage", "another end"): period_with(end="2040-01-01"),
            ("Coverage", "another number"): with_elements(subscriberId="A1"),
            ("Coverage", "no number"): without("subscriberId"),
            ("Coverage", "another subscriber"): with_elements(subscriber={"reference": "Patient/1"}),
            ("Coverage", "another policy holder"): with_elements(policyHolder={"display": "the mother"}),
            ("Coverage", "payor by name"): with_elements(payor=[{"display": "the insurer"}]),
            ("Coverage", "spouse"): with_elements(relationship={"text": "spouse"}),
            ("Coverage", "a class"): with_elements(**{"class": [{"type": {"text": "plan"}, "value": "GOLD"}]}),
        },
        "Q4": {
            ("MedicationRequest", "a draft"): with_elements(status="draft"),
            ("MedicationRequest", "dated last year"): with_elements(authoredOn="2022-01-01"),
            ("MedicationRequest", "grams"): dose_with(unit="g"),
            ("MedicationRequest", "less than the dose"): dose_with(comparator="<"),
            ("MedicationRequest", "another dose"): dose_with(value=7.5),
            ("MedicationRequest", "another drug in words"): lambda resource: resource[
                "medicationCodeableConcept"
            ].update(text="Paclitaxel"),
            ("MedicationRequest", "no dose"): without("dosageInstruction"),
            ("MedicationRequest", "a timing"): lambda resource: resource["dosageInstruction"][0].update(
                timing={"code": {"text": "twice a day"}}
            ),
            ("MedicationRequest", "two doses"): lambda resource: resource["dosageInstruction"].extend(
                resource["dosageInstruction"]
            ),
            ("MedicationRequest", "another system"): _in_another_system("medicationCodeableConcept"),
            ("ServiceRequest", "a plan"): with_elements(intent="plan"),
            ("ServiceRequest", "not dated"): without("authoredOn"),
            ("ServiceRequest", "not to be done"): with_elements(doNotPerform=True),
            ("ServiceRequest", "another code too"): _with_another_code,
        },
        "P1": {
            ("Appointment", "another status"): with_elements(status="pending"),
            ("Slot", "left free"): with_elements(status="free"),
        },
        "P2": {
            ("MedicationRequest", "another dose"): dose_with(value=5),
            ("MedicationRequest", "a plan"): with_elements(intent="plan"),
            ("MedicationRequest", "dated last year"): with_elements(authoredOn="2022-01-01"),
        },
        "P3": {
            ("Communication", "in progress"): with_elements(status="in-progress"),
            ("Communication", "another department"): lambda resource: resource["category"][0]["coding"][0].update(
                code="394592004"
            ),
            ("Communication", "other departments in words"): lambda resource: resource["category"][0].update(
                text=_DEPARTMENTS
            ),
            ("Communication", "no department"): without("category"),
            ("Communication", "another system"): _in_another_system("category"),
            ("Communication", "another purpose"): lambda resource: resource["reasonCode"][0]["coding"][0].update(
                code="HMARKT"
            ),
            ("Communication", "two purposes"): _with_another("reasonCode", _OTHER_CODE),
            ("Communication", "sent last year"): with_elements(sent="2022-01-01"),
            ("Communication", "not sent"): without("sent"),
            ("Communication", "two recipients"): _with_another("recipient", _OTHER_SITE),
            ("Communication", "another recipient"): with_elements(recipient=[_OTHER_SITE]),
            ("Communication", "a document too many"): _with_another("payload", _OTHER_DOCUMENT),
            ("Communication", "a document left out"): lambda resource: resource["payload"].pop(),
            ("Communication", "a message"): _with_another("payload", {"contentString": "Best wishes"}),
            ("Communication", "no documents"): without("payload"),
        },
        "P4": {
            ("Task", "another status"): with_elements(status="draft"),
            ("Task", "another intent"): with_elements(intent="plan"),
            ("Task", "another priority"): with_elements(priority="routine"),
            ("Task", "another code"): with_elements(code={"text": "critical-result"}),
            ("Task", "no patient"): without("for"),
            ("Task", "no owner"): without("owner"),
            ("Task", "no focus"): without("focus"),
            ("Task", "another day"): with_elements(restriction={"period": {"end": "2030-01-01T00:00:00Z"}}),
            ("Task", "a start"): lambda resource: resource["restriction"]["period"].update(start="2023-01-01"),
            ("Task", "another encounter"): with_elements(encounter={"reference": "Encounter/other"}),
            ("Task", "done already"): with_elements(executionPeriod={"end": "2023-11-13"}),
        },
        "S1": {
            ("Appointment", "another status"): with_elements(status="proposed"),
            ("Appointment", "another end"): with_elements(end="2030-01-01T00:00:00Z"),
            ("Appointment", "a comment"): with_elements(comment="as asked"),
            ("Appointment", "another priority"): with_elements(priority=8),
            ("Appointment", "patient only"): _first_participants(1),
            ("Slot", "tentative"): with_elements(status="busy-tentative"),
            ("Slot", "a comment"): with_elements(comment="away"),
        },
        "S2": {
            ("Patient", "still in use"): with_elements(active=True),
            ("Patient", "no links"): with_elements(link=[]),
            ("Patient", "see also"): lambda resource: [link.update(type="seealso") for link in resource["link"]],
            ("Patient", "a second link"): lambda resource: resource["link"].append(
                {**resource["link"][-1], "type": "refer"}
            ),
            ("Patient", "deceased"): with_elements(deceasedBoolean=True),
            ("Patient", "another card"): _with_another("identifier", {"system": CARD, "value": "A1"}),
            ("Appointment", "cancelled"): with_elements(status="cancelled"),
            ("Appointment", "nobody takes part"): lambda resource: resource.update(
                participant=resource["participant"][-1:]
            ),
            ("Condition", "resolved"): without("clinicalStatus"),
            ("ServiceRequest", "for nobody"): with_elements(subject={"display": "kept"}),
            ("Coverage", "cancelled"): with_elements(status="cancelled"),
            ("Coverage", "subscriber by name"): with_elements(subscriber={"display": "kept"}),
        },
        "S3": {
            ("OrganizationAffiliation", "inactive"): with_elements(active=False),
            ("OrganizationAffiliation", "without end"): lambda resource: resource["period"].pop("end"),
            ("Coverage", "another last day"): period_with(end="2040-01-01"),
            ("Coverage", "in error"): with_elements(status="entered-in-error"),
            ("Coverage", "no payor"): without("payor"),
            ("Account", "inactive"): with_elements(status="inactive"),
            ("Account", "of nothing"): without("coverage"),
            ("Task", "a draft"): with_elements(status="draft"),
            ("Task", "a plan"): with_elements(intent="plan"),
            ("Task", "another text"): with_elements(code={"text": "Call back"}),
            ("Task", "no focus"): without("focus"),
            ("Task", "for nobody"): with_elements(**{"for": {"display": "the patient"}}),
            ("Task", "an owner"): with_elements(owner={"display": "the desk"}),
            ("Task", "urgent"): with_elements(priority="stat"),
            ("Task", "not to be done"): with_elements(description="Do not do this; entered in error."),
        },
        "S4": {
            ("ServiceRequest", "a draft"): with_elements(status="draft"),
            ("ServiceRequest", "a plan"): with_elements(intent="plan"),
            ("ServiceRequest", "another priority"): with_elements(priority="stat"),
            ("ServiceRequest", "urgent and routine exchanged"): _swap_urgency,
            ("ServiceRequest", "no priority"): without("priority"),
            ("ServiceRequest", "dated last year"): with_elements(authoredOn="2022-01-01"),
            ("ServiceRequest", "not dated"): without("authoredOn"),
            ("ServiceRequest", "no reason"): without("reasonCode"),
            ("ServiceRequest", "another reason"): lambda resource: resource["reasonCode"][0]["coding"][0].update(
                code="195967001"
            ),
            ("ServiceRequest", "a reason in words"): with_elements(reasonCode=[{"text": "recall"}]),
            ("ServiceRequest", "two reasons"): _with_another("reasonCode", _OTHER_CODE),
            ("ServiceRequest", "another system"): _in_another_system("code"),
            ("ServiceRequest", "another code too"): _with_another_code,
            ("ServiceRequest", "other tests in words"): lambda resource: resource["code"].update(
                text="glucose, HbA1c, creatinine, cholesterol, triglycerides"
            ),
            ("ServiceRequest", "not to be done"): with_elements(doNotPerform=True),
        },
    }
)
"""For each kind: the type of the record, the name of the mistake, and the mistake."""


def _late_in_another_zone(name: str) -> Edit:
    return lambda body: body.update({name: f"{body[name][:10]}T23:30:00+02:00"})


def _usual_details(body: Resource) -> None:
    body["subject"]["display"] = "The patient"
    body["note"] = [{"text": "Asked by telephone."}]


def _order_details(order: Resource) -> None:
    _usual_details(order)
    _late_in_another_zone("authoredOn")(order)
    order["requester"] = {"display": "Dr. Lee"}


def _prescription_details(order: Resource) -> None:
    _order_details(order)
    order["priority"] = "routine"


def _release_details(release: Resource) -> None:
    _usual_details(release)
    release.update(sender={"display": "The desk"}, sent="2023-11-13T10:20:00Z")
    release["payload"].reverse()


def _patient_details(patient: Resource) -> None:
    patient.update(language="en", active=True, address=[{"city": "Boston"}])


def _coverage_details(coverage: Resource) -> None:
    word = "self" if coverage["subscriber"] == coverage["beneficiary"] else "child"
    coverage.update(
        language="en",
        policyHolder={**coverage["subscriber"], "display": "the subscriber"},
        relationship={"coding": [{"code": word, "display": word.title()}]},
        period={name: f"{day[:10]}T10:00:00Z" for name, day in coverage["period"].items()},
    )


DETAILS: Mapping[str, Mapping[str, Edit]] = MappingProxyType(
    {
        "Q3": {"Patient": _patient_details, "Coverage": _coverage_details},
        "Q4": {"MedicationRequest": _prescription_details, "ServiceRequest": _order_details},
        "P3": {"Communication": _release_details},
        "S4": {"ServiceRequest": _order_details},
    }
)
"""For each kind, details that agents may add to records of a type, or write in another way."""
