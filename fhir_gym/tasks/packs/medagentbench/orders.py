"""Build and check orders and blood pressures; the checks accept every valid R4 form of the same content."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fhir_gym.tasks import Check, FinishedEpisode, equal
from fhir_gym.tasks.authoring import codes_of, codings, concept_texts, reference
from fhir_gym.tasks.grading import plain
from fhir_gym.tasks.packs.medagentbench.internist_task import same_minute
from fhir_gym.tasks.packs.medagentbench.routes import is_route
from fhir_gym.tasks.packs.medagentbench.single_dose import single_dose_check
from fhir_gym.tasks.packs.medagentbench.wording import (
    OrderedDose,
    child_object,
    contradictions,
    is_amount,
    is_amount_over,
    names_drug,
)
from fhir_gym.types import Json, Resource, only_object

NDC, LOINC = "http://hl7.org/fhir/sid/ndc", "http://loinc.org"
MEDICATION_ELEMENTS = (
    *("status", "intent", "medicationCodeableConcept", "subject", "authoredOn", "dosageInstruction"),
    "dispenseRequest.quantity",
    *(
        f"dosageInstruction.{name}"
        for name in (
            *("route", "timing", "asNeededBoolean", "text", "patientInstruction", "additionalInstruction", "method"),
            *("doseAndRate", "doseAndRate.doseQuantity"),
        )
    ),
)
RATE_ELEMENTS = tuple(f"dosageInstruction.doseAndRate.{name}" for name in ("rateQuantity", "rateRatio"))
SERVICE_ELEMENTS = (
    *("status", "intent", "priority", "code", "subject", "authoredOn"),
    *("occurrenceTiming", "asNeededBoolean"),
)
"""Elements of orders that the prompts ask for or that the checks read, such as dose, route and timing."""
_CATEGORIES = (
    "http://terminology.hl7.org/CodeSystem/observation-category",
    "http://hl7.org/fhir/observation-category",  # used by the benchmark; from an older version of FHIR
)
_DOSES = frozenset({"dose", "{dose}", "each", "ea", "bag", "vial", "unit dose"})
_PRESSURE = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*(?:mm\s?hg|mm\[hg\])\s*", re.IGNORECASE)
_SYSTOLIC, _DIASTOLIC, _PANEL = "8480-6", "8462-4", "85354-9"


def medication_order(
    mrn: str, now: str, code: str, route: str, dose: Resource, rate: Resource | None, system: str = NDC
) -> Resource:
    """Build a MedicationRequest that has only the requested elements."""
    amount = {"doseQuantity": dose} | ({"rateQuantity": rate} if rate else {})
    return {
        "resourceType": "MedicationRequest",
        "status": "active",
        "intent": "order",
        "medicationCodeableConcept": {"coding": [{"system": system, "code": code}]},
        "subject": reference("Patient", mrn),
        "authoredOn": now,
        "dosageInstruction": [{"route": {"text": route}, "doseAndRate": [amount]}],
    }


def service_order(mrn: str, now: str, system: str, code: str, **more: Json) -> Resource:
    """Build a ServiceRequest that has only the requested elements."""
    return {
        "resourceType": "ServiceRequest",
        "status": "active",
        "intent": "order",
        "priority": "stat",
        "code": {"coding": [{"system": system, "code": code}]},
        "subject": reference("Patient", mrn),
        "authoredOn": now,
        **more,
    }


def medication_checks(
    end: FinishedEpisode, order: Resource, mrn: str, now: str, code: str, ordered: OrderedDose, system: str = NDC
) -> Iterator[Check]:
    """Yield the checks that all drug orders share.

    Args:
        end: End state of the episode.
        order: The order; empty if there is none.
        mrn: Record number of the patient.
        now: Current time.
        code: Code of the drug.
        ordered: The requested dose, route and duration.
        system: Code system.
    """
    yield from _order_checks("medication", end, order, mrn, now)
    drug, dosage = order.get("medicationCodeableConcept"), only_object(order.get("dosageInstruction"))
    yield equal("medication code", codes_of(drug, system), [code])
    named = names_drug(drug, system, code, ordered.drug)
    yield Check(
        name="medication name", passed=named, expected="that drug in all codings", actual=[*concept_texts(drug)]
    )
    said = dosage.get("route")
    yield Check(name="medication route", passed=is_route(said, ordered.route), expected=ordered.route.name, actual=said)
    dose = only_object(dosage.get("doseAndRate")).get("doseQuantity")
    dispense = child_object(order, "dispenseRequest")
    right = is_amount(dose, ordered.value, ordered.unit, ordered.tolerance) and _is_one_dose(
        dispense.get("quantity"), ordered
    )
    amount: Json = {"value": ordered.value, "unit": ordered.unit}
    yield Check(name="medication dose", passed=right, expected=amount, actual=dose)
    if ordered.hours is not None:
        yield _duration_check(dosage, ordered, ordered.hours)
    refills = dispense.get("numberOfRepeatsAllowed", 0)
    yield single_dose_check("medication once", dosage, "timing", refills, now=now, timed=ordered.hours is not None)
    wrong = contradictions(order, ordered)
    yield Check(name="medication wording", passed=not wrong, expected="no text that says more", actual=wrong)


def service_checks(
    end: FinishedEpisode, order: Resource, mrn: str, now: str, system: str, code: str, priority: str | None
) -> Iterator[Check]:
    """Yield the checks that all laboratory orders and referrals share.

    Args:
        end: End state of the episode.
        order: The order; empty if there is none.
        mrn: Record number of the patient.
        now: Current time.
        system: Code system.
        code: Code of the test or referral.
        priority: The requested priority; None if the prompt states no priority.
    """
    yield from _order_checks("service", end, order, mrn, now)
    yield equal("service code", codes_of(order.get("code"), system), [code])
    if priority is not None:
        yield equal("service priority", order.get("priority"), priority)
    yield single_dose_check("service once", order, "occurrenceTiming", now=now, timed=False)


def _order_checks(kind: str, end: FinishedEpisode, order: Resource, mrn: str, now: str) -> Iterator[Check]:
    yield equal(f"{kind} subject", end.refers(order.get("subject")), f"Patient/{mrn}")
    yield equal(f"{kind} status", order.get("status"), "active")
    yield equal(f"{kind} intent", order.get("intent"), "order")
    written = order.get("authoredOn")
    yield Check(name=f"{kind} authoredOn", passed=same_minute(written, now), expected=now, actual=written)


def _is_one_dose(quantity: Json, ordered: OrderedDose) -> bool:
    """Return whether a quantity to dispense is missing or equals the dose."""
    if quantity is None or is_amount(quantity, ordered.value, ordered.unit, ordered.tolerance):
        return True
    unit = str(quantity.get("unit", quantity.get("code"))).casefold() if isinstance(quantity, dict) else ""
    return unit in _DOSES and quantity.get("value") == 1 and "comparator" not in quantity


def _duration_check(dosage: Resource, ordered: OrderedDose, hours: float) -> Check:
    """Check that every time, rate and timing in an order agrees with the duration of the infusion."""
    dose_and_rate, repeat = (
        only_object(dosage.get("doseAndRate")),
        child_object(child_object(dosage, "timing"), "repeat"),
    )
    said = {name: dose_and_rate[name] for name in ("rateQuantity", "rateRatio") if name in dose_and_rate}
    right = [is_amount_over(duration, ordered.value, ordered.unit, hours) for duration in said.values()]
    if "duration" in repeat:
        span = {"value": repeat["duration"], "unit": repeat.get("durationUnit")}
        right.append(is_amount_over(span, ordered.value, ordered.unit, hours))
    passed, expected = bool(right) and all(right), {"value": hours, "unit": "h"}
    return Check(name="medication rate", passed=passed, expected=expected, actual={**said, "timing": repeat or None})


def note_check(order: Resource, text: str, *, within: bool = False) -> Check:
    """Check that an order has one note with a text; `within` also accepts other words around the text."""
    notes = order.get("note") or []
    written = [note.get("text") for note in (notes if isinstance(notes, list) else [notes]) if isinstance(note, dict)]
    said = [plain(written_text) for written_text in written if isinstance(written_text, str)]
    right = [plain(text) in note_text if within else note_text.strip('"') == plain(text) for note_text in said]
    passed = any(right) if within else bool(right) and all(right)
    return Check(name="service note", passed=passed, expected=text, actual=written)


def blood_pressure_checks(
    end: FinishedEpisode, observation: Resource, mrn: str, now: str, systolic: int, diastolic: int
) -> Iterator[Check]:
    """Yield the checks of a blood pressure, which may be stored as text or as two components."""
    yield equal("subject", end.refers(observation.get("subject")), f"Patient/{mrn}")
    yield equal("status", observation.get("status"), "final")
    kinds = [[coding.get("system"), coding.get("code")] for coding in codings(observation.get("category"))]
    vital = bool(kinds) and all(system in _CATEGORIES and code == "vital-signs" for system, code in kinds)
    yield Check(name="category", passed=vital, expected="vital-signs", actual=kinds)
    code = observation.get("code")
    names = {*concept_texts(code), *(str(coding.get("code")) for coding in codings(code))}
    right = bool(names & {"BP"}) if not codes_of(code, LOINC) else set(codes_of(code, LOINC)) <= {"BP", _PANEL}
    yield Check(name="code", passed=right, expected="BP", actual=code)
    when = observation.get("effectiveDateTime") or observation.get("effectiveInstant")
    yield Check(name="time", passed=same_minute(when, now), expected=now, actual=when)
    told = list(_pressures(observation))
    pressures: list[Json] = [systolic, diastolic]
    yield Check(
        name="value",
        passed=bool(told) and all(pressure == pressures for pressure in told),
        expected=f"{systolic}/{diastolic} mmHg",
        actual=told,
    )


def _pressures(observation: Resource) -> Iterator[list[Json]]:
    """Yield every pair of pressures that an Observation states as text or as components."""
    if "valueString" in observation:
        match = _PRESSURE.fullmatch(str(observation["valueString"]))
        yield [int(match[1]), int(match[2])] if match else [observation["valueString"]]
    elif any(name.startswith("value") for name in observation):
        yield ["another kind of value"]
    components = observation.get("component") or []
    if components and len(components) != len((_SYSTOLIC, _DIASTOLIC)):
        yield [f"{len(components)} components"]
    elif components:
        yield [_component(components, code) for code in (_SYSTOLIC, _DIASTOLIC)]


def _component(components: Iterable[Resource], code: str) -> Json:
    quantities = [
        component.get("valueQuantity") or {}
        for component in components
        if code in codes_of(component.get("code"), LOINC)
    ]
    values = [
        quantity.get("value") for quantity in quantities if is_amount(quantity, quantity.get("value", -1), "mmHg")
    ]
    return values[0] if len(values) == len(quantities) == 1 else None
