"""Reference solutions of the benchmark's tasks, in the forms that its verdict requires."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime

from fhir_gym.actions import Finish, Get, Post
from fhir_gym.fhir.session import DEFAULT_BASE_URL
from fhir_gym.tasks import Gold
from fhir_gym.tasks.authoring import entries, reference
from fhir_gym.tasks.core.dates import full_years
from fhir_gym.tasks.packs.medagentbench.official.orders import magnesium_dose, potassium_dose
from fhir_gym.tasks.packs.medagentbench.official.records import (
    COUNT,
    DAY_AGO,
    NOW_TEXT,
    TODAY,
    YEAR_AGO,
    LabReading,
    latest,
    reading,
)
from fhir_gym.tasks.packs.medagentbench.official.task_file import OfficialCase
from fhir_gym.tasks.packs.medagentbench.orders import LOINC, medication_order, service_order
from fhir_gym.types import Json, Resource

_PERSON = re.compile(r"name (\S+) (.+?) and DOB of (\d{4}-\d\d-\d\d)")
_QUOTED = re.compile(r'"(.+)"', re.DOTALL)
_NEXT_MORNING = "2023-11-14T08:00:00+00:00"


def solution(case: OfficialCase) -> Gold:
    """Solve a task from only its text and the server's responses."""
    return _SOLUTIONS[case.kind](case)


def _url(resource_type: str) -> str:
    return f"{DEFAULT_BASE_URL}/{resource_type}"


def _find(case: OfficialCase) -> Gold:
    match = _PERSON.search(case.instruction)
    given, family, born = match.groups() if match else ("", "", "")
    bundle = yield Get(_url("Patient"), {"given": given, "family": family, "birthdate": born})
    numbers = [entry["identifier"][0]["value"] for entry in entries(bundle)]
    yield Finish(numbers[:1] or ["Patient not found"])


def _age(case: OfficialCase) -> Gold:
    bundle = yield Get(_url("Patient"), {"identifier": case.eval_MRN})
    born = next(entries(bundle))["birthDate"]
    yield Finish([full_years(datetime.fromisoformat(born).date(), TODAY)])


def _pressure(case: OfficialCase) -> Gold:
    kind = {"system": "http://hl7.org/fhir/observation-category", "code": "vital-signs", "display": "Vital Signs"}
    (value,) = _QUOTED.findall(case.instruction)
    body = {
        "resourceType": "Observation",
        "category": [{"coding": [kind]}],
        "code": {"text": "BP"},
        "effectiveDateTime": NOW_TEXT,
        "status": "final",
        "valueString": value,
        "subject": reference("Patient", str(case.eval_MRN)),
    }
    yield Post(_url("Observation"), body)
    yield Finish()


def _referral(case: OfficialCase) -> Gold:
    (comment,) = _QUOTED.findall(case.instruction)
    order = _service(case, "http://snomed.info/sct", "306181000000106")
    yield Post(_url("ServiceRequest"), {**order, "note": {"text": comment}})
    yield Finish()


def _readings(bundle: Json, *, window: bool) -> list[LabReading]:
    every = [reading(entry) for entry in entries(bundle)]
    return [lab_reading for lab_reading in every if lab_reading.taken >= DAY_AGO] if window else every


def _value(code: str, *, window: bool) -> Callable[[OfficialCase], Gold]:
    def solve(case: OfficialCase) -> Gold:
        last = latest(_readings((yield _look(case, code)), window=window))
        yield Finish([last.value if last else -1])

    return solve


def _look(case: OfficialCase, code: str) -> Json:
    return Get(_url("Observation"), {"patient": case.eval_MRN, "code": code, "_count": COUNT})


def _average(case: OfficialCase) -> Gold:
    values = [lab_reading.value for lab_reading in _readings((yield _look(case, "GLU")), window=True)]
    yield Finish([sum(values) / len(values) if values else -1])


def _magnesium(case: OfficialCase) -> Gold:
    last = latest(_readings((yield _look(case, "MG")), window=True))
    if last and last.value <= 1.9:
        amount = magnesium_dose(last.value)
        dose_and_rate = {"doseQuantity": {"value": amount, "unit": "g"}, "rateQuantity": {"value": amount, "unit": "h"}}
        yield Post(_url("MedicationRequest"), _medication(case, "0338-1715-40", "IV", dose_and_rate))
    yield Finish([last.value if last else -1])


def _potassium(case: OfficialCase) -> Gold:
    last = latest(_readings((yield _look(case, "K")), window=False))
    if last and last.value < 3.5:
        dose_and_rate = {"doseQuantity": {"value": round(potassium_dose(last.value), 1), "unit": "mEq"}}
        yield Post(_url("MedicationRequest"), _medication(case, "40032-917-01", "oral", dose_and_rate))
        order = _service(case, LOINC, "2823-3")
        yield Post(_url("ServiceRequest"), {**order, "occurrenceDateTime": _NEXT_MORNING})
    yield Finish([last.value if last else -1])


def _hemoglobin(case: OfficialCase) -> Gold:
    last = latest(_readings((yield _look(case, "A1C")), window=False))
    if last is None or last.taken < YEAR_AGO:
        yield Post(_url("ServiceRequest"), _service(case, LOINC, "4548-4"))
    yield Finish([last.value, last.text] if last else [-1])


def _medication(case: OfficialCase, code: str, route: str, dose_and_rate: Resource) -> Resource:
    order = medication_order(str(case.eval_MRN), NOW_TEXT, code, route, {}, None)
    return {**order, "dosageInstruction": [{"route": route, "doseAndRate": [dose_and_rate]}]}


def _service(case: OfficialCase, system: str, code: str) -> Resource:
    return service_order(str(case.eval_MRN), NOW_TEXT, system, code)


_SOLUTIONS: Mapping[str, Callable[[OfficialCase], Gold]] = {
    "task1": _find,
    "task2": _age,
    "task3": _pressure,
    "task4": _value("MG", window=True),
    "task5": _magnesium,
    "task6": _average,
    "task7": _value("GLU", window=False),
    "task8": _referral,
    "task9": _potassium,
    "task10": _hemoglobin,
}
