"""Totals, pages, links and included resources of searchset Bundles."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fhir_gym.fhir import Request, Session, World, WorldBuilder

from .conftest import Client

BASE = "http://localhost:8080/fhir"


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path: Path = tmp_path_factory.mktemp("pages") / "thirty.sqlite"
    with WorldBuilder(path, name="thirty", seed=0, now=datetime(2023, 11, 13, tzinfo=UTC)) as builder:
        for n in range(30):
            builder.add({"resourceType": "Patient", "id": f"P{n:02}", "gender": "male" if n < 13 else "female"})
    with World.open(path) as world:
        yield world


@pytest.fixture
def session(thirty: World) -> Iterator[Session]:
    with thirty.session() as opened:
        yield opened


def _pages(session: Session, query: str) -> list[dict[str, Any]]:
    pages = [session.get(f"/Patient?{query}")]
    while following := _link(pages[-1], "next"):
        pages.append(session.get(following))
    return pages


def _link(bundle: dict[str, Any], relation: str) -> str | None:
    return next((link["url"] for link in bundle["link"] if link["relation"] == relation), None)


@pytest.mark.parametrize(
    ("query", "sizes", "totals"),
    [
        ("", [20, 10], [None, 30]),
        ("_count=7", [7, 7, 7, 7, 2], [None, None, 30, 30, 30]),
        ("_count=10&_total=none", [10, 10, 10], [None, None, 30]),
        ("_count=30", [30], [30]),
        ("_count=29", [29, 1], [None, 30]),
        ("gender=male&_count=5", [5, 5, 3], [13, 13, 13]),
        ("gender=female&_count=5", [5, 5, 5, 2], [None, None, None, 17]),
        ("_count=12&_total=accurate", [12, 12, 6], [30, 30, 30]),
        ("_count=100000", [30], [30]),
        ("_count=7&_offset=21", [7, 2], [None, 30]),
        ("_offset=400", [0], [400]),
    ],
)
def test_totals_appear_when_hapi_knows_them(
    session: Session, query: str, sizes: list[int], totals: list[int | None]
) -> None:
    pages = _pages(session, query)
    assert [len(p.get("entry", [])) for p in pages] == sizes
    assert [p.get("total") for p in pages] == totals
    if "_offset" not in query:
        ids = [e["resource"]["id"] for p in pages for e in p.get("entry", [])]
        assert ids == sorted(set(ids)), "every match once, in creation order"


def test_links(session: Session) -> None:
    first = session.get("/Patient?_sort=_id&_count=7&gender=male,female")
    token = first["id"]
    assert first["link"] == [
        {"relation": "self", "url": f"{BASE}/Patient?_count=7&_sort=_id&gender=male%2Cfemale"},
        {"relation": "next", "url": f"{BASE}?_getpages={token}&_getpagesoffset=7&_count=7&_bundletype=searchset"},
    ]
    second = session.get(first["link"][1]["url"])
    assert [link["relation"] for link in second["link"]] == ["self", "next", "previous"]
    assert second["link"][0]["url"] == first["link"][1]["url"]
    assert session.get(_link(second, "previous") or "")["entry"] == first["entry"]


def test_odd_hosts_and_ids_leave_it_json(session: Session) -> None:
    odd = 'a"b\\'
    session.load([{"resourceType": "Patient", "id": odd}])
    headers = {"host": 'x"y\u2028'}
    page = session.handle(Request("GET", "/Patient", "_count=40", headers)).json()
    assert page["entry"][-1]["fullUrl"].endswith(f"/fhir/Patient/{odd}")
    assert 'x"y' in page["link"][0]["url"]


def test_links_keep_pretty(thirty: World) -> None:
    with thirty.session(pretty=True) as session:
        assert "_count=20&_pretty=true&_bundletype" in str(_link(session.get("/Patient"), "next"))
        assert "_pretty" not in str(_link(session.get("/Patient?_pretty=false"), "next"))


def test_links_of_an_offset_repeat_the_query(session: Session) -> None:
    page = session.get("/Patient?_offset=10&_count=5&gender=female,male")
    assert [(link["relation"], link["url"].removeprefix(BASE)) for link in page["link"]] == [
        ("self", "/Patient?_count=5&_offset=10&gender=female%2Cmale"),
        ("next", "/Patient?_count=5&_offset=15&gender=female%2Cmale"),
        ("previous", "/Patient?_count=5&_offset=5&gender=female%2Cmale"),
    ]


def test_counts_show_no_entries(session: Session) -> None:
    for query in ("_summary=count", "_count=0"):
        page = session.get(f"/Patient?gender=male&{query}")
        assert page["total"] == 13
        assert not {"entry", "link"} & set(page)
        assert page["meta"]["tag"][0]["code"] == "SUBSETTED"
    assert "tag" not in session.get("/Patient?_count=0&_elements=gender")["meta"]
    assert set(session.get("/Patient?_count=-1")) == {"resourceType", "id", "meta", "type", "link"}


def test_pages_keep_the_result_list_and_drop_deleted_resources(session: Session) -> None:
    following = _link(session.get("/Patient?_count=5"), "next")
    session.handle(Request("DELETE", "/Patient/P06"))
    session.handle(Request("PUT", "/Patient/P07", "", {"content-type": "application/fhir+json"},
                           b'{"resourceType":"Patient","id":"P07","active":true}'))  # fmt: skip
    page = session.get(str(following))
    assert [e["resource"]["id"] for e in page["entry"]] == ["P05", "P07", "P08", "P09"]
    assert page["entry"][1]["resource"]["active"] is True


def test_a_rollback_takes_remembered_searches_along(session: Session) -> None:
    start = session.checkpoint()
    following = str(_link(session.get("/Patient"), "next"))
    session.rollback(start)
    response = session.handle(Request("GET", "", urlsplit(following).query))
    assert response.status == 410


def test_only_so_many_searches_are_remembered(session: Session) -> None:
    oldest = str(_link(session.get("/Patient"), "next"))
    for _ in range(session.limits.searches):
        session.get("/Patient")
    assert session.handle(Request("GET", "", urlsplit(oldest).query)).status == 410


def test_no_store(session: Session) -> None:
    response = session.handle(Request("GET", "/Patient", "", {"cache-control": "no-store, max-results=2"}))
    page = response.json()
    assert (len(page["entry"]), page.get("total"), len(page["link"])) == (2, None, 1)


def test_form_and_query_of_a_post_are_one_search(session: Session) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    response = session.handle(Request("POST", "/Patient/_search", "gender=male", headers, b"_id=P01,P20"))
    page = response.json()
    assert [e["resource"]["id"] for e in page["entry"]] == ["P01"]
    assert page["link"] == [{"relation": "self", "url": f"{BASE}/Patient/_search"}]
    ignored = session.handle(Request("POST", "/Patient/_search", "_id=P20", {"content-type": "text/plain"}, b"x=1"))
    assert ignored.json()["total"] == 1


def test_elements_and_summaries(client: Client) -> None:
    (entry,) = client.bundle("/Patient?_id=P1&_elements=name,gender")["entry"]
    assert set(entry["resource"]) == {"resourceType", "id", "meta", "name", "gender"}
    assert entry["resource"]["meta"]["tag"][-1]["code"] == "SUBSETTED"
    page = client.bundle("/Patient?_summary=true&_count=1")
    assert page["meta"]["tag"][0]["code"] == "SUBSETTED"
    assert "_summary" not in page["link"][1]["url"]
    page = client.bundle("/Patient?_elements=gender,name&_count=1")
    assert page["link"][1]["url"].endswith("&_bundletype=searchset&_elements=gender,name")


INCLUDES = [
    ("Appointment?_include=Appointment:actor", "D1 P1"),
    ("Appointment?_include=Appointment:patient", "P1"),
    ("Appointment?_include=Appointment:actor:Practitioner", "D1"),
    ("Appointment?_include=Appointment:slot&_include=Slot:schedule", "T1"),
    ("Appointment?_include=Appointment:slot&_include:iterate=Slot:schedule", "T1 S1"),
    (
        "Appointment?_include=Appointment:slot&_include:recurse=Slot:schedule&_include:iterate=Schedule:actor",
        "T1 S1 D1",
    ),
    ("Appointment?_include=*", "T1 D1 P1"),
    ("Appointment?_include=Observation:patient", ""),
    ("Patient?_id=P1&_include=Patient:organization&_revinclude=Observation:patient", "B1 B2 B3 O1"),
    ("Patient?_id=P1&_revinclude=Observation:patient&_revinclude=Encounter:subject", "E1 B1 B2 B3"),
    ("Patient?_id=P1&_revinclude=*", "E1 A1 B1 B2 B3"),
    ("Patient?_id=P1&_revinclude=Observation:*", "B1 B2 B3"),
    ("Patient?_id=P1&_revinclude=Observation:subject:Group", ""),
    ("Observation?_id=B1,B2&_include=Observation:subject", "P1"),
    ("Patient?_id=P2&_revinclude=Observation:patient&_include:iterate=Observation:performer", "B4 B6 D1"),
]


@pytest.mark.parametrize(("url", "expected"), INCLUDES, ids=[i[0] for i in INCLUDES])
def test_includes(client: Client, url: str, expected: str) -> None:
    assert client.beside(f"/{url}") == expected.split()
    assert client.bundle(f"/{url}").get("total") == len(client.ids(f"/{url}"))
