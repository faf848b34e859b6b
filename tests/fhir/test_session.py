"""The session: routing, limits, determinism and robustness."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fhir_gym.errors import WorldError
from fhir_gym.fhir import Limits, Request, Response, Session, World, WorldBuilder
from fhir_gym.fhir.index import TABLES
from fhir_gym.fhir.limits import WorkBudget
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.types import Resource

NOW = datetime(2023, 11, 13, 10, 15, tzinfo=UTC)

RESOURCES: list[Resource] = [
    {"resourceType": "Organization", "id": "org", "name": "Clinic"},
    {
        "resourceType": "Patient",
        "id": "S1",
        "name": [{"family": "O'Brien", "given": ["Ana"]}],
        "birthDate": "1980-02-03",
        "gender": "female",
        "managingOrganization": {"reference": "Organization/org"},
    },
    {"resourceType": "Patient", "id": "S2", "name": [{"family": "Muñoz"}], "gender": "male"},
    *(
        {
            "resourceType": "Observation",
            "id": f"obs{n}",
            "status": "final",
            "code": {"coding": [{"system": "http://loinc.org", "code": "GLU"}]},
            "subject": {"reference": f"Patient/S{n % 2 + 1}"},
            "effectiveDateTime": f"2023-11-{n + 1:02}T08:00:00+00:00",
            "valueQuantity": {"value": 100 + n, "unit": "mg/dL"},
        }
        for n in range(28)
    ),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path = tmp_path_factory.mktemp("world") / "w.sqlite"
    with WorldBuilder(path, name="small", seed=None, now=NOW) as builder:
        for resource in RESOURCES:
            builder.add(resource)
    with World.open(path) as world:
        yield world


@pytest.fixture
def session(world: World) -> Iterator[Session]:
    with world.session() as session:
        yield session


def ask(session: Session, method: str, url: str, body: Any = None, **headers: str) -> Response:
    parts = urlsplit(url)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    data = b""
    if body is not None:
        sent.setdefault("content-type", "application/fhir+json")
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return session.handle(Request(method, parts.path, parts.query, sent, data))


def diagnostics(response: Response) -> str:
    outcome = response.json()
    assert outcome["resourceType"] == "OperationOutcome"
    return str(outcome["issue"][0]["diagnostics"])


def test_read(session: Session) -> None:
    answer = ask(session, "GET", "/Patient/S1")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/fhir+json;charset=UTF-8"
    assert answer.headers["ETag"] == 'W/"1"'
    updated = datetime.fromisoformat(answer.json()["meta"]["lastUpdated"])
    assert answer.headers["Last-Modified"] == updated.strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert answer.headers["Content-Location"] == "http://localhost:8080/fhir/Patient/S1/_history/1"
    assert answer.json()["name"][0]["family"] == "O'Brien"
    assert b"\n" not in answer.body
    assert b"\n" in ask(session, "GET", "/Patient/S1?_pretty=true").body
    assert ask(session, "HEAD", "/Patient/S1").body == b""


@pytest.mark.parametrize(
    ("method", "url", "status", "text"),
    [
        ("GET", "/", 400, "HAPI-0287"),
        ("GET", "/Patient/nobody", 404, "HAPI-2001: Resource Patient/nobody is not known"),
        ("GET", "/patient/S1", 404, "HAPI-0302: Unknown resource type 'patient'"),
        ("GET", "/../Patient/S1", 404, "HAPI-0302: Unknown resource type '..'"),
        ("GET", "/Patient/S1/_history/2", 404, 'HAPI-0979: Version "2"'),
        ("GET", "/Patient/S1/_history/x", 404, 'HAPI-0978: Version "x"'),
        ("GET", "/Patient/S1/name", 400, "does not know how to handle GET operation[Patient/S1/name]"),
        ("GET", "/Patient/S1?_count=2", 400, "HAPI-0384"),
        ("GET", "/Patient/%ZZ", 400, "percent-encoding"),
        ("POST", "/metadata", 405, "HAPI-0388"),
        ("TRACE", "/Patient", 405, "TRACE"),
        ("GET", "/Patient/S1/$nothing", 400, "does not know how"),
    ],
)
def test_errors_name_the_problem(session: Session, method: str, url: str, status: int, text: str) -> None:
    answer = ask(session, method, url)
    assert answer.status == status
    assert text in diagnostics(answer)


def test_a_current_copy_is_not_sent_again(session: Session) -> None:
    assert ask(session, "GET", "/Patient/S1", if_none_match='W/"1"') == Response(304)
    assert ask(session, "GET", "/Patient/S1", if_none_match='W/"2"').status == 200
    assert ask(session, "GET", "/Patient/S1", if_modified_since="Tue, 14 Nov 2023 00:00:00 GMT").status == 304
    assert ask(session, "GET", "/Patient/S1", if_modified_since="yesterday").status == 400


def test_a_deleted_resource_is_gone_and_its_history_stays(session: Session) -> None:
    assert ask(session, "DELETE", "/Observation/obs1").status == 200
    answer = ask(session, "GET", "/Observation/obs1")
    assert answer.status == 410
    assert answer.headers["Location"].endswith("/Observation/obs1/_history/2")
    assert ask(session, "GET", "/Observation/obs1/_history/1").status == 200
    entries = ask(session, "GET", "/Observation/obs1/_history").json()["entry"]
    assert [entry["request"]["method"] for entry in entries] == ["DELETE", "POST"]
    assert "resource" not in entries[0]
    assert session.versions("Observation", "obs1", 5) == [None, entries[1]["resource"]]
    assert session.versions("Observation", "obs1", 1) == [None] and session.versions("Observation", "no", 2) == []


def test_history_pages(session: Session) -> None:
    for gender in ("male", "other", "unknown"):
        resource = {"resourceType": "Patient", "id": "S1", "gender": gender}
        assert ask(session, "PUT", "/Patient/S1", resource).status == 200
    seen: list[str] = []
    url: str | None = "/Patient/S1/_history?_count=3"
    while url:
        bundle = ask(session, "GET", url.removeprefix(session.base_url)).json()
        assert bundle["total"] == 4
        seen += [entry["response"]["etag"] for entry in bundle["entry"]]
        url = next((link["url"] for link in bundle["link"] if link["relation"] == "next"), None)
    assert seen == ['W/"4"', 'W/"3"', 'W/"2"', 'W/"1"']
    assert ask(session, "GET", "/_history?_count=2").json()["total"] == len(RESOURCES) + 3


def test_meta_changes_make_no_version(session: Session) -> None:
    tags = {"tag": [{"system": "http://example.org", "code": "x"}]}
    body = {"resourceType": "Parameters", "parameter": [{"name": "meta", "valueMeta": tags}]}
    answer = ask(session, "POST", "/Patient/S1/$meta-add", body)
    assert answer.json()["parameter"][0]["valueMeta"]["tag"] == tags["tag"]
    assert [p["id"] for p in session.search("Patient", _tag="x")] == ["S1"]
    assert ask(session, "GET", "/Patient/S1").headers["ETag"] == 'W/"1"'
    assert ask(session, "GET", "/Patient/S1/_history").json()["total"] == 1
    ask(session, "POST", "/Patient/S1/$meta-delete", body)
    assert session.search("Patient", _tag="x") == []


def test_validate_names_missing_elements(session: Session) -> None:
    body = {"resourceType": "Observation", "status": "final"}
    answer = ask(session, "POST", "/Observation/$validate", body)
    assert answer.status == 200
    assert "Observation.code: minimum required = 1" in diagnostics(answer)
    whole = {**body, "code": {"text": "x"}}
    issues = ask(session, "POST", "/Observation/$validate", whole).json()["issue"]
    assert [issue["severity"] for issue in issues] == ["warning"] * 4  # narrative, subject, performer, time
    column = len(json.dumps(whole)) + 1
    assert issues[0]["location"] == ["Observation", f"Line[1] Col[{column}]"]
    appointment = {"resourceType": "Appointment", "status": "booked", "start": "2023-11-13T10:00:00Z"}
    texts = [i["diagnostics"] for i in ask(session, "POST", "/Appointment/$validate", appointment).json()["issue"]]
    assert [text.split(":")[1].strip() for text in texts[1:3]] == ["app-2", "app-3"]
    people = [{"actor": {"display": "x"}}, {"status": "accepted"}]
    text = json.dumps({"resourceType": "Appointment", "participant": people, "comment": "x"})
    issues = ask(session, "POST", "/Appointment/$validate", text.encode()).json()["issue"]
    column = text.index("}], ") + 2
    assert [issue["location"] for issue in issues if "app-1" in issue["diagnostics"]] == [
        ["Appointment.participant[1]", f"Line[1] Col[{column}]"]
    ]


@pytest.mark.parametrize(
    ("method", "url", "body", "status", "text"),
    [
        ("GET", "/Patient/S1/$validate", None, 200, "dom-6"),
        ("GET", "/Patient/nobody/$validate", None, 404, "HAPI-2001"),
        ("GET", "/Patient/$validate", None, 400, "HAPI-0992"),
        ("GET", "/Patient/S1/$validate?mode=create", None, 422, "HAPI-0997"),
        ("GET", "/Patient/S1/$validate?mode=x", None, 400, "HAPI-0364"),
        ("GET", "/Patient/$validate?mode=delete", None, 400, "HAPI-0991"),
        ("GET", "/Patient/S1/$validate?mode=delete", None, 409, "Unable to delete Patient/S1"),
        ("POST", "/Patient/$validate?mode=update", {"resourceType": "Patient"}, 422, "HAPI-0998"),
        ("POST", "/Patient/$validate", {"resourceType": "Parameters", "parameter": [7, {"name": "mode"}]}, 400, "HAPI"),
    ],
)
def test_validate_on_a_resource_and_by_mode(
    session: Session, method: str, url: str, body: Any, status: int, text: str
) -> None:
    answer = ask(session, method, url, body)
    assert (answer.status, text in diagnostics(answer)) == (status, True)


def test_base_url_follows_the_host(session: Session) -> None:
    answer = ask(session, "GET", "/Patient?_id=S1", host="example.org:99")
    assert answer.json()["link"][0]["url"] == "http://example.org:99/fhir/Patient?_id=S1"


# limits


def test_limits_are_enforced(world: World) -> None:
    limits = Limits(url_chars=100, body_bytes=1000, page_entries=5, answer_bytes=20_000, sql_steps=30_000)
    with world.session(limits=limits) as session:
        assert ask(session, "GET", "/Patient?name=" + "x" * 200).status == 414
        assert ask(session, "POST", "/Patient", b" " * 2000).status == 413
        bundle = ask(session, "GET", "/Observation?_count=100000").json()
        assert len(bundle["entry"]) == 5
        costly = "/Observation?" + "&".join(["code:not=x"] * 3)
        answer = ask(session, "GET", costly)
        assert answer.status in (200, 400)
    with world.session(limits=Limits(answer_bytes=100)) as session:
        answer = ask(session, "GET", "/Patient/S1")
        assert answer.status == 413
        assert "bytes" in diagnostics(answer)


def test_a_runaway_search_is_stopped(world: World) -> None:
    with world.session(limits=Limits(sql_steps=10_000)) as session:
        url = "/Patient?" + "&".join(f"_has:Observation:patient:value-quantity=gt{n}" for n in range(60))
        answer = ask(session, "GET", url)
        assert answer.status == 400
        assert "too costly" in diagnostics(answer)
        assert ask(session, "GET", "/Patient/S1").status == 200


def test_ctrl_c_in_a_long_search_is_not_taken_for_its_cost(world: World) -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    long = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 2000000) SELECT count(*) FROM c"
    try:
        with world.session() as session, pytest.raises(KeyboardInterrupt), session.store.budget(WorkBudget(10**9)):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            session.store.db.execute(long).fetchall()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_deep_nesting_is_refused(session: Session) -> None:
    deep = b'{"resourceType":"Patient","extension":' + b'[{"extension":' * 20_000 + b"[]" + b"}]" * 20_000 + b"}"
    assert ask(session, "POST", "/Patient", deep).status in (400, 413)
    assert ask(session, "POST", "/Patient", b"[" * 100_000).status == 400


# determinism

CONVERSATION: list[tuple[str, str, Any]] = [
    ("GET", "/Patient?_count=1", None),
    ("POST", "/Patient", {"resourceType": "Patient", "name": [{"family": "New"}]}),
    ("GET", "/Patient?family=new", None),
    ("PUT", "/Patient/S1", {"resourceType": "Patient", "id": "S1", "active": True}),
    ("GET", "/Observation?code=GLU&_count=3&_sort=-date", None),
    ("DELETE", "/Observation/obs3", None),
    ("GET", "/_history", None),
    ("GET", "/metadata", None),
]


def converse(session: Session) -> list[Response]:
    return [ask(session, method, url, body) for method, url, body in CONVERSATION]


def test_the_same_requests_give_the_same_bytes(world: World) -> None:
    with world.session() as session, world.session() as two:
        assert converse(session) == converse(two)


def test_rollback_restores_every_byte(session: Session) -> None:
    fresh = converse(session)
    session.rollback()
    checkpoint = session.checkpoint()
    assert converse(session) == fresh
    session.rollback(checkpoint)
    assert converse(session) == fresh
    assert session.changes(checkpoint)
    session.rollback(checkpoint)
    assert session.changes(checkpoint) == []


def everything(session: Session) -> tuple[Any, ...]:
    """Return all rows of a session, and what it counts."""
    session.store.index_all()
    tables = ("resource", "version", *TABLES)
    rows = {table: sorted(session.store.db.execute(f"SELECT * FROM overlay.{table}"), key=repr) for table in tables}
    return rows, session.changes(), session.store.seq(), session._counters, session.store._next_rid


@pytest.mark.parametrize("searching", [False, True])
def test_a_session_returns_to_a_checkpoint_for_a_while(session: Session, searching: bool) -> None:
    session.load([{"resourceType": "Patient", "id": f"L{n}", "name": [{"family": "Loaded"}]} for n in range(3)])
    start, before = session.checkpoint(), session.changes()
    fresh = converse(session) if searching else []
    for method, url, body in (
        ("PUT", "/Patient/L0", {"resourceType": "Patient", "id": "L0", "name": [{"family": "Changed"}]}),
        ("PUT", "/Patient/L0", {"resourceType": "Patient", "id": "L0", "active": False}),
        ("DELETE", "/Patient/L1", None),
        ("PUT", "/Patient/L1", {"resourceType": "Patient", "id": "L1", "gender": "other"}),
        ("POST", "/Patient", {"resourceType": "Patient", "name": [{"family": "Loaded"}]}),
        ("PUT", "/Patient/S2", {"resourceType": "Patient", "id": "S2", "name": [{"family": "Loaded"}]}),
        ("PUT", "/Patient/gone", {"resourceType": "Patient", "id": "gone"}),
        ("DELETE", "/Patient/gone", None),
    ):
        assert ask(session, method, url, body).status < 300
    wanted, family = everything(session), {patient["id"] for patient in session.search("Patient", family="loaded")}
    later = session.checkpoint()
    with session.returned_to(start):
        assert session.changes() == before
        assert {patient["id"] for patient in session.search("Patient", family="loaded")} == {"L0", "L1", "L2"}
        session.load([{"resourceType": "Patient", "id": "more", "name": [{"family": "Loaded"}]}])
        assert len(session.search("Patient", family="loaded")) == 4
    assert {patient["id"] for patient in session.search("Patient", family="loaded")} == family
    assert everything(session) == wanted
    session.rollback(later)
    assert everything(session)[:3] == wanted[:3]
    session.rollback(start)
    assert session.changes() == before and (not searching or converse(session) == fresh)


def test_a_session_without_writes_returns_to_a_checkpoint_for_a_while(session: Session) -> None:
    start = session.checkpoint()
    with pytest.raises(RuntimeError, match="in the block"), session.returned_to(start):
        session.load([{"resourceType": "Patient", "id": "more"}])
        raise RuntimeError("in the block")
    assert session.read("Patient", "more") is None and converse(session)


def test_a_session_cannot_return_to_a_lost_checkpoint(session: Session) -> None:
    start = session.checkpoint()
    lost = session.checkpoint()
    session.rollback(start)
    with pytest.raises(ValueError, match="this checkpoint is gone"), session.returned_to(lost):
        pass


def test_sessions_do_not_see_each_other(world: World) -> None:
    with world.session() as session, world.session() as two:
        ask(session, "DELETE", "/Observation/obs0")
        assert ask(two, "GET", "/Observation/obs0").status == 200
        assert world.read("Observation", "obs0") is not None


def test_load_sets_the_first_new_id(session: Session) -> None:
    def created() -> str:
        return str(ask(session, "POST", "/Basic", {"resourceType": "Basic", "code": {"text": "x"}}).json()["id"])

    session.load([], next_id=500_000)
    start = session.checkpoint()
    assert [created(), created()] == ["500000", "500001"]
    session.rollback(start)
    assert created() == "500000"
    session.load([{"resourceType": "Basic", "id": "700000", "code": {"text": "x"}}], next_id=600_000)
    assert created() == "700001"
    session.load([{"resourceType": "Basic", "id": "aside", "code": {"text": "x"}}], keep_next_id=True)
    assert created() == "700002"
    session.rollback()
    assert int(created()) < 500_000


def test_load_takes_any_order_and_digits(session: Session) -> None:
    session.load(
        [
            {"resourceType": "Appointment", "id": "77777", "participant": [{"actor": {"reference": "Patient/later"}}]},
            {"resourceType": "Patient", "id": "later"},
        ]
    )
    assert [a["id"] for a in session.search("Appointment", patient="later")] == ["77777"]
    created = ask(session, "POST", "/Patient", {"resourceType": "Patient"}).json()
    assert int(created["id"]) > 77777


def test_load_stores_one_resource_twice_as_two_versions(session: Session) -> None:
    before = session.store.seq()
    many = [{"resourceType": "Patient", "id": f"p{n}"} for n in range(1_100)]  # more than one batch
    session.load([{"resourceType": "Patient", "id": "S1", "active": True}, *many, {**many[3], "active": False}])
    assert ask(session, "GET", "/Patient/S1").json()["meta"]["versionId"] == "2"
    assert ask(session, "GET", "/Patient/p3").json()["active"] is False
    versions = ask(session, "GET", "/Patient/p3/_history").json()["entry"]
    assert [entry["resource"]["meta"]["versionId"] for entry in versions] == ["2", "1"]
    assert session.store.seq() == before + 1_102
    assert session.get("/Patient?_summary=count")["total"] == 1_102


def test_a_load_that_fails_stores_nothing(session: Session) -> None:
    with pytest.raises(FhirError, match="without an id"):
        session.load([{"resourceType": "Patient", "id": "good"}, {"resourceType": "Patient"}])
    assert session.changes() == []
    assert session.search("Patient", _id="good") == []


# sessions reuse connections


def test_the_next_session_on_a_connection_starts_fresh(world: World) -> None:
    with world.session() as session:
        used = session.store.db
        fresh = converse(session)
        session.checkpoint()
        session.load([{"resourceType": "Patient", "id": "left-over"}])
    with world.session() as session:
        assert session.store.db is used
        assert session.changes() == []
        assert session.read("Patient", "left-over") is None
        assert converse(session) == fresh


def test_a_closed_session_does_not_reach_the_next_one(world: World) -> None:
    closed = world.session()
    closed.close()
    with world.session() as session:
        with pytest.raises(WorldError):
            closed.load([{"resourceType": "Patient", "id": "late"}])
        with pytest.raises(WorldError):
            ask(closed, "GET", "/Patient/S1")
        closed.close()
        assert session.read("Patient", "late") is None
        with world.session() as other:
            assert other.store.db is not session.store.db


def test_a_stopped_search_leaves_a_sound_connection(world: World) -> None:
    with world.session(limits=Limits(sql_steps=1)) as session:
        used = session.store.db
        ask(session, "POST", "/Patient", {"resourceType": "Patient"})
        ask(session, "GET", "/Patient?_has:Observation:patient:_has:Observation:patient:code=x")
    with world.session() as session:
        assert session.store.db is used
        assert session.changes() == []
        assert len(session.search("Observation")) == 28


def test_writes_that_cannot_be_undone_are_not_kept(world: World) -> None:
    with world.session() as session:
        spoilt = session.store.db
        spoilt.execute("ROLLBACK")  # SQLite does this when it is out of memory
        spoilt.execute("INSERT INTO overlay.resource SELECT *, 1 FROM main.resource LIMIT 1")
    with world.session() as session:
        assert session.store.db is not spoilt
        assert session.changes() == []


def test_a_forked_process_has_connections_of_its_own(world: World) -> None:
    reader = world._readers.get()
    with world.session() as session:
        inherited = session.store.db
    child = os.fork()
    if not child:
        with world.session() as session:
            own = session.store.db is not inherited and world._readers.get() is not reader
            os._exit(0 if own and world.read("Patient", "S1") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with world.session() as session:
        assert session.store.db is inherited


def test_few_connections_are_kept_and_none_of_a_closed_world(world: World) -> None:
    connections = World.open(world.path).connections
    taken = [connections.acquire() for _ in range(20)]
    for db in taken:
        db.execute("BEGIN")
        connections.release(db)
    again = [connections.acquire() for _ in range(20)]
    assert 0 < len({id(db) for db in again} & {id(db) for db in taken}) < 20
    broken, *sound = again
    broken.close()
    connections.release(broken)
    sound.append(connections.acquire())
    assert sound[-1] is not broken
    connections.close()
    for db in sound:
        db.execute("BEGIN")
        connections.release(db)
        with pytest.raises(sqlite3.ProgrammingError):
            db.execute("SELECT 1")


# requests never raise an exception

TEXT = st.text(max_size=40)
SEGMENT = st.sampled_from(
    [
        "Patient",
        "Observation",
        "S1",
        "_history",
        "_search",
        "metadata",
        "$meta",
        "$validate",
        "1",
        "..",
        "%2e",
        "$everything",
    ]
) | TEXT.map(quote)
PARAMETER = (
    st.sampled_from(
        [
            "family",
            "birthdate",
            "code",
            "_sort",
            "_include",
            "_count",
            "_has:Observation:patient:code",
            "patient.name",
            "_getpages",
        ]
    )
    | TEXT
)
QUERY = st.lists(st.tuples(PARAMETER, TEXT | st.integers().map(str)), max_size=4).map(
    lambda pairs: "&".join(f"{name}={value}" for name, value in pairs)
)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["content-type", "if-match", "if-none-match", "if-none-exist", "if-modified-since", "prefer", "accept", "host"]
    ),
    st.sampled_from(["application/fhir+json", 'W/"1"', "family=x", "*", "return=minimal", ""]) | TEXT,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["resourceType", "id", "entry", "request", "name", "value"]) | TEXT, inner, max_size=4
        )
    ),
    max_leaves=12,
)
BODY = st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode())


@settings(max_examples=60, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "FOO"]),
    segments=st.lists(SEGMENT, max_size=4),
    query=QUERY,
    headers=HEADERS,
    body=BODY,
)
def test_nothing_sent_raises(
    session: Session, method: str, segments: list[str], query: str, headers: dict[str, str], body: bytes
) -> None:
    answer = session.handle(Request(method, "/" + "/".join(segments), query, headers, body))
    assert 200 <= answer.status < 500
    if answer.body and answer.headers["Content-Type"].startswith("application/fhir+json"):
        assert "resourceType" in answer.json()


def test_remembered_searches_are_bounded(world: World) -> None:
    """The session limits how many searches and matches it keeps, but always keeps the latest search."""

    def pages(limits: Limits) -> list[int]:
        with world.session(limits=limits) as session:
            links = []
            for _ in range(4):
                bundle = ask(session, "GET", "/Observation?_count=2").json()
                links += [link["url"] for link in bundle["link"] if link["relation"] == "next"]
            return [ask(session, "GET", link.partition("/fhir")[2]).status for link in links]

    assert pages(Limits()) == [200] * 4
    assert pages(Limits(searches=2)) == [410, 410, 200, 200]
    assert pages(Limits(remembered=30)) == [410, 410, 200, 200]
    assert pages(Limits(remembered=1)) == [410, 410, 410, 200]
