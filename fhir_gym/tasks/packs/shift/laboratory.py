"""Patients with laboratory results in two units, some of them void, corrected or reported twice."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from types import MappingProxyType

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import IdAllocator, Person, at, instant, parse_instant, patient_resource, reference
from fhir_gym.tasks.packs.shift.formulary import LOINC
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.patients import draw_patients
from fhir_gym.types import Resource

VALID = ("final", "amended", "corrected")
"""Statuses of results that count."""
PERIOD = 300
"""Number of days before the present from which there are results."""

UCUM = "http://unitsofmeasure.org"
_LABORATORY = {
    "system": "http://terminology.hl7.org/CodeSystem/observation-category",
    "code": "laboratory",
    "display": "Laboratory",
}
_INVALID = ("preliminary", "preliminary", "entered-in-error", "cancelled")
_FEWEST_DAYS = 7
"""Minimum age of a specimen in days; its last report is issued before the present."""


@dataclass(frozen=True, slots=True)
class Analyte:
    """A LOINC code with a unit.

    Attributes:
        digits: Number of decimal places of results.
        scale: Usual size of a value, relative to the test in its main unit.
    """

    code: str
    display: str
    unit: str
    digits: int
    scale: float = 1


@dataclass(frozen=True, slots=True)
class LabTest:
    """A laboratory test that is reported in two units.

    Attributes:
        main: The code and unit of answers.
        other: The code and unit of the other results.
        similar: Another test that is easily confused with this test.
        factor: Factor that converts a value in the other unit to the main unit.
        offset: Number that is added after the multiplication.
        digits: Number of decimal places of answers.
        low: Lowest usual value in the main unit.
        high: Highest usual value in the main unit.
        limits: Limits, in the main unit, that requests ask about.
    """

    main: Analyte
    other: Analyte
    similar: Analyte
    factor: Decimal
    digits: int
    low: float
    high: float
    limits: tuple[str, ...]
    offset: Decimal = Decimal(0)

    @property
    def codes(self) -> tuple[str, str]:
        """The two codes of the test."""
        return self.main.code, self.other.code

    def converted(self, code: str, value: Decimal) -> Decimal:
        """Return the value of a result in the main unit."""
        return value if code == self.main.code else self.factor * value + self.offset


TESTS = MappingProxyType(
    {
        "glucose": LabTest(
            Analyte("2345-7", "Glucose [Mass/volume] in Serum or Plasma", "mg/dL", 0),
            Analyte("14749-6", "Glucose [Moles/volume] in Serum or Plasma", "mmol/L", 1),
            Analyte("2350-7", "Glucose [Mass/volume] in Urine", "mg/dL", 0, 0.1),
            Decimal("18.02"),
            1,
            75,
            220,
            ("126", "140", "160"),
        ),
        "HbA1c": LabTest(
            Analyte("4548-4", "Hemoglobin A1c/Hemoglobin.total in Blood", "%", 1),
            Analyte("59261-8", "Hemoglobin A1c/Hemoglobin.total in Blood by IFCC protocol", "mmol/mol", 0),
            Analyte("718-7", "Hemoglobin [Mass/volume] in Blood", "g/dL", 1, 1.7),
            Decimal("0.0915"),
            2,
            5.4,
            10.5,
            ("7", "7.5", "8"),
            offset=Decimal("2.15"),
        ),
        "creatinine": LabTest(
            Analyte("2160-0", "Creatinine [Mass/volume] in Serum or Plasma", "mg/dL", 2),
            Analyte("14682-9", "Creatinine [Moles/volume] in Serum or Plasma", "umol/L", 0),
            Analyte("2161-8", "Creatinine [Mass/volume] in Urine", "mg/dL", 0, 60),
            Decimal("0.0113"),
            2,
            0.7,
            2.6,
            ("1.2", "1.5", "1.8"),
        ),
        "cholesterol": LabTest(
            Analyte("2093-3", "Cholesterol [Mass/volume] in Serum or Plasma", "mg/dL", 0),
            Analyte("14647-2", "Cholesterol [Moles/volume] in Serum or Plasma", "mmol/L", 1),
            Analyte("2085-9", "Cholesterol in HDL [Mass/volume] in Serum or Plasma", "mg/dL", 0, 0.25),
            Decimal("38.67"),
            1,
            140,
            280,
            ("190", "200", "220"),
        ),
        "triglycerides": LabTest(
            Analyte("2571-8", "Triglyceride [Mass/volume] in Serum or Plasma", "mg/dL", 0),
            Analyte("14927-8", "Triglyceride [Moles/volume] in Serum or Plasma", "mmol/L", 1),
            Analyte("2091-7", "Cholesterol in VLDL [Mass/volume] in Serum or Plasma", "mg/dL", 0, 0.2),
            Decimal("88.57"),
            1,
            90,
            380,
            ("175", "200", "250"),
        ),
    }
)
"""The tests by the names that requests use."""
_ANALYTES = {analyte.code: analyte for test in TESTS.values() for analyte in (test.main, test.other, test.similar)}


class LabResult(Params):
    """One result.

    Attributes:
        patient: Id of the patient.
        taken: When the specimen was taken (instant).
        issued: When the result was issued (instant).
        value: The value as a decimal number.
    """

    id: str
    patient: str
    code: str
    status: str
    taken: str
    issued: str
    value: str


class LabScene(ShiftScene):
    """Patients with laboratory results.

    Attributes:
        tests: Names of the tests; see `TESTS`.
        people: The patients. Some of them share name and date of birth with another patient.
        results: The results of all patients, in no particular order.
        values: Minimum and maximum number of results on which an answer rests.
    """

    tests: tuple[str, ...]
    people: tuple[Person, ...]
    results: tuple[LabResult, ...]
    values: tuple[int, int] = (3, 15)

    @override
    def resources(self) -> list[Resource]:
        return [*map(patient_resource, self.people), *map(result_resource, self.results)]


def draw_laboratory(
    rng: random.Random,
    world: World,
    ids: IdAllocator,
    *,
    people: Sequence[int],
    twins: int,
    tests: int,
    counts: Sequence[int],
    values: tuple[int, int] = (3, 15),
) -> LabScene:
    """Draw patients whose results all come from the same random process."""
    everyone = draw_patients(rng, world, ids, people, twins)
    names = tuple(rng.sample(sorted(TESTS), tests))
    return LabScene(
        tests=names,
        people=tuple(everyone),
        results=tuple(
            result
            for person in everyone
            for name, count in zip(names, _counts(rng, counts, tests), strict=True)
            for result in _results(rng, world, ids, person.id, TESTS[name], count)
        ),
        values=values,
    )


def _counts(rng: random.Random, counts: Sequence[int], tests: int) -> list[int]:
    """Draw how many specimens a patient has for each test.

    All tests but one have many, so that a question about any patient can have an answer.
    """
    drawn = [rng.choice(sorted(counts)[-2:]) for _ in range(tests)]
    drawn[rng.randrange(tests)] = rng.choice(counts)
    return drawn


def _results(
    rng: random.Random, world: World, ids: IdAllocator, patient: str, test: LabTest, count: int
) -> Iterator[LabResult]:
    """Draw the results of a patient: each specimen is reported once or twice."""
    today = world.now.date()
    first, last = (rng.uniform(test.low, test.high) for _ in range(2))
    for ago in sorted(rng.sample(range(_FEWEST_DAYS, PERIOD), count), reverse=True):
        taken = at(today - timedelta(days=ago), rng.randrange(6, 20), rng.randrange(60))
        share = ago / PERIOD
        value = (first * share + last * (1 - share)) * rng.uniform(0.85, 1.15)
        analyte = rng.choice((test.main, test.main, test.main, test.other, test.other, test.similar))
        issued = taken + _delay(rng)
        for repeat in range(rng.choice((1, 1, 1, 1, 2))):
            if repeat:
                issued += _delay(rng)
                analyte = rng.choice((analyte, test.main, test.other))
                value *= rng.choice((1, 1, 1.1, 0.9))
            yield LabResult(
                id=ids.new("Observation"),
                patient=patient,
                code=analyte.code,
                status=rng.choice(VALID if repeat else ("final",)) if rng.random() < 0.75 else rng.choice(_INVALID),
                taken=instant(taken),
                issued=instant(issued),
                value=reported_value(test, analyte, value),
            )


def _delay(rng: random.Random) -> timedelta:
    """Draw the time from a specimen to its report: some hours, sometimes days."""
    return timedelta(minutes=rng.randrange(40, 400), days=rng.choice((0, 0, 0, 1, 2)))


def reported_value(test: LabTest, analyte: Analyte, value: float) -> str:
    """Return the result of an analyte for a value in the main unit of the test."""
    reported = (value - float(test.offset)) / float(test.factor) if analyte == test.other else value * analyte.scale
    return f"{reported:.{analyte.digits}f}"


def result_resource(result: LabResult) -> Resource:
    """Build the Observation of a result."""
    return observation_of(result, _ANALYTES[result.code])


def observation_of(result: LabResult, analyte: Analyte) -> Resource:
    """Build the Observation of a result of an analyte."""
    return {
        "resourceType": "Observation",
        "id": result.id,
        "status": result.status,
        "category": [{"coding": [_LABORATORY]}],
        "code": {
            "coding": [{"system": LOINC, "code": analyte.code, "display": analyte.display}],
            "text": analyte.display,
        },
        "subject": reference("Patient", result.patient),
        "effectiveDateTime": result.taken,
        "issued": result.issued,
        "valueQuantity": {
            "value": float(result.value) if analyte.digits else int(result.value),
            "unit": analyte.unit,
            "system": UCUM,
            "code": analyte.unit,
        },
    }


def parse_result(observation: Resource) -> LabResult:
    """Read the Observation of a result."""
    return LabResult(
        id=observation["id"],
        patient=observation["subject"]["reference"].removeprefix("Patient/"),
        code=next(coding["code"] for coding in observation["code"]["coding"] if coding["system"] == LOINC),
        status=observation["status"],
        taken=instant(parse_instant(observation["effectiveDateTime"])),
        issued=instant(parse_instant(observation["issued"])),
        value=str(observation["valueQuantity"]["value"]),
    )
