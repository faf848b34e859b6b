"""A small clinic with known search results."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from fhir_gym.fhir import Request, Session, World, WorldBuilder

NOW = datetime(2023, 11, 13, 10, 15, tzinfo=UTC)
LOINC = "http://loinc.org"
PROFILED = {"profile": ["http://p/StructureDefinition/a"]}


def patient(id: str, family: str, given: str, gender: str, born: str, **more: Any) -> dict[str, Any]:
    return {
        "resourceType": "Patient",
        "id": id,
        "identifier": [{"system": "http://mrn", "value": id}],
        "name": [{"family": family, "given": [given]}],
        "gender": gender,
        "birthDate": born,
        **more,
    }


def lab(id: str, patient: str, code: str, value: float, when: str, **more: Any) -> dict[str, Any]:
    return {
        "resourceType": "Observation",
        "id": id,
        "status": "final",
        "code": {"coding": [{"system": LOINC, "code": f"L-{code}"}, {"code": code, "display": f"{code} level"}]},
        "subject": {"reference": f"Patient/{patient}"},
        "effectiveDateTime": when,
        "valueQuantity": {"value": value, "unit": "mg/dL", "system": "http://unitsofmeasure.org", "code": "mg/dL"},
        **more,
    }


RESOURCES: list[dict[str, Any]] = [
    {"resourceType": "Organization", "id": "O1", "name": "Acme"},
    {"resourceType": "Practitioner", "id": "D1", "name": [{"family": "Stone", "given": ["Ada"]}], "gender": "female"},
    patient("P1", "Smith", "John", "male", "1970-05-01", managingOrganization={"reference": "Organization/O1"}),
    patient("P2", "Smithers", "Zoë", "female", "1985-03-20", meta={"tag": [{"system": "http://t", "code": "vip"}]}),
    patient("P3", "O'Brien", "Mia", "female", "2001", deceasedBoolean=True, meta=PROFILED),
    patient("P4", "García", "Ana", "other", "1990-12", telecom=[{"system": "phone", "value": "555"}]),
    lab("B1", "P1", "GLU", 100, "2023-11-12T08:00:00+00:00"),
    lab("B2", "P1", "GLU", 180.5, "2023-11-13T09:00:00+00:00"),
    lab("B3", "P1", "K", 4, "2023-11-13T09:30:00+00:00", status="amended"),
    lab("B4", "P2", "GLU", 90, "2023-10-01", performer=[{"reference": "Practitioner/D1"}]),
    lab("B5", "P3", "K", 5.5, "2022-01-01T00:00:00+02:00"),
    {
        "resourceType": "Observation",
        "id": "B6",
        "status": "final",
        "code": {"text": "Blood pressure"},
        "subject": {"reference": "Patient/P2"},
        "effectivePeriod": {"start": "2023-11-01", "end": "2023-11-30"},
        "component": [
            {"code": {"coding": [{"code": "SYS"}]}, "valueQuantity": {"value": 120, "code": "mmHg"}},
            {"code": {"coding": [{"code": "DIA"}]}, "valueQuantity": {"value": 70, "code": "mmHg"}},
        ],
    },
    {
        "resourceType": "Encounter",
        "id": "E1",
        "status": "finished",
        "class": {"code": "AMB"},
        "subject": {"reference": "Patient/P1"},
        "period": {"start": "2023-11-12T07:00:00+00:00"},
    },
    {"resourceType": "Location", "id": "L1", "position": {"latitude": 42.36, "longitude": -71.051}},
    {"resourceType": "Schedule", "id": "S1", "active": True, "actor": [{"reference": "Practitioner/D1"}]},
    {
        "resourceType": "Slot",
        "id": "T1",
        "schedule": {"reference": "Schedule/S1"},
        "status": "free",
        "start": "2023-11-20T09:00:00Z",
        "end": "2023-11-20T09:30:00Z",
    },
    {
        "resourceType": "Appointment",
        "id": "A1",
        "status": "booked",
        "slot": [{"reference": "Slot/T1"}],
        "participant": [
            {"actor": {"reference": "Patient/P1"}, "status": "accepted"},
            {"actor": {"reference": "Practitioner/D1"}, "status": "accepted"},
        ],
    },
]


class Client:
    """Sends requests to a session and returns the parts that tests need."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def bundle(self, url: str, **headers: str) -> dict[str, Any]:
        path, _, query = url.partition("?")
        response = self.session.handle(Request("GET", path, quote(query, safe="=&%,:$|*+"), headers))
        assert response.status == 200, response.text
        bundle: dict[str, Any] = response.json()
        return bundle

    def ids(self, url: str) -> list[str]:
        """Return the ids of the matches, in order."""
        entries = self.bundle(url).get("entry", [])
        return [e["resource"]["id"] for e in entries if e["search"]["mode"] == "match"]

    def beside(self, url: str) -> list[str]:
        """Return the ids of the included resources, in order."""
        entries = self.bundle(url).get("entry", [])
        return [e["resource"]["id"] for e in entries if e["search"]["mode"] == "include"]

    def error(self, url: str) -> tuple[int, str]:
        path, _, query = url.partition("?")
        response = self.session.handle(Request("GET", path, quote(query, safe="=&%,:$|*+")))
        return response.status, response.json()["issue"][0]["diagnostics"]


@pytest.fixture(scope="session")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path: Path = tmp_path_factory.mktemp("search") / "clinic.sqlite"
    with WorldBuilder(path, name="clinic", seed=0, now=NOW) as builder:
        for resource in RESOURCES:
            builder.add(resource)
    with World.open(path) as world:
        yield world


@pytest.fixture(scope="session")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path: Path = tmp_path_factory.mktemp("search") / "nothing.sqlite"
    with WorldBuilder(path, name="nothing", seed=0, now=NOW):
        pass
    with World.open(path) as world:
        yield world


@pytest.fixture(params=["world", "overlay", "both"], scope="session")
def client(request: pytest.FixtureRequest, clinic: World, nothing: World) -> Iterator[Client]:
    """A client of the clinic, for reads. The clinic's resources are in the base world, in the overlay or in both."""
    with (nothing if request.param == "overlay" else clinic).session() as session:
        if request.param != "world":
            session.load(RESOURCES)
        yield Client(session)
