"""The first search writes the index rows of loaded resources; they equal rows that are written immediately."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.fhir import Request, Session, World, WorldBuilder
from fhir_gym.fhir.index import TABLES, index_rows
from fhir_gym.fhir.store import stored
from fhir_gym.types import Resource

NOW = datetime(2023, 11, 13, 10, 15, tzinfo=UTC)

PATIENTS: list[Resource] = [
    {
        "resourceType": "Patient",
        "id": f"P{n}",
        "active": True,
        "name": [{"family": family, "given": ["Ann"]}],
        "birthDate": f"199{n}-05-01",
        "maritalStatus": {"coding": [{"code": "M"}], "text": "married"},
    }
    for n, family in enumerate(("Chen", "Diaz", "Chen"))
]
CODE = {"coding": [{"system": "http://loinc.org", "code": "4548-4", "display": "HbA1c"}]}
OBSERVATIONS: list[Resource] = [
    {
        "resourceType": "Observation",
        "id": f"O{n}",
        "status": "final",
        "code": CODE,
        "subject": {"reference": f"Patient/P{n % 3}"},
        "effectiveDateTime": f"2023-11-0{n + 1}T08:00:00+00:00",
        "valueQuantity": {"value": 5 + n, "unit": "%"},
    }
    for n in range(5)
]
SCENE = [*PATIENTS, *OBSERVATIONS]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with WorldBuilder(tmp_path / "w.sqlite", name="test", seed=None, now=NOW) as builder:
        builder.add({"resourceType": "Patient", "id": "W", "name": [{"family": "World"}]})
    with World.open(tmp_path / "w.sqlite") as world, world.session() as opened:
        yield opened


def _rows(session: Session) -> dict[str, set[tuple[Any, ...]]]:
    return {table: set(session.store.db.execute(f"SELECT * FROM overlay.{table}")) for table in TABLES}


def _counts(session: Session) -> dict[str, int]:
    return {table: len(rows) for table, rows in _rows(session).items() if rows}


def _all_rows(session: Session) -> dict[str, set[tuple[Any, ...]]]:
    """Return the index rows that the overlay must have."""
    wanted: dict[str, set[tuple[Any, ...]]] = {table: set() for table in TABLES}
    for rid, body in session.store.db.execute("SELECT rid, body FROM overlay.resource WHERE deleted = 0"):
        for table, rows in index_rows(stored(body), rid).items():
            wanted[table].update(rows)
    return wanted


def _ids(session: Session, resource_type: str, **params: Any) -> list[str]:
    return [resource["id"] for resource in session.search(resource_type, **params)]


def _send(session: Session, method: str, path: str, body: bytes = b"") -> int:
    headers = {"content-type": "application/fhir+json"} if body else {}
    return session.handle(Request(method, path, "", headers, body)).status


def test_a_search_writes_only_the_rows_of_its_parameters(session: Session) -> None:
    session.load(SCENE)
    assert session.read("Patient", "P1") is not None
    assert _counts(session) == {}
    assert _ids(session, "Patient", family="chen") == ["P0", "P2"]
    assert _counts(session) == {"string": 3}, "family names"
    assert _ids(session, "Patient", family="chen", birthdate="1990-05-01") == ["P0"]
    assert _counts(session) == {"string": 3, "date": 3}
    assert _ids(session, "Observation", patient="P0", code="4548-4") == ["O0", "O3"]
    found = _rows(session)
    assert len(found["token"]) == 5 and not found["quantity"]
    assert all(at is not None for *_, at in found["token"]), "tokens carry the date, though its rows are not written"
    assert len(found["date"]) == 3


def test_all_rows_finally_match_the_resources(session: Session) -> None:
    session.load(SCENE)
    _ids(session, "Patient", family="chen")
    _ids(session, "Observation", patient="P0", _sort="-date")
    assert _send(session, "DELETE", "/Observation/O1") == 200
    changed = b'{"resourceType":"Patient","id":"P1","name":[{"family":"Diaz-Neu"}]}'
    assert _send(session, "PUT", "/Patient/P1", changed) == 200
    session.load([{**OBSERVATIONS[0], "status": "amended"}, {**OBSERVATIONS[0], "id": "O9"}])
    session.store.index_all()
    assert _rows(session) == _all_rows(session)


def test_interactions_that_follow_references_see_them(session: Session) -> None:
    for query, expected in (
        ("/Patient?_has:Observation:patient:code=4548-4&_summary=count", 3),
        ("/Observation?patient.family=chen&_summary=count", 3),
        ("/Observation?patient.birthdate=1991-05-01&_summary=count", 2),
    ):
        session.load(SCENE)
        assert session.get(query)["total"] == expected, query
        session.rollback()
    session.load(SCENE)
    bundle = session.get("/Patient?_id=P0&_revinclude=Observation:subject")
    assert [entry["resource"]["id"] for entry in bundle["entry"]] == ["P0", "O0", "O3"]
    session.rollback()
    session.load(SCENE)
    bundle = session.get("/Observation?_id=O1&_include=Observation:patient")
    assert [entry["resource"]["id"] for entry in bundle["entry"]] == ["O1", "P1"]
    session.rollback()
    session.load(SCENE)
    assert session.get("/Patient/P0/$everything")["total"] == 3
    session.rollback()
    session.load(SCENE)
    assert _send(session, "DELETE", "/Patient/P0") == 409


def test_rows_written_by_a_search_are_rolled_back_and_written_again(session: Session) -> None:
    session.load(SCENE)
    start = session.checkpoint()
    for _ in range(3):
        assert _counts(session) == {}
        assert _ids(session, "Patient", family="chen") == ["P0", "P2"]
        assert _send(session, "PUT", "/Patient/P0", b'{"resourceType":"Patient","id":"P0"}') == 200
        assert _ids(session, "Patient", family="chen") == ["P2"]
        assert _ids(session, "Patient", birthdate="1992-05-01") == ["P2"]
        session.rollback(start)
    session.rollback()
    assert _ids(session, "Patient", family="chen") == []


def test_a_failed_transaction_adds_no_index_rows(session: Session) -> None:
    session.load(SCENE)
    bundle = (
        b'{"resourceType":"Bundle","type":"transaction","entry":['
        b'{"request":{"method":"PUT","url":"Patient?family=diaz"},"resource":{"resourceType":"Patient"}},'
        b'{"request":{"method":"DELETE","url":"Patient/P0"}}]}'
    )
    assert _send(session, "POST", "/", bundle) == 409
    assert _counts(session) == {}
    assert _ids(session, "Patient", family="diaz") == ["P1"]


def test_rows_written_before_an_interruption_are_written_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.load(SCENE)
    insert, calls = session.store._insert, 0

    def stop(table: str, rows: Any) -> None:
        nonlocal calls
        calls += 1
        insert(table, rows)
        if calls == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(session.store, "_insert", stop)
    with pytest.raises(KeyboardInterrupt):
        session.search("Patient", family="chen", birthdate="1990")
    assert _ids(session, "Patient", family="chen", birthdate="1990") == ["P0"]


def test_many_are_not_kept_in_memory(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.fhir.store.store._MANY", 500)
    for first in (0, 300):
        session.load({"resourceType": "Patient", "id": f"M{n}", "gender": "male"} for n in range(first, first + 300))
        assert bool(session.store._unindexed.missing) == (first == 0)
    assert session.get("/Patient?gender=male&_summary=count")["total"] == 600
