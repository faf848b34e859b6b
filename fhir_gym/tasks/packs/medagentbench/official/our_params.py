"""Derive the parameters of fhir_gym's corresponding task from a task of an official task file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from fhir_gym.errors import TaskError
from fhir_gym.tasks import Params, Task
from fhir_gym.tasks.authoring import Person, instant
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.packs.medagentbench.labs import LabParams, Result
from fhir_gym.tasks.packs.medagentbench.official.records import (
    DAY_AGO,
    NOW,
    NOW_TEXT,
    TODAY,
    LabReading,
    OfficialRecords,
    latest,
)
from fhir_gym.tasks.packs.medagentbench.official.task_file import OfficialCase
from fhir_gym.tasks.packs.medagentbench.t01_find_patient import FindPatient, FindPatientParams
from fhir_gym.tasks.packs.medagentbench.t02_age import Age, AgeParams, age_on
from fhir_gym.tasks.packs.medagentbench.t03_blood_pressure import BloodPressure, BloodPressureParams
from fhir_gym.tasks.packs.medagentbench.t04_magnesium import Magnesium
from fhir_gym.tasks.packs.medagentbench.t05_magnesium_replacement import MagnesiumReplacement
from fhir_gym.tasks.packs.medagentbench.t06_average_glucose import AverageGlucose
from fhir_gym.tasks.packs.medagentbench.t07_glucose import Glucose
from fhir_gym.tasks.packs.medagentbench.t08_referral import Referral, ReferralParams
from fhir_gym.tasks.packs.medagentbench.t09_potassium_replacement import PotassiumReplacement
from fhir_gym.tasks.packs.medagentbench.t10_hemoglobin_a1c import HemoglobinA1c

OURS: Mapping[str, Task[Any]] = {
    "task1": FindPatient(),
    "task2": Age(),
    "task3": BloodPressure(),
    "task4": Magnesium(),
    "task5": MagnesiumReplacement(),
    "task6": AverageGlucose(),
    "task7": Glucose(),
    "task8": Referral(),
    "task9": PotassiumReplacement(),
    "task10": HemoglobinA1c(),
}
"""The task of fhir_gym that corresponds to each task class of the benchmark."""

_WITHIN = 24 * 60 - 10
"""Maximum age of a counterfactual result in minutes."""
_PERSON = re.compile(r"name (.+?) and DOB of (\d{4}-\d\d-\d\d)")
_PRESSURE = re.compile(r"(\d+)/(\d+) mmHg")
_QUOTED = re.compile(r'["“](.+)["”]', re.DOTALL)
_CLOSE = 0.1
_NOT_FOUND = "Patient not found"


def params_for_ours(case: OfficialCase, records: OfficialRecords) -> Params:
    """Derive parameters of fhir_gym's corresponding task from the text of an official task and the records.

    Raises:
        TaskError: The text does not have the form of its task class.
        LookupError: A record is incomplete; other exceptions of `READ_ERRORS` are possible too.
    """
    return _FACTS[case.kind](case, records)


def _matched(case: OfficialCase, pattern: re.Pattern[str]) -> re.Match[str]:
    match = pattern.search(case.instruction)
    if match is None:
        raise TaskError(f"the instruction of {case.id} does not have the form of its class: {case.instruction[:80]!r}")
    return match


def _mrn(case: OfficialCase) -> str:
    if case.eval_MRN is None:
        raise TaskError(f"{case.id} has no eval_MRN")
    return case.eval_MRN


def _person(case: OfficialCase, records: OfficialRecords) -> Params:
    name, born = _matched(case, _PERSON).groups()
    given, _, family = name.partition(" ")
    mrn = str(case.sol[0]) if case.sol else _NOT_FOUND
    nowhere = {"phone": "0", "line": "0", "city": "0", "state": "0"}
    person = Person(id="phantom", given=given, family=family, gender="unknown", birth_date=born, **nowhere)
    return FindPatientParams(person=person, mrn=None if mrn == _NOT_FOUND else mrn)


def _age(case: OfficialCase, records: OfficialRecords) -> Params:
    age = age_on(TODAY, records.birth_date(case.eval_MRN))
    return AgeParams(today=TODAY.isoformat(), mrn=_mrn(case), age=age)


def _pressure(case: OfficialCase, records: OfficialRecords) -> Params:
    systolic, diastolic = map(int, _matched(case, _PRESSURE).groups())
    return BloodPressureParams(now=NOW_TEXT, mrn=_mrn(case), systolic=systolic, diastolic=diastolic)


def _referral(case: OfficialCase, records: OfficialRecords) -> Params:
    comment = _matched(case, _QUOTED)[1]
    return ReferralParams(now=NOW_TEXT, mrn=_mrn(case), comment=comment, within=True, priority=None)


def _latest(code: str, *, window: bool, **more: Any) -> Callable[[OfficialCase, OfficialRecords], Params]:
    def read(case: OfficialCase, records: OfficialRecords) -> Params:
        last = latest(_readings(case, records, code, window=window))
        newest = {"level": last.value, "taken": last.text, "deciding": (last.id,)} if last else {"level": None}
        return LabParams(
            now=NOW_TEXT, mrn=_mrn(case), counterfactual=None if last else _counterfactual(case, code), **newest, **more
        )

    return read


def _average(case: OfficialCase, records: OfficialRecords) -> Params:
    readings = _readings(case, records, "GLU", window=True)
    return LabParams(
        now=NOW_TEXT,
        mrn=_mrn(case),
        deciding=tuple(reading.id for reading in readings),
        level=sum(reading.value for reading in readings) / len(readings) if readings else None,
        tolerance=_CLOSE,
        counterfactual=None if readings else _counterfactual(case, "GLU"),
    )


def _readings(case: OfficialCase, records: OfficialRecords, code: str, *, window: bool) -> list[LabReading]:
    readings = records.readings(case.eval_MRN, code)
    return [reading for reading in readings if reading.taken >= DAY_AGO] if window else readings


def _counterfactual(case: OfficialCase, code: str) -> Result:
    rng, mrn = seeded_random(case.id), _mrn(case)
    taken = instant(NOW - timedelta(minutes=rng.randint(1, _WITHIN)))
    value = round(rng.uniform(1, 10), 1)
    return Result(id="supposed", owner=mrn, code=code, taken=taken, issued=taken, value=value, unit="1")


_FACTS: Mapping[str, Callable[[OfficialCase, OfficialRecords], Params]] = {
    "task1": _person,
    "task2": _age,
    "task3": _pressure,
    "task4": _latest("MG", window=True),
    "task5": _latest("MG", window=True, silent=True),
    "task6": _average,
    "task7": _latest("GLU", window=False),
    "task8": _referral,
    "task9": _latest("K", window=False, priority=None, silent=True),
    "task10": _latest("A1C", window=False, priority=None),
}
