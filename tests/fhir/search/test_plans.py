"""Queries read only the rows they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from fhir_gym.fhir import Session, World

Explain = Callable[[str], list[str]]


@pytest.fixture
def explain(clinic: World) -> Explain:
    """A function that returns SQLite's query plan for the statements of a search."""

    def run(url: str) -> list[str]:
        with clinic.session() as session:
            return [step for text in _statements(session, url) for step in _plan(session, text)]

    return run


def _statements(session: Session, url: str) -> list[str]:
    seen: list[str] = []
    session.store.db.set_trace_callback(seen.append)
    session.get(url)
    session.store.db.set_trace_callback(None)
    return [text for text in seen if "SELECT" in text and "CAST(" not in text]


def _plan(session: Session, text: str) -> list[str]:
    return [str(row[3]) for row in session.store.db.execute(f"EXPLAIN QUERY PLAN {text}")]


def _bad(steps: list[str]) -> list[str]:
    return [s for s in steps if s.startswith("SCAN") or "TEMP B-TREE" in s or "AUTOMATIC" in s]


@pytest.mark.parametrize(
    "url",
    [
        "/Observation?patient=P1&code=GLU",
        "/Observation?subject=Patient/P1&code=http://loinc.org|L-GLU",
        "/Observation?patient=P1&code=GLU&date=ge2023-11-13",
        "/Observation?patient=P1&code=GLU&status=final",
        "/Observation?patient=P1",
        "/Patient?_id=P1",
        "/Patient?identifier=P1",
        "/Patient?_count=5",
    ],
)
def test_no_scan_and_no_sort(explain: Explain, url: str) -> None:
    steps = explain(url)
    assert steps
    assert _bad(steps) == []


def test_patient_and_code_is_one_range(explain: Explain) -> None:
    assert explain("/Observation?patient=P1&code=GLU") == ["SEARCH t USING PRIMARY KEY (pid=? AND value=? AND owner=?)"]


def test_sorting_a_patients_rows_of_one_code_only_sorts(explain: Explain) -> None:
    steps = explain("/Observation?patient=P1&code=GLU&date=ge2023&_sort=-date")
    assert steps[0] == "SEARCH t USING PRIMARY KEY (pid=? AND value=? AND owner=?)"
    assert [s for s in _bad(steps) if "ORDER BY" not in s] == []


def test_a_patients_latest_are_read_in_order(explain: Explain) -> None:
    steps = explain("/Observation?patient=P1&_sort=-date&_count=1")
    assert "SEARCH t USING PRIMARY KEY (pid=? AND owner=?)" in steps[0]


@pytest.mark.parametrize(
    "url",
    [
        "/Observation?patient.family=Smith",
        "/Patient?_has:Observation:patient:code=GLU",
        "/Slot?schedule.actor:Practitioner.family=Stone&status=free&_sort=start",
        "/Patient?family=smi&gender=male",
        "/Observation?code:not=GLU",
        "/Observation?value-quantity=gt5&code=K",
    ],
)
def test_no_table_is_scanned(explain: Explain, url: str) -> None:
    tables = [s for s in explain(url) if s.startswith("SCAN") and s not in ("SCAN CONSTANT ROW", "SCAN d")]
    assert tables == []  # "d" is the table of matches


def test_the_overlay_is_left_out_until_it_holds_the_type(clinic: World) -> None:
    patient: dict[str, Any] = {"resourceType": "Patient", "id": "Z", "gender": "male"}
    with clinic.session() as session:
        session.load([patient])
        assert not any("overlay.token" in t for t in _statements(session, "/Observation?code=GLU"))
        assert any("overlay.token" in t for t in _statements(session, "/Patient?gender=male"))
        assert any("overlay" in t for t in _statements(session, "/Observation?patient.gender=male"))


_MANY = [
    ("code", [*(f"http://loinc.org|x{n}" for n in range(40)), "http://loinc.org|L-K", "|GLU"], ""),
    ("code", [*(f"urn:x{n}|" for n in range(40)), "http://loinc.org|"], ""),
    ("code", [*(f"x{n}" for n in range(20)), *(f"|x{n}" for n in range(20)), "http://loinc.org|L-GLU", "a|b|c"], ""),
    ("code", ["L-GLU", "http://loinc.org|L-GLU", "GLU"], ""),
    ("code", [*(f"x{n}" for n in range(20)), "http://loinc.org|L-K"], ":not"),
    (
        "code-value-quantity",
        [*(f"x{n}$5" for n in range(20)), "GLU$100", "http://loinc.org|L-K$gt5", "GLU$90", "x$"],
        "",
    ),
    ("subject", [*(f"urn:uuid:{n}" for n in range(20)), *(f"Group/{n}" for n in range(20)), "Patient/P1", "P3"], ""),
]


@pytest.mark.parametrize(("name", "values", "modifier"), _MANY, ids=range(len(_MANY)))
def test_many_alternatives_find_the_union(clinic: World, name: str, values: list[str], modifier: str) -> None:
    def found(value: str) -> set[str]:
        bundle = session.get(f"/Observation?{name}{modifier}={quote(value)}&_count=100")
        ids = [entry["resource"]["id"] for entry in bundle.get("entry", [])]
        assert len(ids) == len({*ids})
        return {*ids}

    with clinic.session() as session:
        each = [found(value) for value in values]
        expected = set.intersection(*each) if modifier == ":not" else set.union(*each)
        assert expected
        assert found(",".join(values)) == expected


@pytest.mark.parametrize(("name", "values", "modifier"), _MANY[:3], ids=range(3))
def test_many_codes_are_found_by_key(explain: Explain, name: str, values: list[str], modifier: str) -> None:
    steps = explain(f"/Observation?{name}{modifier}={quote(','.join(values))}")
    assert [step for step in steps if step.startswith("SCAN")] == []
    assert any(step.startswith("SEARCH t USING") and "pid=?" in step for step in steps)
    assert not any("MULTI-INDEX OR" in step for step in steps)
