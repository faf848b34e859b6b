"""A small world for the benchmark's tasks, and a task file for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.official_agreement import ReplayedEpisode, replay
from fhir_gym.tasks.packs.medagentbench.official import OfficialCase, read_cases

if TYPE_CHECKING:
    from fhir_gym.fhir import World

NOW = "2023-11-13T10:15:00+00:00"
BASE = "http://localhost:8080/fhir"
MRN = "S0000001"
READINGS: list[tuple[str, str, str, Any]] = [
    # patient, code, time and value, in the server's order
    (MRN, "MG", "2023-11-12T10:14:00+00:00", 0.7),
    (MRN, "MG", "2023-11-12T10:15:00+00:00", 1.4),
    (MRN, "MG", "2023-11-13T09:00:00+00:00", 1.9),
    (MRN, "MG", "2023-11-13T09:00:00+00:00", 2.4),
    (MRN, "GLU", "2023-11-12T10:14:00+00:00", 300),
    (MRN, "GLU", "2023-11-12T23:00:00+00:00", 100),
    (MRN, "GLU", "2023-11-13T08:00:00+00:00", 111.3),
    (MRN, "K", "2023-10-01T08:00:00+00:00", 3.1),
    (MRN, "K", "2023-09-01T08:00:00+00:00", 4.4),
    (MRN, "A1C", "2022-11-13T10:15:00+00:00", 6.5),
    ("S0000002", "MG", "2023-11-13T09:00:00+00:00", 1.95),
    ("S0000002", "K", "2023-11-13T09:00:00+00:00", 3.5),
    ("S0000002", "A1C", "2022-11-13T10:14:59+00:00", 7.1),
    ("S0000002", "GLU", "2023-11-14T09:00:00+00:00", 90),
    ("S0000004", "MG", "2023-11-13", 2.2),
    ("S0000004", "K", "2023-11-13T09:00:00+00:00", None),
]
PATIENTS = {"S0000001": "1963-11-13", "S0000002": "1963-11-14", "S0000003": "1963-11-12", "S0000004": "1963"}
_TEXTS = {
    "task1": "What's the MRN of the patient with name Ann Lee and DOB of 1963-11-13?",
    "task3": 'The blood pressure of {mrn} is "118/77 mmHg". Record it.',
    "task8": 'Order a referral for {mrn}. Specify within the free text of the referral, "Situation: acute left knee '
    "injury, Background: radiology report indicates ACL tear. Assessment: ACL tear grade II. Recommendation: request "
    'for Orthopedic service to evaluate and provide management recommendations."',
}


def observation(number: int, reading: tuple[str, str, str, Any]) -> dict[str, Any]:
    mrn, code, taken, value = reading
    quantity = {"valueQuantity": {"value": value, "unit": "mg/dL"}} if value is not None else {}
    return {
        "resourceType": "Observation",
        "id": f"o{number}",
        "status": "final",
        "code": {"coding": [{"system": "http://loinc.org", "code": code}], "text": code},
        "subject": {"reference": f"Patient/{mrn}"},
        "effectiveDateTime": taken,
        **quantity,
    }


def patient(mrn: str, born: str) -> dict[str, Any]:
    return {
        "resourceType": "Patient",
        "id": mrn,
        "identifier": [{"value": mrn}],
        "name": [{"family": "Lee", "given": ["Ann"]}],
        "birthDate": born,
    }


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Four patients: one has low values, one has values beyond each boundary, one has no values, one broken records."""
    from fhir_gym.fhir import World, WorldBuilder

    path = tmp_path_factory.mktemp("worlds") / "small.world"
    with WorldBuilder(path, name="small", seed=None, now=datetime.fromisoformat(NOW)) as builder:
        for mrn, born in PATIENTS.items():
            builder.add(patient(mrn, born))
        for number, reading in enumerate(READINGS):
            builder.add(observation(number, reading))
    with World.open(path) as world:
        yield world


