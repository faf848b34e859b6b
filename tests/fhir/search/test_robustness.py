"""No query causes a server error."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fhir_gym.fhir import Request, Session, World
from fhir_gym.fhir.definitions import search_parameters
from fhir_gym.fhir.limits import Limits

from .conftest import RESOURCES

TYPES = ["Patient", "Observation", "Slot", "Appointment", "Location"]
NAMES = sorted({name for t in TYPES for name in search_parameters(t)})
RESULT = [
    "_sort",
    "_count",
    "_offset",
    "_include",
    "_revinclude",
    "_elements",
    "_summary",
    "_total",
    "_filter",
    "_list",
]
MODIFIERS = ["", ":not", ":missing", ":exact", ":contains", ":text", ":Patient", ":above", ":iterate", ":x", ":"]
LINKS = ["", ".family", ".name:exact", ":Patient.birthdate", ".patient.code", ".", ".x", "._id", ".organization.name"]
VALUES = [
    "", "GLU", "a|b", "|", "||", "|x", "x|", "ge2023", "2023-02-30", "gt5||mg", "ap5", "5e400", "-", "P1", "Patient/P1",
    "Patient/", "/", "true", "Smith", "_%", "\\", "a$b", "$", "a,b,,c", "-date", "_id,-_lastUpdated", "patient.family",
    "Observation:patient", "*", "Observation:*", "a:b:c", "family eq x", "(family co x or gender eq male)", "not(a",
    '"',     "999999999999999999999", "0000", "9999-12-31T23:59:60.999999-14:00", "1e9999", "\x00", "٣", "İ",
]  # fmt: skip

names = st.one_of(
    st.builds(lambda a, b, c: a + b + c, st.sampled_from(NAMES), st.sampled_from(MODIFIERS), st.sampled_from(LINKS)),
    st.sampled_from(RESULT),
    st.builds(
        lambda t, a, b: f"_has:{t}:{a}:{b}",
        st.sampled_from(TYPES),
        st.sampled_from(["patient", "subject", "actor"]),
        st.sampled_from([*NAMES, "_has:Slot:schedule:status"]),
    ),
    st.text(max_size=12),
)
values = st.one_of(st.sampled_from(VALUES), st.text(max_size=20))
queries = st.lists(st.tuples(names, values), max_size=5)


@pytest.fixture(scope="module")
def session(clinic: World) -> Iterator[Session]:
    with clinic.session() as opened:
        opened.load(RESOURCES[:6])
        yield opened


@given(st.sampled_from(TYPES), queries)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_query_is_answered(session: Session, resource_type: str, pairs: list[tuple[str, str]]) -> None:
    query = "&".join(f"{quote(n, errors='replace')}={quote(v, errors='replace')}" for n, v in pairs)
    response = session.handle(Request("GET", f"/{resource_type}", query))
    assert response.status == 200 or 400 <= response.status < 500
    bundle = response.json()
    if response.status == 200:
        assert bundle["type"] == "searchset"
        ids = [(e["resource"]["resourceType"], e["resource"]["id"]) for e in bundle.get("entry", [])]
        assert len(ids) == len(set(ids))
        for link in bundle.get("link", []):
            assert session.handle(Request("GET", *_split(link["url"], session))).status in (200, 400)


def _split(url: str, session: Session) -> tuple[str, str]:
    path, _, query = url.removeprefix(session.base_url).partition("?")
    return path, query


@given(st.text(max_size=60))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_behind_the_question_mark_is_answered(session: Session, text: str) -> None:
    query = text.encode("utf-8", "replace").decode()
    assert session.handle(Request("GET", "/Patient", query)).status < 500


def test_a_costly_search_is_refused_the_same_everywhere(clinic: World) -> None:
    with Session(clinic, limits=Limits(sql_steps=1)) as session:
        session.load([{"resourceType": "Patient", "id": f"Q{n}", "name": [{"family": f"F{n}"}]} for n in range(3000)])
        response = session.handle(Request("GET", "/Patient", "family:contains=x"))
    assert response.status == 400
    assert "too costly" in response.text


def test_large_value_sets_are_bounded(clinic: World) -> None:
    url = "http://hl7.org/fhir/ValueSet/c80-doc-typecodes"
    with clinic.session() as session:
        response = session.handle(Request("GET", "/Observation", f"code:in={url}"))
        many = session.handle(Request("GET", "/Observation", "&".join([f"code:in={url}"] * 6)))
    assert (response.status, many.status) == (200, 400)
    assert "too costly" in many.text
