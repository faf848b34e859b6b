"""`$validate` and strict mode, over requests: what was sent is judged, not what a lenient parser makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fhir_gym.fhir import Limits, Request, Response, Session, World
from fhir_gym.fhir.outcome import FhirError

PATIENT = {"resourceType": "Patient", "id": "p", "gender": "female"}
UNKNOWN = {**PATIENT, "foo": 1}


@pytest.fixture
def strict(empty_world: World) -> Iterator[Session]:
    with empty_world.session(validation="strict") as session:
        yield session


def send(session: Session, method: str, url: str, body: Any, content_type: str = "application/fhir+json") -> Response:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    path, _, query = url.partition("?")
    return session.handle(Request(method, path, query, {"content-type": content_type}, text))


def issues(response: Response) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = response.json()["issue"]
    return found


# $validate


def test_validate_reports_what_the_parser_would_drop(empty_world: World) -> None:
    with empty_world.session() as session:
        response = send(session, "POST", "/Patient/$validate", UNKNOWN)
    assert response.status == 200
    unknown, advice = issues(response)
    assert unknown == {
        "extension": [
            {"url": "http://hl7.org/fhir/StructureDefinition/operationoutcome-issue-line", "valueInteger": 1},
            {"url": "http://hl7.org/fhir/StructureDefinition/operationoutcome-issue-col", "valueInteger": 68},
        ],
        "severity": "error",
        "code": "processing",
        "diagnostics": "Unrecognized property 'foo'",
        "location": ["Patient", "Line[1] Col[68]"],
        "expression": ["Patient"],
    }
    assert advice["severity"] == "warning"


def test_lines_and_columns_are_those_of_the_text(empty_world: World) -> None:
    text = b'{\n  "resourceType": "Patient",\n  "name": [ { "given": [ "A, [\\"", 5 ] } ],\n  "gender": "male"\n}'
    with empty_world.session() as session:
        found = issues(send(session, "POST", "/Patient/$validate", text))
    assert [issue["location"] for issue in found] == [
        ["Patient.name[0].given", "Line[3] Col[37]"],
        ["Patient", "Line[5] Col[2]"],
    ]


def test_a_resource_in_parameters_is_validated_with_its_place(empty_world: World) -> None:
    body = {"resourceType": "Parameters", "parameter": [{"name": "resource", "resource": UNKNOWN}]}
    with empty_world.session() as session:
        found = issues(send(session, "POST", "/Patient/$validate", body))
    assert found[0]["expression"] == ["Parameters.parameter[0].resource"]
    assert found[1]["expression"] == ["Parameters.parameter[0].resource/*Patient/p*/"]


def test_a_valid_resource_with_a_narrative_has_no_issues(empty_world: World) -> None:
    text = {"status": "generated", "div": '<div xmlns="http://www.w3.org/1999/xhtml">x</div>'}
    with empty_world.session() as session:
        (issue,) = issues(send(session, "POST", "/Patient/$validate", {**PATIENT, "text": text}))
    assert (issue["severity"], issue["diagnostics"]) == ("information", "No issues detected during validation")


def test_a_body_that_costs_too_much_is_refused(empty_world: World) -> None:
    body = {**PATIENT, "telecom": [{"system": "?", "value": str(number)} for number in range(20_000)]}
    with empty_world.session(limits=Limits(sql_steps=1_000_000)) as session:
        response = send(session, "POST", "/Patient/$validate", {**body, "contact": [{"gender": "male"}]})
    assert response.status == 400


# strict mode


@pytest.mark.parametrize(
    "resource",
    [
        UNKNOWN,
        {**PATIENT, "name": {"family": "x"}},
        {**PATIENT, "name": []},
        {**PATIENT, "active": "true"},
        {**PATIENT, "gender": "bogus"},
        {**PATIENT, "contact": [{"gender": "male"}]},
        {**PATIENT, "meta": {"tag": {"code": "x"}}},
    ],
)
def test_invalid_resources_are_refused(strict: Session, resource: dict[str, Any]) -> None:
    for method, url in (("POST", "/Patient"), ("PUT", "/Patient/p"), ("PUT", "/Patient?gender=female")):
        response = send(strict, method, url, resource)
        assert response.status == 422, (method, url)
        assert any(issue["severity"] == "error" for issue in issues(response))
    assert strict.changes() == []


def test_valid_resources_are_stored_and_their_references_checked(strict: Session) -> None:
    assert send(strict, "PUT", "/Patient/p", PATIENT).status == 201
    reference = {**PATIENT, "managingOrganization": {"reference": "Organization/none"}}
    assert send(strict, "POST", "/Patient", reference).status == 400


def test_the_default_stores_what_hapi_stores(empty_world: World) -> None:
    with empty_world.session() as session:
        assert send(session, "PUT", "/Patient/p", UNKNOWN).status == 201


@pytest.mark.parametrize("kind", ["transaction", "batch"])
def test_a_bundle_with_an_invalid_entry_is_refused_as_a_whole(strict: Session, kind: str) -> None:
    entries = [
        {"resource": resource, "request": {"method": "POST", "url": "Patient"}}
        for resource in (PATIENT, {"resourceType": "Patient", "gender": ["male"]})
    ]
    body = {"resourceType": "Bundle", "type": kind, "entry": entries}
    response = send(strict, "POST", "", body)
    assert response.status == 422
    assert issues(response)[0]["expression"] == ["Bundle.entry[1].resource.gender"]
    assert send(strict, "POST", "", {**body, "entry": entries[:1]}).status == 200


def test_the_result_of_a_patch_is_validated(strict: Session) -> None:
    send(strict, "PUT", "/Patient/p", PATIENT)
    patch = [{"op": "add", "path": "/contact", "value": [{"gender": "male"}]}]
    response = send(strict, "PATCH", "/Patient/p", patch, "application/json-patch+json")
    assert (response.status, issues(response)[0]["expression"]) == (422, ["Patient.contact[0]"])


def test_xml_is_validated(strict: Session) -> None:
    xml = b'<Patient xmlns="http://hl7.org/fhir"><contact><gender value="male"/></contact></Patient>'
    assert send(strict, "POST", "/Patient", xml, "application/fhir+xml").status == 422


def test_start_states_are_validated(strict: Session) -> None:
    with pytest.raises(FhirError, match=r"Patient: Unrecognized property 'foo'"):
        strict.load([UNKNOWN])
