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
    found = incoming_references(session, "Patient", "p1", ["Coverage", "Observation", "Slot"])
    assert [(one.resource_type, one.parameter, one.count) for one in found] == [
        ("Coverage", "beneficiary", 1),
        ("Coverage", "payor", 1),
        ("Observation", "patient", 2),
        ("Observation", "performer", 1),
    ]
    for one in found:
        assert session.get(f"/{one.query}")["total"] == one.count
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
    found = outgoing_references(resource)
    assert [(one.path, one.reference, one.display) for one in found] == [
        ("slot", "Slot/s1", ""),
        ("participant.actor", "Patient/p1", "Ann"),
        ("participant.actor", "https://elsewhere.example/x", ""),
    ]
    assert [one.target and one.target.text for one in found] == ["Slot/s1", "Patient/p1", None]
