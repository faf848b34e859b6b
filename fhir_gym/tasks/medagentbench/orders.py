"""Orders and recordings: how they are written, and whether what was stored says what was asked for, in any R4 form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fhir_gym.tasks.bundles import reference
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.compare import plain
from fhir_gym.tasks.concepts import SNOMED, codes_of, codings, labels
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.medagentbench.once import once_check
from fhir_gym.tasks.medagentbench.pack import same_minute
from fhir_gym.types import Json, Resource

__all__ = [
    "INTRAVENOUS",
    "LOINC",
    "MEDICATION_ASKED",
    "NDC",
    "ORAL",
    "RATES_ASKED",
    "SERVICE_ASKED",
    "SUBCUTANEOUS",
    "amount_check",
    "blood_pressure_checks",
    "duration_check",
    "medication_checks",
    "medication_order",
    "note_check",
    "service_checks",
    "service_order",
]

NDC, LOINC = "http://hl7.org/fhir/sid/ndc", "http://loinc.org"
MEDICATION_ASKED = (
    *("status", "intent", "medicationCodeableConcept", "subject", "authoredOn", "dosageInstruction"),
    *(
        f"dosageInstruction.{name}"
        for name in (
            *("route", "timing", "asNeededBoolean", "text", "patientInstruction", "additionalInstruction", "method"),
            *("doseAndRate", "doseAndRate.doseQuantity"),
        )
    ),
)
RATES_ASKED = tuple(f"dosageInstruction.doseAndRate.{name}" for name in ("rateQuantity", "rateRatio"))
SERVICE_ASKED = (
    *("status", "intent", "priority", "code", "subject", "authoredOn"),
    *("occurrenceTiming", "asNeededBoolean"),
)
"""Elements of orders that are asked for, or judged with what is: how much, how, and that it is for once."""
INTRAVENOUS = ("47625008", ("iv", "intravenous", "intravenously", "intravenous route", "intravenous use"))
ORAL = ("26643006", ("oral", "orally", "po", "by mouth", "oral route", "oral use"))
SUBCUTANEOUS = (
    "34206005",
    ("subcutaneous", "subcutaneously", "sc", "sq", "subq", "subcut", "subcutaneous route", "subcutaneous use"),
)
"""A route: its SNOMED CT code, and how it is said in words."""

_UNITS = {
    "g": {"g", "gram", "grams", "gm"},
    "h": {"h", "hr", "hrs", "hour", "hours"},
    "mg": {"mg", "milligram", "milligrams"},
    "units": {"unit", "units", "u", "iu", "[iu]", "[usp'u]", "international units"},
    "mEq": {"meq", "milliequivalent", "milliequivalents"},
    "mmHg": {"mmhg", "mm[hg]", "mm hg"},
    "g/h": {"g/h", "g/hr", "g/hour"},
}
_AS_GOOD = {"g": ("mg", 1000.0), "mg": ("g", 0.001)}
"""Another unit an amount may be written in, and how many of it are one."""
_CATEGORIES = (
    "http://terminology.hl7.org/CodeSystem/observation-category",
    "http://hl7.org/fhir/observation-category",  # the benchmark's, of an older version of FHIR
)
_EXACT = 1e-6
_PRESSURE = re.compile(r"\s*(\d+)\s*/\s*(\d+)\s*(?:mm\s?hg|mm\[hg\])\s*", re.IGNORECASE)
_SYSTOLIC, _DIASTOLIC, _PANEL = "8480-6", "8462-4", "85354-9"


def medication_order(
    mrn: str, now: str, code: str, route: str, dose: Resource, rate: Resource | None, system: str = NDC
) -> Resource:
    """A MedicationRequest with nothing but what is asked for."""
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
    """A ServiceRequest with nothing but what is asked for."""
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
    end: EndState,
    order: Resource,
    mrn: str,
    now: str,
    code: str,
    route: tuple[str, tuple[str, ...]],
    system: str = NDC,
) -> Iterator[Check]:
    """What all drug orders have to say; the amount is `amount_check`."""
    yield from _order_checks("medication", end, order, mrn, now)
    drug = order.get("medicationCodeableConcept")
    yield equal("medication code", codes_of(drug, system), [code])
    said = _dosage(order).get("route")
    yield Check(name="medication route", passed=_is_route(said, route), expected=route[1][0], actual=said)
    refills = _member(order, "dispenseRequest").get("numberOfRepeatsAllowed", 0)
    yield once_check("medication once", _dosage(order), "timing", refills)


def service_checks(
    end: EndState, order: Resource, mrn: str, now: str, system: str, code: str, priority: str | None
) -> Iterator[Check]:
    """What all laboratory orders and referrals have to say.

    Args:
        end: How the episode ended.
        order: The order; empty if there is none.
        mrn: Whom it is for.
        now: When it is written.
        system: System of the code.
        code: What is ordered.
        priority: How urgent it is; None if nobody said.
    """
    yield from _order_checks("service", end, order, mrn, now)
    yield equal("service code", codes_of(order.get("code"), system), [code])
    if priority is not None:
        yield equal("service priority", order.get("priority"), priority)
    yield once_check("service once", order, "occurrenceTiming")


def _order_checks(kind: str, end: EndState, order: Resource, mrn: str, now: str) -> Iterator[Check]:
    yield equal(f"{kind} subject", end.refers(order.get("subject")), f"Patient/{mrn}")
    yield equal(f"{kind} status", order.get("status"), "active")
    yield equal(f"{kind} intent", order.get("intent"), "order")
    written = order.get("authoredOn")
    yield Check(name=f"{kind} authoredOn", passed=same_minute(written, now), expected=now, actual=written)


def amount_check(order: Resource, value: float, unit: str, *, tolerance: float = _EXACT) -> Check:
    """The dose: the one there is, as a quantity."""
    dose = _dose_and_rate(order).get("doseQuantity")
    return Check(
        name="medication dose",
        passed=_is_quantity(dose, value, unit, tolerance),
        expected={"value": value, "unit": unit},
        actual=dose,
    )


def duration_check(order: Resource, hours: float, grams: float) -> Check:
    """How long an infusion runs: its hours, its grams per hour, or the duration of its timing; all that are said."""
    given = _dose_and_rate(order)
    quantity, ratio = given.get("rateQuantity"), given.get("rateRatio")
    repeat = _member(_member(_dosage(order), "timing"), "repeat")
    says = []
    if quantity is not None:
        says.append(_is_quantity(quantity, hours, "h") or _is_quantity(quantity, grams / hours, "g/h"))
    if ratio is not None:
        says.append(_is_ratio(ratio, grams / hours))
    if "duration" in repeat:
        says.append(_is_number(repeat["duration"], hours) and repeat.get("durationUnit") == "h")
    said = {"rateQuantity": quantity, "rateRatio": ratio, "timing": repeat or None}
    return Check(
        name="medication rate", passed=bool(says) and all(says), expected={"value": hours, "unit": "h"}, actual=said
    )


def note_check(order: Resource, text: str, *, within: bool = False) -> Check:
    """The one note of an order; `within`: other words may stand around the text."""
    notes = order.get("note") or []
    written = [one.get("text") for one in (notes if isinstance(notes, list) else [notes]) if isinstance(one, dict)]
    said = [plain(one) for one in written if isinstance(one, str)]
    right = [plain(text) in one if within else one.strip('"') == plain(text) for one in said]
    passed = any(right) if within else bool(right) and all(right)
    return Check(name="service note", passed=passed, expected=text, actual=written)


def blood_pressure_checks(
    end: EndState, found: Resource, mrn: str, now: str, systolic: int, diastolic: int
) -> Iterator[Check]:
    """A blood pressure as text or as two components."""
    yield equal("subject", end.refers(found.get("subject")), f"Patient/{mrn}")
    yield equal("status", found.get("status"), "final")
    kinds = [[one.get("system"), one.get("code")] for one in codings(found.get("category"))]
    vital = bool(kinds) and all(system in _CATEGORIES and code == "vital-signs" for system, code in kinds)
    yield Check(name="category", passed=vital, expected="vital-signs", actual=kinds)
    code = found.get("code")
    names = {*labels(code), *(str(one.get("code")) for one in codings(code))}
    right = bool(names & {"BP"}) if not codes_of(code, LOINC) else set(codes_of(code, LOINC)) <= {"BP", _PANEL}
    yield Check(name="code", passed=right, expected="BP", actual=code)
    when = found.get("effectiveDateTime") or found.get("effectiveInstant")
    yield Check(name="time", passed=same_minute(when, now), expected=now, actual=when)
    told = list(_pressures(found))
    wanted: list[Json] = [systolic, diastolic]
    yield Check(
        name="value",
        passed=bool(told) and all(one == wanted for one in told),
        expected=f"{systolic}/{diastolic} mmHg",
        actual=told,
    )


def _pressures(found: Resource) -> Iterator[list[Json]]:
    """Every pair of pressures an Observation tells."""
    if "valueString" in found:
        match = _PRESSURE.fullmatch(str(found["valueString"]))
        yield [int(match[1]), int(match[2])] if match else [found["valueString"]]
    elif any(name.startswith("value") for name in found):
        yield ["another kind of value"]
    components = found.get("component") or []
    if components:
        yield [_component(components, code) for code in (_SYSTOLIC, _DIASTOLIC)]


def _component(components: Iterable[Resource], code: str) -> Json:
    quantities = [one.get("valueQuantity") or {} for one in components if code in codes_of(one.get("code"), LOINC)]
    values = [one.get("value") for one in quantities if _is_unit(one, "mmHg") and "comparator" not in one]
    return values[0] if len(values) == len(quantities) == 1 else None


def _only(items: Json) -> Resource:
    """The one object of a list; empty if there are more or less."""
    return items[0] if isinstance(items, list) and len(items) == 1 and isinstance(items[0], dict) else {}


def _member(holder: Json, name: str) -> Resource:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}


def _dosage(order: Resource) -> Resource:
    return _only(order.get("dosageInstruction"))


def _dose_and_rate(order: Resource) -> Resource:
    return _only(_dosage(order).get("doseAndRate"))


def _is_route(said: Json, route: tuple[str, tuple[str, ...]]) -> bool:
    code, words = route
    if isinstance(said, str):
        return plain(said).casefold() in words
    if not isinstance(said, dict):
        return False
    told = [plain(text).casefold() in words for text in labels(said)]
    told += [one == code for one in codes_of(said, SNOMED)]
    return bool(told) and all(told)


def _is_number(actual: Json, expected: float, tolerance: float = _EXACT) -> bool:
    number = isinstance(actual, int | float) and not isinstance(actual, bool)
    return bool(number and abs(actual - expected) <= tolerance)


def _is_unit(quantity: Json, unit: str) -> bool:
    said = [quantity[name] for name in ("unit", "code") if name in quantity]
    return bool(said) and all(str(one).casefold() in _UNITS[unit] for one in said)


def _is_quantity(quantity: Json, value: float, unit: str, tolerance: float = _EXACT) -> bool:
    if not isinstance(quantity, dict) or "comparator" in quantity:
        return False
    forms = [(value, unit)]
    if unit in _AS_GOOD:
        other, many = _AS_GOOD[unit]
        forms.append((value * many, other))
    said = quantity.get("value")
    return any(_is_number(said, number, tolerance) and _is_unit(quantity, name) for number, name in forms)


def _is_ratio(ratio: Json, grams_an_hour: float) -> bool:
    over, under = _member(ratio, "numerator"), _member(ratio, "denominator")
    values = over.get("value"), under.get("value")
    if not all(isinstance(one, int | float) for one in values) or not values[1]:
        return False
    return _is_unit(over, "g") and _is_unit(under, "h") and _is_number(values[0] / values[1], grams_an_hour)
