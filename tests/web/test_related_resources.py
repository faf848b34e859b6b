"""The references of a resource in both directions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fhir_gym import worlds
from fhir_gym.fhir import Session
from fhir_gym.web.world_page import incoming_references, outgoing_references

PATIENT = {"reference": "Patient/p1", "display": "Ann"}


@pytest.fixture
def session() -> Iterator[Session]:
    with worlds.load("empty") as world, world.session() as opened:
        opened.load(
            [
                {"resourceType": "Patient", "id": "p1"},
                {"resourceType": "Observation", "id": "o1", "subject": PATIENT},
                {"resourceType": "Observation", "id": "o2", "subject": PATIENT, "performer": [PATIENT]},
                {"resourceType": "Observation", "id": "o3", "subject": {"reference": "Patient/p2"}},
                {"resourceType": "Coverage", "id": "c1", "beneficiary": PATIENT, "payor": [PATIENT]},
            ]
        )
        yield opened


def test_referring_resources_are_counted_by_place(session: Session) -> None:
    incoming_referenceses = incoming_references(session, "Patient", "p1", ["Coverage", "Observation", "Slot"])
    assert [
        (references.resource_type, references.parameter, references.count) for references in incoming_referenceses
    ] == [
        ("Coverage", "beneficiary", 1),
        ("Coverage", "payor", 1),
        ("Observation", "patient", 2),
        ("Observation", "performer", 1),
    ]
    for references in incoming_referenceses:
        assert session.get(f"/{references.query}")["total"] == references.count
    assert incoming_references(session, "Patient", "nobody", ["Observation"]) == []


def test_references_have_their_place_and_target() -> None:
    resource = {
        "resourceType": "Appointment",
        "slot": [{"reference": "Slot/s1"}],
        "participant": [
            {"actor": PATIENT},
            {"actor": {"reference": "https://elsewhere.example/x"}},
            {"actor": PATIENT},
        ],
    }
    references = outgoing_references(resource)
    assert [(reference.path, reference.reference, reference.display) for reference in references] == [
        ("slot", "Slot/s1", ""),
        ("participant.actor", "Patient/p1", "Ann"),
        ("participant.actor", "https://elsewhere.example/x", ""),
    ]
    assert [reference.target and reference.target.text for reference in references] == ["Slot/s1", "Patient/p1", None]
