"""Almost valid requests raise no exception, do not corrupt the session, and can be undone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks._hostile import json_paths, replaced
from fhir_gym.fhir import Request, World
from fhir_gym.types import Json
from tests.fhir.writing import entry
from tests.property.scene import FHIR, JSON_PATCH, observation_content, probe

PATIENT: dict[str, Any] = {
    "resourceType": "Patient",
    "id": "S1",
    "meta": {"profile": ["http://example.org/p"], "tag": [{"system": "urn:x", "code": "red"}]},
    "text": {"status": "generated", "div": '<div xmlns="http://www.w3.org/1999/xhtml">Ana</div>'},
    "contained": [{"resourceType": "Organization", "id": "o", "name": "Inner"}],
    "extension": [{"url": "urn:e", "valueDecimal": 1.50}],
    "identifier": [{"system": "urn:mrn", "value": "1", "type": {"coding": [{"system": "urn:t", "code": "MR"}]}}],
    "active": True,
    "name": [{"family": "Ash", "given": ["Ana", "B."], "period": {"start": "2001-01-01"}}],
    "telecom": [{"system": "phone", "value": "555-0100"}],
    "birthDate": "1980-02-03",
    "_birthDate": {"extension": [{"url": "urn:t", "valueDateTime": "1980-02-03T04:05:06Z"}]},
    "managingOrganization": {"reference": "#o"},
}
OBSERVATION = {"resourceType": "Observation", "id": "o1"} | observation_content("Patient/S1", "GLU", 3)
META = {"resourceType": "Parameters", "parameter": [{"name": "meta", "valueMeta": PATIENT["meta"]}]}
PATCH = [
    {"op": "test", "path": "/name/0/family", "value": "Alpha"},
    {"op": "add", "path": "/name/0/given", "value": ["Ana"]},
    {"op": "copy", "from": "/name/0", "path": "/name/-"},
    {"op": "move", "from": "/name/1", "path": "/name/0"},
    {"op": "remove", "path": "/gender"},
]
FHIRPATH_PATCH = {
    "resourceType": "Parameters",
    "parameter": [
        {
            "name": "operation",
            "part": [
                {"name": "type", "valueCode": "add"},
                {"name": "path", "valueString": "Patient"},
                {"name": "name", "valueString": "name"},
                {"name": "value", "valueHumanName": {"family": "New"}},
            ],
        }
    ],
}
BUNDLE = {
    "resourceType": "Bundle",
    "type": "transaction",
    "entry": [
        entry("POST", "Patient", {**PATIENT, "id": "x"}, full_url="urn:uuid:0a0b0c0d-1111-4222-8333-000000000001"),
        entry("PUT", "Observation/o1", OBSERVATION, ifMatch='W/"1"'),
        entry("PATCH", "Patient/S1", FHIRPATH_PATCH),
        entry("DELETE", "Observation/o2"),
        entry("GET", "Patient?family=Al&_sort=birthdate"),
    ],
}
TEMPLATES: list[tuple[str, str, str, Json]] = [
    ("POST", "/Patient", FHIR, PATIENT),
    ("PUT", "/Patient/S1", FHIR, PATIENT),
    ("PUT", "/Patient/new-1", FHIR, {**PATIENT, "id": "new-1"}),
    ("PUT", "/Observation/o1", FHIR, OBSERVATION),
    ("PATCH", "/Patient/S1", JSON_PATCH, PATCH),
    ("PATCH", "/Patient/S1", FHIR, FHIRPATH_PATCH),
    ("POST", "/Patient/S1/$meta-add", FHIR, META),
    ("POST", "/Patient/S1/$meta-delete", FHIR, META),
    ("POST", "/Patient/$validate", FHIR, PATIENT),
    ("POST", "/", FHIR, BUNDLE),
    ("POST", "/", FHIR, {**BUNDLE, "type": "batch"}),
]
LEAVES: st.SearchStrategy[Json] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        [
            "",
            " ",
            "\ud800",
            "\x00",
            "1" * 400,
            "2023-02-30",
            "Patient/S1",
            "Patient/nobody",
            "#o",
            "urn:uuid:x",
            "<div>",
        ]
    ),
    st.sampled_from([10**400, -0.0, 1e308, [], {}, [None], [[]], [{}], {"": {}}, {"reference": "Patient/S1"}]),
)
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, str, str, bytes]:
    """Draw a request template; replace up to three of its parts, and sometimes change bytes of the body."""
    method, path, content_type, body = draw(st.sampled_from(TEMPLATES))
    for _ in range(draw(st.integers(0, 3))):
        where = draw(st.sampled_from(json_paths(body)))
        junk = draw(JUNK | st.sampled_from([inner for _, _, _, inner in TEMPLATES]))
        body = replaced(body, where, junk)
    text = json.dumps(body).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        cut = draw(st.integers(0, len(text)))
        text = text[:cut] + draw(st.binary(max_size=3)) + text[cut + draw(st.integers(0, 3)) :]
    return method, path, content_type, text


def check(world: World, requests: list[tuple[str, str, str, bytes]]) -> None:
    with world.session() as session:
        bare = session.checkpoint()
        fresh = probe(session)
        session.rollback(bare)
        for method, path, content_type, body in requests:
            answer = session.handle(Request(method, path, "", {"content-type": content_type}, body))
            assert 200 <= answer.status < 500, answer.text
            assert "resourceType" in answer.json()
            for told in probe(session):
                assert told.status in (200, 404, 410), told.text
                assert json.loads(told.body)
            for change in session.changes():
                assert change.after is None or change.after["id"] == change.id
        session.rollback(bare)
        assert probe(session) == fresh


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(requests=st.lists(mutated(), min_size=1, max_size=3))
def test_almost_valid_writes(small_world: World, requests: list[tuple[str, str, str, bytes]]) -> None:
    check(small_world, requests)


@pytest.mark.exhaustive
@settings(max_examples=3_000, derandomize=False, suppress_health_check=list(HealthCheck))
@given(requests=st.lists(mutated(), min_size=1, max_size=3))
def test_many_almost_valid_writes(small_world: World, requests: list[tuple[str, str, str, bytes]]) -> None:
    check(small_world, requests)
