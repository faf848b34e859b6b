"""Orders for values outside their range: the content that a prompt requires, and the checks of a stored order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from fhir_gym.tasks import Check, FinishedEpisode, equal
from fhir_gym.tasks.authoring import SNOMED, created_check, new_resource, reference
from fhir_gym.tasks.packs.medagentbench.orders import (
    LOINC,
    medication_checks,
    medication_order,
    service_checks,
    service_order,
)
from fhir_gym.tasks.packs.medagentbench.routes import ROUTES, Route
from fhir_gym.tasks.packs.medagentbench.wording import OrderedDose
from fhir_gym.types import Resource

RXNORM = "http://www.nlm.nih.gov/research/umls/rxnorm"
_SYSTEMS = {RXNORM: "RxNorm", LOINC: "LOINC", SNOMED: "SNOMED CT"}

OrderType = Literal["MedicationRequest", "ServiceRequest"]


@dataclass(frozen=True, slots=True)
class Dose:
    """A dose. The module `amounts` must know its unit; the route is ``intravenous``, ``oral`` or ``subcutaneous``."""

    value: float
    unit: str
    route: str

    @property
    def told(self) -> tuple[Route, float, str]:
        """Route, amount and unit, as the checks need them."""
        return ROUTES[self.route], self.value, self.unit


@dataclass(frozen=True, slots=True)
class OrderSpec:
    """The order that a task asks for.

    Attributes:
        name: What to order, as a noun phrase.
        system: Code system.
        dose: Dose of a drug; None if the order is for a test or a referral.
        priority: Priority of a test or referral; None if the order is for a drug.
        bare: Resource type if only the type and name of the order are known (external cases); otherwise None.
    """

    name: str
    system: str
    code: str
    dose: Dose | None = None
    priority: str | None = None
    bare: OrderType | None = None

    @property
    def resource_type(self) -> OrderType:
        """Type of the resource to create."""
        return self.bare or ("MedicationRequest" if self.dose else "ServiceRequest")

    def body(self, mrn: str, now: str) -> Resource:
        """Build the resource of the order, with only the required content."""
        if self.bare is not None:
            what = "medicationCodeableConcept" if self.bare == "MedicationRequest" else "code"
            order = {"resourceType": self.bare, "status": "active", "intent": "order", what: {"text": self.name}}
            return {**order, "subject": reference("Patient", mrn), "authoredOn": now}
        if self.dose is None:
            return service_order(mrn, now, self.system, self.code, priority=self.priority)
        amount = {"value": self.dose.value, "unit": self.dose.unit}
        return medication_order(mrn, now, self.code, self.dose.route, amount, None, system=self.system)

    def checks(self, end: FinishedEpisode, mrn: str, now: str) -> Iterator[Check]:
        """Yield the checks of the order that the agent stored."""
        yield created_check(end, self.resource_type)
        stored = new_resource(end, self.resource_type)
        if self.bare is not None:
            yield equal("order subject", end.refers(stored.get("subject")), f"Patient/{mrn}")
            yield equal("order status", stored.get("status"), "active")
            yield equal("order intent", stored.get("intent"), "order")
            return
        if self.dose is None:
            yield from service_checks(end, stored, mrn, now, self.system, self.code, self.priority)
            return
        told = OrderedDose(self.name.casefold().replace("(", "").replace(")", "").split(), *self.dose.told)
        yield from medication_checks(end, stored, mrn, now, self.code, told, system=self.system)

    @property
    def summary(self) -> str:
        """The required content in a few words: code, and dose and route or priority."""
        code = f"{_SYSTEMS[self.system]} {self.code}"
        if self.dose is None:
            return f"{code}, priority {self.priority}"
        return f"{code}, one {self.dose.route} dose of {self.dose.value:g} {self.dose.unit}"

    @property
    def content(self) -> str:
        """The sentences of a prompt that state the required content."""
        if self.bare is not None:
            return f"To order it, create one new {self.bare} with the patient as subject, status active, intent order."
        code = f"the {_SYSTEMS[self.system]} code {self.code} (system {self.system})"
        head = f"To order {self.name}, create one new {self.resource_type} with the patient as subject, status active"
        if self.dose is None:
            return (
                f"{head}, intent order, priority {self.priority}, {code} in code, and the current time as authoredOn. "
                "This is a one-time order, not an as-needed one."
            )
        return (
            f"{head}, intent order, {code} in medicationCodeableConcept, the current time as authoredOn, and one "
            f"dosageInstruction with route {self.dose.route} and one doseAndRate with a doseQuantity of "
            f"{self.dose.value:g} {self.dose.unit}. This is a single dose, not an as-needed order."
        )


def _drug(name: str, code: str, value: float, unit: str, route: str) -> OrderSpec:
    return OrderSpec(name, RXNORM, code, Dose(value, unit, route))


def _test(name: str, code: str, priority: str = "stat", system: str = LOINC) -> OrderSpec:
    return OrderSpec(name, system, code, priority=priority)


_RENAL = _test("a renal function panel", "24362-6")
_BLOOD_COUNT = _test("a complete blood count", "58410-2")
_METABOLIC = _test("a basic metabolic panel", "24321-2")
_ERYTHROPOIETIN = _test("an erythropoietin level", "15061-5", "routine")

ORDERS: Mapping[str, OrderSpec] = {
    "CA low": _drug("intravenous calcium gluconate", "1908", 2, "g", "intravenous"),
    "CA high": _test("a parathyroid hormone level", "2731-4", "urgent"),
    "CA outside": _test("an ionized calcium level", "1995-0"),
    "CL low": _test("a urine chloride level", "2078-4", "urgent"),
    "CL high": _test("an arterial blood gas panel", "24336-0"),
    "CL outside": _METABOLIC,
    "CR low": _test("a cystatin C level", "33863-2", "routine"),
    "CR high": _RENAL,
    "CR outside": _test("a repeat creatinine level", "2160-0", "urgent"),
    "PT low": _test("a fibrinogen level", "3255-7", "urgent"),
    "PT high": _drug("oral vitamin K (phytonadione)", "8308", 5, "mg", "oral"),
    "PT outside": _test("a prothrombin time panel with INR", "34528-0"),
    "TP low": _test("a dietitian consultation", "103699006", "routine", SNOMED),
    "TP high": _test("a serum protein electrophoresis", "24351-9", "routine"),
    "TP outside": _test("a comprehensive metabolic panel", "24323-8", "urgent"),
    "GLU low": _drug("intravenous dextrose", "4850", 25, "g", "intravenous"),
    "GLU high": _drug("subcutaneous regular insulin", "253182", 6, "units", "subcutaneous"),
    "GLU outside": _test("a hemoglobin A1c", "4548-4", "routine"),
    "K low": _drug("oral potassium chloride", "8591", 40, "mEq", "oral"),
    "K high": _test("an electrocardiogram", "29303009", "stat", SNOMED),
    "K outside": _test("a repeat potassium level", "2823-3"),
    "MG low": _drug("intravenous magnesium sulfate", "6585", 2, "g", "intravenous"),
    "MG high": _drug("intravenous calcium gluconate", "1908", 1, "g", "intravenous"),
    "MG outside": _test("a repeat magnesium level", "19123-9", "urgent"),
    "NA low": _test("a serum osmolality", "2692-2"),
    "NA high": _test("a urine osmolality", "2695-5", "urgent"),
    "NA outside": _test("a repeat sodium level", "2951-2"),
    "HGB low": _test("a type and screen", "34532-2"),
    "HGB high": _ERYTHROPOIETIN,
    "HGB outside": _BLOOD_COUNT,
    "HCT low": _test("an iron panel", "50190-8", "routine"),
    "HCT high": _ERYTHROPOIETIN,
    "HCT outside": _BLOOD_COUNT,
}
"""Orders by key: the laboratory test and the side of the range that requires the order."""
