"""The modifier `:of-type`, which a server may enable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fhir_gym.fhir import Request, Session, World

TYPES = "http://terminology.hl7.org/CodeSystem/v2-0203"
MRN = {"type": {"coding": [{"system": TYPES, "code": "MR"}, {"system": TYPES, "code": "PI"}]}, "value": "7"}
LICENCE = {"type": {"coding": [{"system": TYPES, "code": "DL"}]}, "system": "http://example.org", "value": "8"}
RECORDS: list[dict[str, Any]] = [
    {"resourceType": "Patient", "id": "both", "identifier": [MRN, LICENCE]},
    {"resourceType": "Patient", "id": "untyped", "identifier": [{"value": "7"}, {**LICENCE, "value": "7"}]},
    {"resourceType": "Patient", "id": "text", "identifier": [{"type": {"text": "MR"}, "value": "7"}]},
    {"resourceType": "Observation", "id": "o", "status": "final", "subject": {"reference": "Patient/both"}},
    {"resourceType": "ServiceRequest", "id": "r", "status": "active", "intent": "order", "requisition": MRN},
]


def ids(session: Session, query: str) -> list[str]:
    path, _, query = query.partition("?")
    found = session.handle(Request("GET", f"/{path}", query)).json()
    return [entry["resource"]["id"] for entry in found.get("entry", [])]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (f"Patient?identifier:of-type={TYPES}|MR|7", ["both"]),
        (f"Patient?identifier:of-type={TYPES}|PI|7", ["both"]),
        (f"Patient?identifier:of-type={TYPES}|DL|7", ["untyped"]),
        (f"Patient?identifier:of-type={TYPES}|DL|7,{TYPES}|MR|7&_sort=_id", ["both", "untyped"]),
        (f"Patient?identifier:of-type={TYPES}|MR|8", []),
        ("Patient?identifier:of-type=http://example.org|DL|8", []),
        (f"Patient?gender:of-type={TYPES}|MR|7", []),
        (f"Observation?subject:Patient.identifier:of-type={TYPES}|MR|7", ["o"]),
        (f"ServiceRequest?requisition:of-type={TYPES}|MR|7", ["r"]),
    ],
)
def test_type_and_value_are_of_the_same_identifier(empty_world: World, query: str, expected: list[str]) -> None:
    with empty_world.session(identifier_of_type=True) as session:
        session.load(RECORDS)
        assert ids(session, query) == expected


@pytest.mark.parametrize(
    ("value", "code"), [("7", 2013), ("|MR|7", 2013), ("a|b", 2014), ("a||7", 2014), ("a|b|c|d", 2014)]
)
def test_three_parts_are_needed(empty_world: World, value: str, code: int) -> None:
    with empty_world.session(identifier_of_type=True) as session:
        response = session.handle(Request("GET", "/Patient", f"identifier:of-type={value}"))
    assert response.status == 400
    assert json.loads(response.body)["issue"][0]["diagnostics"].startswith(f"HAPI-{code}: ")


def test_records_of_the_world_are_found(hospital: World) -> None:
    (patient,) = hospital.search("Patient", _count=1)[:1]
    value = patient["identifier"][0]["value"]
    with hospital.session(identifier_of_type=True) as session:
        assert ids(session, f"Patient?identifier:of-type={TYPES}|MR|{value}") == [patient["id"]]
