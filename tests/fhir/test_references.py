"""Which elements of a resource are references, and how a reference is split."""

from __future__ import annotations

import pytest

from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.fhir.interactions.batch import replace_placeholders
from fhir_gym.fhir.interactions.references import ReferenceParts, find_references, indexed_paths, split_reference
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.types import Resource


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Patient/1", ReferenceParts("", "Patient", "1")),
        ("/Patient/1", ReferenceParts("", "Patient", "1")),
        ("Patient/1/_history/3", ReferenceParts("", "Patient", "1")),
        ("Patient/", ReferenceParts("", "Patient", "")),
        ("Patient/1/", ReferenceParts("Patient", "1", "")),
        ("Patient", ReferenceParts("", "", "Patient")),
        ("Patient:1", ReferenceParts("", "", "Patient:1")),
        ("http://x/fhir/Patient/1", ReferenceParts("http://x/fhir", "Patient", "1")),
        ("http://x/Patient", ReferenceParts("http://x", "Patient", "")),
        ("x/Patient/1", ReferenceParts("", "Patient", "1")),
    ],
)
def test_split(text: str, parts: ReferenceParts) -> None:
    assert split_reference(text) == parts


def test_indexed_paths_are_element_paths() -> None:
    assert indexed_paths("Appointment") >= {"Appointment.participant.actor", "Appointment.slot"}
    assert "MedicationRequest.medication" in indexed_paths("MedicationRequest")
    assert "Observation.subject" in indexed_paths("Observation")
    assert "Patient.contact.organization" not in indexed_paths("Patient")


def test_every_type_can_be_walked() -> None:
    for resource_type in RESOURCE_TYPES:
        assert find_references({"resourceType": resource_type, "id": "x"}) == [], resource_type


def test_find_references() -> None:
    resource: Resource = {
        "resourceType": "Patient",
        "identifier": [{"value": "1", "assigner": {"reference": "Organization/1"}}],
        "managingOrganization": {"reference": "Organization/2"},
        "contact": [{"organization": {"reference": "Organization/3"}}],
        "link": [{"other": {"display": "nobody"}, "type": "seealso"}],
        "extension": [{"url": "http://x", "valueReference": {"reference": "Nope/1"}}],
        "contained": [{"resourceType": "Observation", "subject": {"reference": "Nope/2"}}],
    }
    found = {item.path: (item.value["reference"], item.indexed) for item in find_references(resource)}
    assert found == {
        "Patient.identifier.assigner": ("Organization/1", False),
        "Patient.managingOrganization": ("Organization/2", True),
        "Patient.contact.organization": ("Organization/3", False),
    }


def test_a_choice_element_is_found_by_its_stem() -> None:
    resource = {"resourceType": "MedicationRequest", "medicationReference": {"reference": "Medication/1"}}
    (reference,) = find_references(resource)
    assert (reference.path, reference.choice, reference.indexed) == ("MedicationRequest.medication", True, True)


def test_placeholders_are_replaced_in_references_and_uris_only() -> None:
    name = "urn:uuid:0a0b0c0d-1111-4222-8333-000000000001"
    resource: Resource = {
        "resourceType": "Patient",
        "text": {"status": "generated", "div": f'<div xmlns="http://www.w3.org/1999/xhtml">{name}</div>'},
        "extension": [{"url": "http://x", "valueUri": name}, {"url": "http://x", "valueString": name}],
        "managingOrganization": {"reference": name, "display": name},
        "contained": [{"resourceType": "Observation", "subject": {"reference": name}}],
    }
    replace_placeholders(resource, {name: "Organization/7"})
    assert resource["managingOrganization"] == {"reference": "Organization/7", "display": name}
    assert [e.get("valueUri", e.get("valueString")) for e in resource["extension"]] == ["Organization/7", name]
    assert resource["contained"][0]["subject"] == {"reference": "Organization/7"}
    assert name in resource["text"]["div"]


def test_an_unknown_placeholder_is_named() -> None:
    resource: Resource = {"resourceType": "Observation", "subject": {"reference": "urn:uuid:x"}}
    with pytest.raises(FhirError) as caught:
        replace_placeholders(resource, {})
    assert caught.value.diagnostics == (
        "HAPI-0541: Unable to satisfy placeholder ID urn:uuid:x found in element named 'subject' "
        "within resource of type: Observation"
    )
