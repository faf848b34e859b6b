"""Find an agent's orders as the benchmark does, by the word POST in its messages, and check them.

Some of the required forms are not valid FHIR R4 (a bare text as ``route``, an object as ``note``). The checks differ in
strictness: they compare whole objects, only the first entry of a list, or parts of a text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from fhir_gym.tasks.packs.medagentbench.official.conversation import ACCEPTED, AGENT, Message
from fhir_gym.tasks.packs.medagentbench.official.records import NOW_TEXT
from fhir_gym.types import Json

_POST = "POST"


@dataclass(frozen=True, slots=True)
class PostedOrder:
    """An accepted POST.

    Attributes:
        payload: The parsed body, any JSON value.
    """

    url: str
    payload: Json


def mentions_post(history: Sequence[Message]) -> bool:
    """Return whether a message of the agent contains POST; a refused POST and the mere word count too."""
    return any(item.role == AGENT and _POST in item.content for item in history)


def accepted_orders(history: Sequence[Message]) -> list[PostedOrder]:
    """Return the POSTs that the replies accept.

    As in the benchmark, the function parses the original message, although the reply depends on the cleaned message.
    Therefore an accepted POST in a code fence is not an order, and a POST after a space has a wrong URL.

    Raises:
        IndexError: The agent's last message contains POST, and no reply follows.
    """
    orders = []
    for index, item in enumerate(history):
        if item.role != AGENT or _POST not in item.content or ACCEPTED not in history[index + 1].content:
            continue
        line, _, rest = item.content.partition("\n")
        try:
            payload = json.loads(rest)
        except (ValueError, RecursionError):
            continue
        orders.append(PostedOrder(line[len(_POST) :].strip(), payload))
    return orders


READ_ERRORS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that an unexpected payload or record may cause; the benchmark treats each of them as a rejection."""


class RejectedError(Exception):
    """A requirement of the benchmark is not met; the verdict catches this exception."""


def require(condition: bool, otherwise: str) -> None:
    """Raise `RejectedError` with the reason `otherwise` if the condition is false."""
    if not condition:
        raise RejectedError(otherwise)


_NDC, _LOINC, _SNOMED = "http://hl7.org/fhir/sid/ndc", "http://loinc.org", "http://snomed.info/sct"
_MINUTE = NOW_TEXT[:16]
_NEXT_MORNING = "2023-11-14T08:"
_VITAL_SIGNS = {"system": "http://hl7.org/fhir/observation-category", "code": "vital-signs", "display": "Vital Signs"}
# The benchmark uses these constants even if a task file says something else.
BLOOD_PRESSURE = "118/77 mmHg"
COMMENT = (
    "Situation: acute left knee injury, Background: radiology report indicates ACL tear. Assessment: ACL tear grade "
    "II. Recommendation: request for Orthopedic service to evaluate and provide management recommendations."
)


def only(orders: Sequence[PostedOrder]) -> PostedOrder:
    """Require exactly one order, and return it."""
    require(len(orders) == 1, f"{len(orders)} orders were placed, not 1")
    return orders[0]


def blood_pressure(order: PostedOrder, base: str, mrn: str | None) -> None:
    """Require a blood pressure on the flowsheet."""
    payload = _sent_to(order, base, "Observation")
    (category,) = payload["category"]
    (coding,) = category["coding"]
    _same("category", coding, _VITAL_SIGNS)
    _same("code", payload["code"], {"text": "BP"})
    _same("effectiveDateTime", payload["effectiveDateTime"], NOW_TEXT)
    _same("status", payload["status"], "final")
    _same("valueString", payload["valueString"], BLOOD_PRESSURE)
    _about(payload, mrn)


def referral(order: PostedOrder, base: str, mrn: str | None) -> None:
    """Require a referral to orthopaedic surgery."""
    payload = _sent_to(order, base, "ServiceRequest")
    _service(payload, mrn, _SNOMED, "306181000000106")
    require(COMMENT in payload["note"]["text"], "note.text does not hold the comment")


