"""Laboratory results: build the charts that tasks put on the server, and read results from server responses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from fhir_gym.actions import Get
from fhir_gym.actions.model import Action
from fhir_gym.tasks import Params, SceneParams
from fhir_gym.tasks.authoring import Person, entries, instant, parse_instant, reference
from fhir_gym.types import Json, Resource

DAY = timedelta(hours=24)
VOID_STATUSES = ("cancelled", "entered-in-error")
"""A result with one of these statuses does not count."""
_UCUM = "http://unitsofmeasure.org"
_UCUM_CODES = {"mEq/L": "meq/L"}
"""UCUM's codes of units that are printed in another way."""

RULES = (
    "The time of a result is when the specimen was taken (effectiveDateTime). Results with status cancelled or "
    "entered-in-error do not count. Of two results taken at the same time, the one issued later counts."
)
"""The sentences of prompts that say which results count."""


@dataclass(frozen=True)
class LabTest:
    """A laboratory test.

    Attributes:
        code: The hospital's code of the test.
        unit: Requested unit of answers.
        low: Lowest value of the results that a task adds.
        high: Highest value of the results that a task adds.
        digits: Number of decimal places.
        neighbour: Code of another test in the same charts.
        other_unit: Unit of some results; empty if all results have `unit`.
        factor: Factor that converts from `other_unit` to `unit`.
        other_digits: Number of decimal places in `other_unit`.
    """

    code: str
    unit: str
    low: float
    high: float
    digits: int
    neighbour: str
    other_unit: str = ""
    factor: float = 1.0
    other_digits: int = 0

    @property
    def tolerance(self) -> float:
        """Maximum rounding error of a value converted from `other_unit`."""
        return 0.5 * math.pow(10, -self.digits) + 1e-9

    @property
    def conversion(self) -> str:
        """The sentence of prompts that says how to convert from `other_unit`."""
        place = "a whole number" if self.digits == 0 else "one decimal"
        rule = f"Convert results in {self.other_unit}: 1 {self.other_unit} is {self.factor:g} {self.unit}."
        return f"{rule} Round to {place}, or do not round."


MG = LabTest("MG", "mg/dL", 0.6, 3.2, 1, "CA", "mmol/L", 2.43, 2)
GLU = LabTest("GLU", "mg/dL", 54, 388, 0, "LAC", "mmol/L", 18.02, 1)
K = LabTest("K", "mmol/L", 2.4, 6.1, 1, "NA", "mEq/L", 1, 1)
A1C = LabTest("A1C", "%", 4.6, 13.9, 1, "GLU")


class Result(Params):
    """A stored result.

    Attributes:
        owner: Record number of the patient.
        code: Code of the test.
        taken: When the specimen was taken (instant).
        issued: When the result was issued (instant).
    """

    id: str
    owner: str
    code: str
    taken: str
    issued: str
    value: float
    unit: str
    status: str = "final"

    @property
    def resource(self) -> Resource:
        """The Observation."""
        laboratory = {
            "system": "http://terminology.hl7.org/CodeSystem/observation-category",
            "code": "laboratory",
            "display": "Laboratory",
        }
        code = {"system": "http://loinc.org", "code": self.code, "display": self.code}
        value = int(self.value) if self.value == int(self.value) else self.value
        unit = {"unit": self.unit, "system": _UCUM, "code": _UCUM_CODES.get(self.unit, self.unit)}
        return {
            "resourceType": "Observation",
            "id": self.id,
            "status": self.status,
            "category": [{"coding": [laboratory]}],
            "code": {"coding": [code], "text": self.code},
            "subject": reference("Patient", self.owner),
            "effectiveDateTime": self.taken,
            "issued": self.issued,
            "valueQuantity": {"value": value, **unit},
        }


class LabChart(Params):
    """The results of one patient.

    Attributes:
        person: The patient; the id is the record number.
        results: The patient's results of all tests.
        counterfactual: A result that would count but is not on the server; None if a result on the server counts.
    """

    person: Person
    results: tuple[Result, ...]
    counterfactual: Result | None = None


class LabScene(Params):
    """The charts that a task puts on the server; the prompt asks about one of their patients.

    Attributes:
        now: Current time (instant).
    """

    now: str = ""
    charts: tuple[LabChart, ...] = ()


class LabParams(SceneParams):
    """Parameters of a task about laboratory results.

    Attributes:
        scene: The charts; empty if the patient is already in the world.
        now: Current time (instant).
        mrn: Record number of the patient.
        deciding: Ids of the results that determine the answer.
        level: The value in the requested unit; None if no result counts.
        tolerance: Maximum difference between an accepted answer and `level`.
        taken: When the result that determines the answer was taken; None if no result counts.
        counterfactual: A result that would count but is not on the server; None if a result on the server counts.
        silent: Whether the empty answer is accepted too.
        priority: Requested priority of a laboratory order; None if the prompt states no priority.
    """

    scene: LabScene = LabScene()
    now: str
    mrn: str
    name: str = ""
    deciding: tuple[str, ...] = ()
    level: float | None
    tolerance: float = 0.0
    taken: str | None = None
    counterfactual: Result | None = None
    silent: bool = False
    priority: str | None = "stat"

    @property
    def results(self) -> tuple[Result, ...]:
        """The patient's results."""
        return next((chart.results for chart in self.scene.charts if chart.person.id == self.mrn), ())


@dataclass(frozen=True, slots=True)
class ParsedResult:
    """A result parsed from a server response.

    Attributes:
        taken: When the specimen was taken.
        issued: When the result was issued; `taken` if the response lacks this time.
        text: `taken` as the server returned it.
        value: The value in the requested unit.
    """

    taken: datetime
    issued: datetime
    text: str
    value: float


def results_search(mrn: str, test: LabTest, since: str = "") -> Action:
    """Build the search for a patient's results, newest first; `since` restricts it to results from this instant on."""
    window = {"date": f"ge{since}"} if since else {}
    return Get("/Observation", {"patient": mrn, "code": test.code, **window, "_sort": "-date", "_count": 200})


def day_before(now: str) -> str:
    """Return the instant 24 hours earlier."""
    return instant(parse_instant(now) - DAY)


def counted_results(bundle: Json, test: LabTest) -> list[ParsedResult]:
    """Return the results in a searchset Bundle that count, the latest first."""
    return sorted(_read(bundle, test), key=lambda result: (result.taken, result.issued), reverse=True)


def _read(bundle: Json, test: LabTest) -> Iterator[ParsedResult]:
    for entry in entries(bundle):
        quantity, taken = entry.get("valueQuantity"), str(entry.get("effectiveDateTime"))
        if not quantity or "T" not in taken or entry.get("status") in VOID_STATUSES:
            continue
        factor = test.factor if quantity.get("unit") == test.other_unit else 1
        value = quantity["value"] * factor
        yield ParsedResult(parse_instant(taken), parse_instant(entry.get("issued", taken)), taken, value)