@pytest.fixture(scope="session")
def task_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of every class for each patient; `task5_2` is of class 5 and about patient S0000002."""
    tasks: list[dict[str, Any]] = []
    for kind in range(1, 11):
        for number in range(1, 5):
            mrn = f"S000000{number}"
            text = _TEXTS.get(f"task{kind}", "What about {mrn}?").format(mrn=mrn)
            case: dict[str, Any] = {
                "id": f"task{kind}_{number}",
                "instruction": text,
                "context": f"It's {NOW} now.",
                "eval_MRN": mrn,
            }
            if kind == 1:
                case |= {"sol": [mrn]}
            tasks.append(case)
    tasks.append({"id": "task1_5", "instruction": _TEXTS["task1"].replace("Ann", "Bo"), "sol": ["Patient not found"]})
    path = tmp_path_factory.mktemp("tasks") / "tasks.json"
    path.write_text(json.dumps(tasks))
    return path


@pytest.fixture(scope="session")
def cases(task_file: Path) -> dict[str, OfficialCase]:
    return {case.id: case for case in read_cases(task_file)}


class Play:
    """Replay an agent's messages on the small world."""

    def __init__(self, cases: dict[str, OfficialCase], world: World) -> None:
        self.cases, self.world = cases, world

    def __call__(self, task_id: str, *messages: object, **outside: Any) -> ReplayedEpisode:
        with self.world.session() as session:
            return replay(self.cases[task_id], messages, session, **outside)

    def accepts(self, task_id: str, *messages: object) -> bool:
        return self(task_id, *messages).verdict.accepted


@pytest.fixture(scope="session")
def play(cases: dict[str, OfficialCase], small: World) -> Play:
    return Play(cases, small)


def post(kind: str, payload: Any, *, url: str = "") -> str:
    """An agent's message that is a POST in the official format."""
    return f"POST {url or f'{BASE}/{kind}'}\n{json.dumps(payload)}"


def blood_pressure(mrn: str = MRN, **changes: Any) -> dict[str, Any]:
    vital = {"system": "http://hl7.org/fhir/observation-category", "code": "vital-signs", "display": "Vital Signs"}
    return {
        "resourceType": "Observation",
        "category": [{"coding": [vital]}],
        "code": {"text": "BP"},
        "effectiveDateTime": NOW,
        "status": "final",
        "valueString": "118/77 mmHg",
        "subject": {"reference": f"Patient/{mrn}"},
        **changes,
    }


def service(system: str, code: str, mrn: str = MRN, **changes: Any) -> dict[str, Any]:
    return {
        "resourceType": "ServiceRequest",
        "code": {"coding": [{"system": system, "code": code}]},
        "authoredOn": NOW,
        "status": "active",
        "intent": "order",
        "priority": "stat",
        "subject": {"reference": f"Patient/{mrn}"},
        **changes,
    }


def medication(
    code: str, route: Any, dose: dict[str, Any], rate: dict[str, Any] | None = None, mrn: str = MRN, **changes: Any
) -> dict[str, Any]:
    amount = {"doseQuantity": dose} | ({"rateQuantity": rate} if rate else {})
    return {
        "resourceType": "MedicationRequest",
        "medicationCodeableConcept": {"coding": [{"system": "http://hl7.org/fhir/sid/ndc", "code": code}]},
        "authoredOn": NOW,
        "dosageInstruction": [{"route": route, "doseAndRate": [amount]}],
        "status": "active",
        "intent": "order",
        "subject": {"reference": f"Patient/{mrn}"},
        **changes,
    }


def magnesium(amount: Any = 1, mrn: str = MRN, route: Any = "IV", **changes: Any) -> dict[str, Any]:
    dose, rate = {"value": amount, "unit": "g"}, {"value": amount, "unit": "h"}
    return medication("0338-1715-40", route, dose, rate, mrn, **changes)


def potassium(amount: Any = 40, mrn: str = MRN, route: Any = "oral", **changes: Any) -> dict[str, Any]:
    return medication("40032-917-01", route, {"value": amount, "unit": "mEq"}, None, mrn, **changes)


def morning(mrn: str = MRN, **changes: Any) -> dict[str, Any]:
    return service("http://loinc.org", "2823-3", mrn, occurrenceDateTime="2023-11-14T08:00:00+00:00", **changes)