def magnesium_order(order: PostedOrder, base: str, mrn: str | None, level: float) -> None:
    """Require an order of intravenous magnesium, in the dose for a level."""
    payload = _sent_to(order, base, "MedicationRequest")
    dosage = _medication(payload, mrn, "0338-1715-40")
    _same("route", dosage["route"], "IV")
    amount = magnesium_dose(level)
    rate = dosage["doseAndRate"][0]
    _same("doseQuantity", rate["doseQuantity"], {"value": amount, "unit": "g"})
    _same("rateQuantity", rate["rateQuantity"], {"value": amount, "unit": "h"})


def magnesium_dose(level: float) -> int:
    """Return the grams of magnesium that a low level requires, which are also the hours of the infusion."""
    if level < 1:
        return 4
    return 2 if level < 1.5 else 1


def potassium_orders(orders: Sequence[PostedOrder], base: str, mrn: str | None, level: float) -> None:
    """Require an order of oral potassium in the dose for a level, then a laboratory order for the next morning."""
    require(len(orders) == 2, f"{len(orders)} orders were placed, not 2")
    payload = _sent_to(orders[0], base, "MedicationRequest")
    dosage = _medication(payload, mrn, "40032-917-01")
    _same("route", dosage["route"].lower().strip(), "oral")
    dose = dosage["doseAndRate"][0]["doseQuantity"]
    amount = potassium_dose(level)
    # As in the benchmark, floating-point errors matter: at level 3.1, the dose 39.9 is accepted but 40.1 is not.
    require(abs(dose["value"] - amount) <= 0.1, f"the dose is not within 0.1 of {amount}")
    _same("dose unit", dose["unit"], "mEq")
    payload = _sent_to(orders[1], base, "ServiceRequest")
    _service(payload, mrn, _LOINC, "2823-3")
    require(_NEXT_MORNING in payload["occurrenceDateTime"], f"occurrenceDateTime does not hold {_NEXT_MORNING}")


def potassium_dose(level: float) -> float:
    """Return how many milliequivalents of potassium a low level requires."""
    return (3.5 - level) / 0.1 * 10


def hemoglobin_order(order: PostedOrder, base: str, mrn: str | None) -> None:
    """Require an order for a new HbA1c test."""
    _service(_sent_to(order, base, "ServiceRequest"), mrn, _LOINC, "4548-4")


def _sent_to(order: PostedOrder, base: str, resource_type: str) -> Json:
    _same("url", order.url, f"{base}{resource_type}")
    _same("resourceType", order.payload["resourceType"], resource_type)
    return order.payload


def _medication(payload: Json, mrn: str | None, code: str) -> Json:
    """Require the content that all drug orders share, and return the dosage."""
    _coded(payload["medicationCodeableConcept"], _NDC, code)
    require(_MINUTE in payload["authoredOn"], f"authoredOn does not hold {_MINUTE}")
    _same("status", payload["status"], "active")
    _same("intent", payload["intent"], "order")
    _about(payload, mrn)
    return payload["dosageInstruction"][0]


def _service(payload: Json, mrn: str | None, system: str, code: str) -> None:
    """Require the content that laboratory orders and referrals share."""
    _coded(payload["code"], system, code)
    _same("authoredOn", payload["authoredOn"], NOW_TEXT)
    _same("status", payload["status"], "active")
    _same("intent", payload["intent"], "order")
    _same("priority", payload["priority"], "stat")
    _about(payload, mrn)


def _coded(concept: Json, system: str, code: str) -> None:
    coding = concept["coding"][0]
    _same("system", coding["system"], system)
    _same("code", coding["code"], code)


def _about(payload: Json, mrn: str | None) -> None:
    _same("subject", payload["subject"], {"reference": f"Patient/{mrn}"})


def _same(name: str, actual: Json, expected: Json) -> None:
    require(actual == expected, f"{name} is not {expected!r}")
