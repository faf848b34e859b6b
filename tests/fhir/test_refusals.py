"""A refused request writes nothing, and does not break the connection or raise a database error."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fhir_gym.errors import WorldError
from fhir_gym.fhir import Limits, Request, Response, Session, World
from fhir_gym.fhir.limits import refusing
from fhir_gym.fhir.outcome import FhirError

FHIR = {"content-type": "application/fhir+json"}
PATCH = {"content-type": "application/json-patch+json"}


def ask(session: Session, method: str, url: str, body: Any = None, **headers: str) -> Response:
    path, _, query = url.partition("?")
    content = b"" if body is None else json.dumps(body).encode()
    return session.handle(Request(method, path, query, {**FHIR, **headers}, content))


def diagnostics(answer: Response) -> str:
    return str(answer.json()["issue"][0]["diagnostics"])


@pytest.fixture
def bare(empty_world: World) -> Iterator[Session]:
    with empty_world.session() as session:
        session.load([{"resourceType": "Patient", "id": "a", "name": [{"family": "Doe"}]}])
        yield session


# SQLite errors

REFUSED = [
    ("SELECT " + "(" * 200 + "1" + ")" * 200, ()),
    ("SELECT " + "+".join(["1"] * 2_000), ()),
    ("SELECT 1 FROM " + ", ".join(f"(SELECT 1) t{n}" for n in range(70)), ()),
    (" UNION ALL ".join(["SELECT 1"] * 600), ()),
    ("SELECT 'x' LIKE ?", ("_" * 60_000,)),
    ("SELECT zeroblob(2000000000)", ()),
    ("SELECT abs(-9223372036854775808)", ()),
    ("SELECT ?", (2**70,)),
    ("SELECT 1 IN (" + ",".join("?" * 300_000) + ")", tuple(range(300_000))),
]


@pytest.mark.parametrize(("query", "values"), REFUSED, ids=range(len(REFUSED)))
def test_refusals_of_sqlite_become_error_responses(bare: Session, query: str, values: tuple[Any, ...]) -> None:
    with pytest.raises(FhirError) as caught, refusing():
        bare.store.db.execute(query, values).fetchall()
    assert caught.value.status == 400


@pytest.mark.parametrize("text", ["no such table: main.token", "malformed database schema (token)"])
def test_a_broken_file_raises(text: str) -> None:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = sqlite3.SQLITE_ERROR
    with pytest.raises(sqlite3.OperationalError), refusing():
        raise error


def test_a_world_without_a_table_is_an_error_of_the_world(empty_world: World) -> None:
    with empty_world.session() as session:
        session.store.db.execute("ALTER TABLE overlay.resource RENAME TO gone")
        try:
            with pytest.raises(WorldError, match="no such table"):
                ask(session, "PUT", "/Patient/a", {"resourceType": "Patient", "id": "a"})
        finally:
            session.store.db.execute("ALTER TABLE overlay.gone RENAME TO resource")


# sizes


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "copy", "from": "/name/0", "path": "/name/-"}] * 900,
        [{"op": "copy", "from": "/name", "path": "/name/0/extension"}] * 30,
        [{"op": "add", "path": "/name/-", "value": {"family": "y" * 9_000}}] * 10,
    ],
)
def test_no_patch_makes_a_resource_larger_than_may_be_stored(
    empty_world: World, operations: list[dict[str, Any]]
) -> None:
    with empty_world.session(limits=Limits(resource_bytes=60_000, json_values=2_000)) as session:
        session.load([{"resourceType": "Patient", "id": "a", "name": [{"family": "x" * 5_000}]}])
        before = ask(session, "GET", "/Patient/a").body
        for _ in range(5):
            answer = ask(session, "PATCH", "/Patient/a", operations, **PATCH)
            if answer.status >= 400:
                break
        assert answer.status == 413
        assert "more than the" in diagnostics(answer) or "adds more than" in diagnostics(answer)
        assert ask(session, "GET", "/Patient/a").body == before


def test_a_fhirpath_patch_stays_within_the_same_bounds(empty_world: World) -> None:
    value = {"name": "value", "valueHumanName": {"family": "y" * 4_000}}
    parts = [
        {"name": "type", "valueCode": "add"},
        {"name": "path", "valueString": "Patient"},
        {"name": "name", "valueString": "name"},
        value,
    ]
    patch = {"resourceType": "Parameters", "parameter": [{"name": "operation", "part": parts}] * 10}
    with empty_world.session(limits=Limits(resource_bytes=90_000)) as session:
        session.load([{"resourceType": "Patient", "id": "a"}])
        answers = [ask(session, "PATCH", "/Patient/a", patch) for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 413, 413]
        assert len(ask(session, "GET", "/Patient/a").body) < 90_000


def test_tags_do_not_accumulate_without_end(empty_world: World) -> None:
    with empty_world.session(limits=Limits(json_values=1_000)) as session:
        session.load([{"resourceType": "Patient", "id": "a"}])
        for kind in ("PUT", "$meta-add"):
            for start in range(0, 1_000, 100):
                meta = {"tag": [{"system": kind, "code": str(start + n)} for n in range(100)]}
                if kind == "PUT":
                    answer = ask(session, "PUT", "/Patient/a", {"resourceType": "Patient", "id": "a", "meta": meta})
                else:
                    given = {"resourceType": "Parameters", "parameter": [{"name": "meta", "valueMeta": meta}]}
                    answer = ask(session, "POST", "/Patient/a/$meta-add", given)
            assert answer.status == 413
        assert len(ask(session, "GET", "/Patient/a").json()["meta"]["tag"]) < 1_000


@pytest.mark.parametrize(("method", "url", "text"), [("POST", "/Patient/_search", "65536"), ("DELETE", "/", "32768")])
def test_the_limit_is_named(bare: Session, method: str, url: str, text: str) -> None:
    if method == "POST":
        form = {"content-type": "application/x-www-form-urlencoded"}
        answer = bare.handle(Request("POST", url, "", form, b"family=" + b"x" * 70_000))
    else:
        entry = {"request": {"method": "DELETE", "url": "Patient?family=" + "x" * 40_000}}
        answer = ask(bare, "POST", "/", {"resourceType": "Bundle", "type": "transaction", "entry": [entry]})
    assert answer.status in (400, 413, 414)
    assert text in diagnostics(answer)


# headers


@pytest.mark.parametrize("id", ["x ", " ", "a\r\nX-Injected: 1", "ä", "€", "\x00", "\x7f", "a\tb", "\ud800"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_headers_are_valid_whatever_the_id(bare: Session, method: str, id: str) -> None:
    url = f"/Patient/{quote(id, errors='replace')}"
    answer = ask(bare, method, url, {"resourceType": "Patient", "id": id} if method == "PUT" else None)
    assert answer.status < 500
    assert_valid(answer)


@pytest.mark.parametrize("host", ["a b", "a\r\nX: 1", "ä", "€", "\ud800", "a\x00"])
def test_headers_are_valid_whatever_the_host(bare: Session, host: str) -> None:
    for method, url, body in (
        ("GET", "/Patient/a", None),
        ("GET", "/Patient", None),
        ("POST", "/Patient", {"resourceType": "Patient"}),
        ("POST", "/", {"resourceType": "Bundle", "type": "batch"}),
        ("DELETE", "/Patient/a", None),
        ("GET", "/Patient/a", None),
    ):
        assert_valid(ask(bare, method, url, body, host=host))


def assert_valid(answer: Response) -> None:
    for name, value in answer.headers.items():
        assert value.isprintable() and value == value.strip(), name
        assert value.encode("latin-1"), "as a header is sent"


# lone surrogates


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("GET", "/Patient/\ud800"),
        ("GET", "/\ud800"),
        ("GET", "/Patient?family=\ud800"),
        ("GET", "/Patient?_id=\ud800"),
        ("GET", "/Patient?_sort=\ud800"),
        ("GET", "/Patient?_filter=family%20eq%20\ud800"),
        ("GET", "/Patient?_include=\ud800"),
        ("GET", "/Patient?\ud800=x"),
        ("GET", "?_getpages=\ud800"),
        ("DELETE", "/Patient/\ud800"),
        ("\ud800", "/Patient"),
    ],
)
def test_lone_surrogates_are_answered(bare: Session, method: str, url: str) -> None:
    answer = ask(bare, method, url, prefer="\ud800")
    assert answer.status < 500
    assert answer.json()["resourceType"]


# arbitrary refused requests

NAMES = st.sampled_from(["_elements", "_summary", "_pretty", "_format", "_count", "family", "gender", "foo", "_sort"])
VALUES = st.sampled_from(["id", "true", "text", "data", "1", "-1", "Doe", "male", "x,y", ""])
QUERY = st.lists(st.tuples(NAMES, VALUES), max_size=3).map(lambda pairs: "&".join(map("=".join, pairs)))
PATIENTS = st.fixed_dictionaries(
    {"resourceType": st.sampled_from(["Patient", "Patient", "Observation", "Nope"])},
    optional={
        "id": st.sampled_from(["a", "b", "!", "1"]),
        "gender": st.sampled_from(["male", "x"]),
        "name": st.just([{"family": "y" * 300}]),
        "managingOrganization": st.just({"reference": "Organization/none"}),
        "meta": st.just({"tag": [{"code": "t"}]}),
    },
)
METHODS = st.sampled_from(["POST", "PUT", "PATCH", "DELETE"])
PATHS = st.sampled_from(
    ["Patient", "Patient/a", "Patient/b", "Patient/1", "Patient/x ", "Patient/a/_history", "Nope/a"]
)
OPERATIONS = st.lists(
    st.sampled_from(
        [
            {"op": "copy", "from": "/name", "path": "/name/0/extension"},
            {"op": "add", "path": "/name/-", "value": {"family": "z" * 400}},
            {"op": "replace", "path": "/gender", "value": "female"},
            {"op": "test", "path": "/gender", "value": "other"},
            {"op": "replace", "path": "/id", "value": "c"},
        ]
    ),
    max_size=3,
)
ENTRY = st.builds(
    lambda method, url, query, resource: {
        "request": {"method": method, "url": f"{url}?{query}"},
        **({"resource": resource} if method in ("POST", "PUT") else {}),
    },
    METHODS | st.just("GET"),
    PATHS,
    QUERY,
    PATIENTS,
)
BUNDLE = st.builds(
    lambda kind, entries: {"resourceType": "Bundle", "type": kind, "entry": entries},
    st.sampled_from(["batch", "transaction"]),
    st.lists(ENTRY, max_size=4),
)
META = st.builds(
    lambda code: {
        "resourceType": "Parameters",
        "parameter": [{"name": "meta", "valueMeta": {"tag": [{"code": code}]}}],
    },
    st.sampled_from(["t", "u" * 600]),
)
REQUESTS = st.one_of(
    st.tuples(METHODS, PATHS, QUERY, PATIENTS, st.just(FHIR)),
    st.tuples(st.just("PATCH"), PATHS, QUERY, OPERATIONS, st.just(PATCH)),
    st.tuples(st.just("POST"), st.just(""), QUERY, BUNDLE, st.just(FHIR)),
    st.tuples(st.just("POST"), st.just("Patient/a/$meta-add"), QUERY, META, st.just(FHIR)),
)
PREFER = st.sampled_from(["", "return=minimal", "return=OperationOutcome", "return=representation"])


@pytest.fixture(scope="module")
def narrow(empty_world: World) -> Iterator[Session]:
    """A session with small limits."""
    limits = Limits(answer_bytes=900, resource_bytes=1_200, json_values=60)
    with empty_world.session(limits=limits) as session:
        session.load([{"resourceType": "Patient", "id": "a", "gender": "male", "name": [{"family": "Doe"}]}])
        yield session


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=REQUESTS, prefer=PREFER, exist=st.sampled_from(["", "family=Doe", "gender=other", "foo=1"]))
def test_whatever_is_refused_leaves_no_write(
    narrow: Session, request: tuple[str, str, str, Any, dict[str, str]], prefer: str, exist: str
) -> None:
    method, path, query, body, headers = request
    start = narrow.checkpoint()
    more = {"prefer": prefer, "if-none-exist": exist}
    answer = narrow.handle(Request(method, f"/{path}", query, {**headers, **more}, json.dumps(body).encode()))
    changes = narrow.changes(start)
    assert_valid(answer)
    if answer.status >= 400:
        assert changes == []
        assert not any(done.effect for done in answer.done)
    written = {(change.resource_type, change.id) for change in changes}
    assert written <= {(done.resource_type, done.id) for done in answer.done if done.effect}
    narrow.rollback(start)
