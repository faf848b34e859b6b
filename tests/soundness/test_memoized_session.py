"""Tests of sessions that remember responses: they answer like other sessions."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.fhir.messages import Request
from fhir_gym.soundness.policy_runner import MemoizedSession

if TYPE_CHECKING:
    from fhir_gym.fhir import Response, Session, World

READS = (
    "/Patient?gender=female&_count=500",
    "/Patient?name=A&_elements=id&_count=500",
    "/Appointment?_count=2",
    "/Appointment?_count=500&_include=Appointment:patient",
    "/Patient?_id=new&_revinclude=Appointment:patient",
    "/Patient?_has:Appointment:patient:status=booked&_count=500",
    "/Patient/new",
    "/Patient/new/_history/2",
    "/Appointment/new",
    "/Slot?status=free&_summary=count",
    "/Nothing",
)
NEW: dict[str, dict[str, Any]] = {
    "Patient": {"gender": "female"},
    "Appointment": {"status": "booked", "participant": [{"actor": {"reference": "Patient/new"}, "status": "accepted"}]},
}


JSON = {"content-type": "application/fhir+json"}


def batch(*urls: str) -> Request:
    entries = [{"request": {"method": "GET", "url": url}} for url in urls]
    bundle = {"resourceType": "Bundle", "type": "batch", "entry": entries}
    return Request("POST", "/", headers=JSON, body=json.dumps(bundle).encode())


def write(rng: random.Random) -> Request:
    kind = rng.choice([*NEW])
    record = {"resourceType": kind, **NEW[kind]}
    how = rng.choice(["POST", "PUT", "PUT", "DELETE", "refused"])
    if how == "DELETE":
        return Request("DELETE", f"/{kind}/new")
    if how == "refused":
        return Request("PUT", f"/{kind}/new", headers=JSON, body=b"{")
    record |= {"language": rng.choice(["de", "en"])} | ({"id": "new"} if how == "PUT" else {})
    path = f"/{kind}/new" if how == "PUT" else f"/{kind}"
    return Request(how, path, headers=JSON, body=json.dumps(record).encode())


def read(rng: random.Random) -> Request:
    urls = rng.sample(READS, 2)
    path, _, query = urls[0].partition("?")
    return batch(*urls) if rng.random() < 0.2 else Request("GET", path, query)


def without_times(response: Response) -> Any:
    """A response without the id and the time of its Bundle, which a remembered response has from its first time."""

    def cut(value: Any) -> Any:
        if isinstance(value, list):
            return [cut(element) for element in value]
        if not isinstance(value, dict):
            return value
        bundle = value.get("resourceType") == "Bundle"
        return {name: cut(element) for name, element in value.items() if not (bundle and name in ("id", "meta"))}

    return response.status, cut(json.loads(response.body)) if response.body else None, response.done


def next_page(response: Response) -> Request | None:
    links = json.loads(response.body).get("link", []) if response.body else []
    urls = [link["url"] for link in links if link["relation"] == "next"]
    return Request("GET", "/", urls[0].partition("?")[2]) if urls else None


@pytest.mark.parametrize("seed", range(5))
def test_policies_get_the_responses_of_the_server(seed: int, tiny_world: World) -> None:
    """Many short episodes from one state, with few different requests, so that most of them repeat."""
    rng = random.Random(seed)
    with MemoizedSession(tiny_world) as memoized, tiny_world.session() as plain:
        sessions: list[Session] = [memoized, plain]
        starts = [session.checkpoint() for session in sessions]
        for _ in range(40):
            for session, start in zip(sessions, starts, strict=True):
                session.rollback(start)
            for _ in range(rng.randrange(8)):
                request: Request | None = write(rng) if rng.random() < 0.4 else read(rng)
                while request is not None:
                    response, expected = (session.handle(request) for session in sessions)
                    assert without_times(response) == without_times(expected), request
                    request = next_page(expected)
            assert memoized.changes(starts[0]) == plain.changes(starts[1])


@pytest.fixture
def session(tiny_world: World) -> MemoizedSession:
    return MemoizedSession(tiny_world)


def test_a_repeated_search_comes_from_memory(session: MemoizedSession) -> None:
    search = Request("GET", "/Patient", "gender=female&_count=500")
    start = session.checkpoint()
    first = session.handle(search)
    assert session.handle(search) is first
    assert session.handle(Request("DELETE", "/Slot/none")).status == 200
    session.rollback(start)
    assert session.handle(search) is first


def test_a_load_is_a_write(session: MemoizedSession) -> None:
    search = Request("GET", "/Patient", "_id=new")
    start = session.checkpoint()
    assert json.loads(session.handle(search).body)["total"] == 0
    session.load([{"resourceType": "Patient", "id": "new"}])
    assert json.loads(session.handle(search).body)["total"] == 1
    with session.returned_to(start):
        assert json.loads(session.handle(search).body)["total"] == 0
        session.load([{"resourceType": "Patient", "id": "new"}])
        assert json.loads(session.handle(search).body)["total"] == 1
    assert json.loads(session.handle(search).body)["total"] == 1
    session.rollback(start)
    assert json.loads(session.handle(search).body)["total"] == 0


def test_a_search_depends_on_the_types_that_it_includes(session: MemoizedSession) -> None:
    search = Request("GET", "/Patient", "_id=new&_revinclude=Appointment:patient")
    session.checkpoint()
    session.load([{"resourceType": "Patient", "id": "new"}])
    first = session.handle(search)
    session.load([{"resourceType": "Slot", "id": "new", "status": "free"}])
    assert session.handle(search) is first
    session.load([{"resourceType": "Appointment", "id": "new", **NEW["Appointment"]}])
    assert len(json.loads(session.handle(search).body)["entry"]) == 2
