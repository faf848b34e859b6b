"""`$everything` returns all records of one patient and no records of other patients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.fhir import Request, Session, World, WorldBuilder

RESOURCES: list[dict[str, Any]] = [
    {"resourceType": "Organization", "id": "org"},
    {"resourceType": "Practitioner", "id": "doc"},
    {"resourceType": "Patient", "id": "A", "managingOrganization": {"reference": "Organization/org"}},
    {"resourceType": "Patient", "id": "B"},
    {
        "resourceType": "Encounter",
        "id": "enc",
        "subject": {"reference": "Patient/A"},
        "participant": [{"individual": {"reference": "Practitioner/doc"}}],
    },
    *(
        {
            "resourceType": "Observation",
            "id": f"{patient}{n}",
            "subject": {"reference": f"Patient/{patient}"},
            "encounter": {"reference": "Encounter/enc"},
        }
        for patient in "AB"
        for n in range(3)
    ),
]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with WorldBuilder(tmp_path / "w.sqlite", name="w", seed=None, now=datetime(2023, 1, 1, tzinfo=UTC)) as builder:
        for resource in RESOURCES:
            builder.add(resource)
    with World.open(builder.path).session() as session:
        yield session


def ids(session: Session, url: str) -> list[str]:
    return [entry["resource"]["id"] for entry in session.get(url).get("entry", [])]


def test_patient(session: Session) -> None:
    assert ids(session, "/Patient/A/$everything") == ["A", "enc", "A0", "A1", "A2", "org", "doc"]
    assert ids(session, "/Patient/A/$everything?_type=Encounter") == ["A", "enc", "doc"]
    assert ids(session, "/Patient/B/$everything") == ["B", "B0", "B1", "B2", "doc", "enc"]


def test_encounter(session: Session) -> None:
    found = ids(session, "/Encounter/enc/$everything")
    assert found[0] == "enc"
    assert set(found) == {"enc", "A0", "A1", "A2", "B0", "B1", "B2", "A", "B", "doc", "org"}


def test_types(session: Session) -> None:
    assert ids(session, "/Patient/$everything?_type=Encounter") == ["A", "B", "enc", "doc"]
    assert ids(session, "/Patient/$everything?_id=B,nobody") == ["B", "B0", "B1", "B2", "doc", "enc"]
    assert ids(session, "/Encounter/$everything") == ids(session, "/Encounter/enc/$everything")
    counted = session.get("/Patient/$everything?_summary=count")
    assert (counted["total"], counted.get("entry"), counted.get("link")) == (11, None, None)


@pytest.mark.parametrize(
    ("body", "type_", "status"),
    [
        ({"parameter": [{"name": "_id", "valueId": "A"}, {"name": "_type", "valueString": "Encounter"}]}, "", 200),
        ({"parameter": [{"name": "_id", "valueId": "nobody"}]}, "", 404),
        ({"parameter": [3, {"name": 4}, {"name": "_id", "valueId": [1]}]}, "", 404),
        ({"resourceType": "Patient"}, "", 400),
        ("_id=A&_type=Encounter", "application/x-www-form-urlencoded", 200),
        ("", "", 400),
    ],
)
def test_posted_parameters(session: Session, body: Any, type_: str, status: int) -> None:
    text = body if isinstance(body, str) else json.dumps({"resourceType": "Parameters"} | body)
    headers = {"content-type": type_ or "application/fhir+json"}
    answer = session.handle(Request("POST", "/Patient/$everything", "", headers, text.encode()))
    assert answer.status == status
    if status == 200 and "Encounter" in text:
        assert [entry["resource"]["id"] for entry in answer.json()["entry"]] == ["A", "enc", "doc"]


def test_pages(session: Session) -> None:
    whole = ids(session, "/Patient/A/$everything?_count=50")
    seen: list[str] = []
    url: str | None = "/Patient/A/$everything?_count=3"
    while url:
        bundle = session.get(url)
        seen += [entry["resource"]["id"] for entry in bundle["entry"]]
        url = next((link["url"] for link in bundle["link"] if link["relation"] == "next"), None)
    assert seen == whole


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/Patient/nobody/$everything", "", 404),
        ("/Patient/A/$everything", "_type=Foo", 404),
        ("/Patient/A/$everything", "_content=x", 400),
        ("/Patient/$everything", "_id=nobody", 404),
        ("/Patient/$everything", "_id=" + ",".join(["A"] * 400), 400),
        ("/Organization/$everything", "", 400),
        ("/Organization/org/$everything", "", 400),
        ("/$everything", "", 400),
    ],
)
def test_refusals(session: Session, path: str, query: str, status: int) -> None:
    assert session.handle(Request("GET", path, query)).status == status
