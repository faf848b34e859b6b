"""Requests that try to stall the server or fill its memory: each gets a quick response and needs little memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from fhir_gym.fhir import Limits, Request, Response, Session, World

FHIR = {"content-type": "application/fhir+json"}
PATCH = {"content-type": "application/json-patch+json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
XML = {"content-type": "application/fhir+xml"}
MIB = 1024 * 1024
MOST = 64 * MIB


def get(url: str) -> Request:
    path, _, query = url.partition("?")
    return Request("GET", path, query)


def send(method: str, url: str, body: Any, headers: dict[str, str] = FHIR) -> Request:
    path, _, query = url.partition("?")
    return Request(method, path, query, headers, body if isinstance(body, bytes) else json.dumps(body).encode())


def form(url: str, text: str) -> Request:
    return Request("POST", f"{url}/_search", "", FORM, text.encode())


def batch(*urls: str, kind: str = "batch") -> Request:
    entries = [{"request": {"method": "GET", "url": url}} for url in urls]
    return send("POST", "/", {"resourceType": "Bundle", "type": kind, "entry": entries})


def writes(method: str, urls: list[str], kind: str = "batch", **resource: Any) -> Request:
    entries = [
        {"request": {"method": method, "url": url}, **({"resource": resource} if resource else {})} for url in urls
    ]
    return send("POST", "/", {"resourceType": "Bundle", "type": kind, "entry": entries})


NUMBERS = ",".join(map(str, range(300)))
FOUR_MIB = 4 * MIB - 100

SEARCHES: dict[str, Request] = {
    "chain of six links": get("/Observation?patient.organization." + "partof." * 4 + "name=x"),
    "chain of fifty links": get("/Observation?patient.organization." + "partof." * 50 + "name=x"),
    "chain to every type": get("/Provenance?target._lastUpdated=2020"),
    "chains to every type": get("/Provenance?" + "&".join(f"target._lastUpdated=gt20{n:02}" for n in range(100))),
    "chain with many values": get("/List?item.subject.name=" + NUMBERS),
    "_has in each other": get("/Patient?" + "_has:Group:member:" * 50 + "code=x"),
    "a hundred _has": get("/Patient?" + "&".join(f"_has:Observation:patient:code=C{n}" for n in range(100))),
    "filter of fifty terms": get("/Patient?_filter=" + quote(" or ".join(["family eq x", "gender eq male"] * 25))),
    "filter that alternates": get("/Patient?_filter=" + quote(" or ".join(["family eq x and gender eq male"] * 25))),
    "filter in parentheses": get("/Patient?_filter=" + quote("(" * 5_000 + "family eq x" + ")" * 5_000)),
    "filter with a long value": get("/Patient?_filter=" + quote('family co "' + "_x" * 12_000 + '"')),
    "filter with an open string": get("/Patient?_filter=" + quote('family eq "' + "\\" * 15_000)),
    "many codes": get("/Observation?" + "&".join("code=" + ",".join(f"a|{n}" for n in range(300)) for _ in range(6))),
    "many composites": get("/Observation?code-value-quantity=" + ",".join(f"a${n}" for n in range(300))),
    "many quantities": get("/Observation?value-quantity=" + NUMBERS),
    "many substrings": get("/Patient?name:contains=" + NUMBERS),
    "many ids": get("/Patient?_id=" + ",".join(["a"] * 16_000)),
    "uri above": get("/ValueSet?url:above=http:" + "/a" * 16_000),
    "text of a token": get("/Observation?code:text=" + "_a" * 16_000),
    "sorts": get("/Patient?_sort=" + ",".join(["_id"] * 10_000)),
    "sorts of everything": get("/Observation?_sort=" + ",".join(["code", "date", "subject", "value-quantity"] * 4)),
    "elements": get("/Observation?_count=1000&_elements=" + ",".join(f"a{n}" for n in range(5_000))),
    "includes": get("/Observation?_count=1000&" + "&".join(["_include=Observation:subject"] * 1_000)),
    "includes of all": get("/Observation?_count=1000&_include:iterate=*&_revinclude:iterate=*"),
    "everything that refers": get("/Patient?_count=1000&_revinclude=*"),
    "a large page": get("/Observation?_count=10000&_summary=true"),
    "history": get("/_history?_count=10000&_elements=id"),
    "offset beyond 64 bits": get("/Patient?_offset=99999999999999999999"),
    "largest offset": get("/Patient?_offset=2147483647"),
    "offset of history": get("/_history?_offset=999999999&_count=999999999"),
    "count beyond 64 bits": get("/Patient?_count=99999999999999999999"),
    "negative count": get("/Patient?_count=-1"),
    "page beyond 64 bits": get("?_getpages=x&_getpagesoffset=99999999999999999999"),
    "NUL": get("/Patient?family=" + "%00" * 9_000),
    "long path": get("/Patient/" + "a" * 32_000),
    "many segments": get("/Patient" + "/a" * 16_000),
    "form of 4 MB": form("/Patient", "family=" + "x" * FOUR_MIB),
    "sort of 4 MB": form("/Patient", "_sort=" + "_id," * (MIB - 100)),
    "parameters of 4 MB": form("/Patient", "a=1&" * (MIB - 100)),
    "100,000 parameters": form("/Patient", "family=x&" * 100_000),
    "form of many parameters": form("/Patient", "&".join(["family=x"] * 7_000)),
    "form of backslashes": form("/Observation", "code=" + "\\|" * 30_000),
    "form of dollars": form("/Observation", "code-value-quantity=" + "$" * 60_000),
    "form of digits": form("/Observation", "value-quantity=" + "1" * 60_000),
    "form of elements": form("/Observation", "_count=1000&_elements=" + ",".join(f"a{n}" for n in range(9_000))),
}

BODIES: dict[str, Request] = {
    "batch of everything": batch(*["Patient/P/$everything?_count=1000"] * 2_000),
    "transaction of everything": batch(*["Patient/P/$everything?_count=1000"] * 100, kind="transaction"),
    "batch of large pages": batch(*["Observation?_count=1000"] * 2_000),
    "batch of substrings": batch(*[f"Patient?name:contains=x{n}" for n in range(2_000)]),
    "batch of histories": batch(*["_history?_count=1000&_elements=id"] * 2_000),
    "batch of statements": batch(*["metadata?_elements=rest"] * 2_000),
    "batch of value sets": batch(*["ValueSet/$expand?url=http://hl7.org/fhir/ValueSet/c80-doc-typecodes"] * 2_000),
    "batch of long chains": batch(*["Provenance?target._lastUpdated=2020"] * 2_000),
    "batch of all that refers": batch(*["Patient?_count=1000&_revinclude=*"] * 2_000),
    "conditional deletions": writes("DELETE", [f"Observation?code:text={n}" for n in range(2_000)]),
    "conditional updates": writes("PUT", [f"Patient?name:contains={n}" for n in range(2_000)], resourceType="Patient"),
    "conditional references": send(
        "POST",
        "/List",
        {
            "resourceType": "List",
            "status": "current",
            "mode": "working",
            "entry": [{"item": {"reference": f"Patient?name:contains={n}"}} for n in range(25_000)],
        },
    ),
    "many tags": send(
        "POST", "/Patient", {"resourceType": "Patient", "meta": {"tag": [{"code": str(n)} for n in range(90_000)]}}
    ),
    "many values": send("POST", "/Patient", {"resourceType": "Patient", "identifier": [{}] * 1_000_000}),
    "many entries": send("POST", "/", {"resourceType": "Bundle", "type": "batch", "entry": [{}] * 500_000}),
    "deep": send("POST", "/Patient", b'{"resourceType":"Patient","extension":' + b"[" * 2_000_000),
    "long number": send(
        "POST", "/Observation", b'{"resourceType":"Observation","valueInteger":' + b"1" * FOUR_MIB + b"}"
    ),
    "open string": send("POST", "/Patient", b'{"a":"' + b"\\" * FOUR_MIB),
    "open object": send("POST", "/Patient", b"{" + b" " * FOUR_MIB),
    "entities": send("POST", "/Patient", b'<!DOCTYPE x [<!ENTITY a "b">]><Patient xmlns="http://hl7.org/fhir"/>', XML),
    "tags of XML": send("POST", "/Patient", b"<Patient>" + b'<active value="true"/>' * 180_000, XML),
    "attributes of XML": send(
        "POST", "/Patient", b"<Patient " + b" ".join(b'a%d="1"' % n for n in range(300_000)), XML
    ),
    "deep XML": send("POST", "/Patient", b"<a>" * 1_000_000, XML),
    "paths of a patch": send(
        "PATCH",
        "/Patient/P",
        {
            "resourceType": "Parameters",
            "parameter": [
                {
                    "name": "operation",
                    "part": [
                        {"name": "type", "valueCode": "delete"},
                        {"name": "path", "valueString": "Patient" + ".where(name.exists())" * 90},
                    ],
                }
            ]
            * 1_000,
        },
    ),
    "copies of a patch": send(
        "PATCH", "/Patient/P", [{"op": "copy", "from": "/name", "path": "/name/0/x"}] * 1_000, PATCH
    ),
    "long pointer": send("PATCH", "/Patient/P", [{"op": "add", "path": "/a" * MIB, "value": 1}], PATCH),
}


@pytest.fixture(scope="module")
def loaded(hospital: World) -> Iterator[Session]:
    """A session with a patient P and a thousand observations."""
    with hospital.session(pretty=True) as session:
        session.load([{"resourceType": "Patient", "id": "P", "name": [{"family": "Doe"}]}])
        session.load(
            {
                "resourceType": "Observation",
                "id": f"o{n}",
                "status": "final",
                "code": {"coding": [{"code": f"c{n}"}]},
                "subject": {"reference": "Patient/P"},
                "note": [{"text": "words " * 50}],
            }
            for n in range(1_000)
        )
        session.handle(SEARCHES["chain to every type"])  # loads FHIR definitions once per process
        yield session


def measured(work: Callable[[], Response]) -> tuple[Response, int]:
    """Return the response and the peak memory in bytes."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [*SEARCHES, *BODIES])
def test_every_bomb_is_answered(loaded: Session, name: str) -> None:
    request = SEARCHES.get(name) or BODIES[name]
    start = loaded.checkpoint()
    answer = loaded.handle(request)
    assert 200 <= answer.status < 500
    assert len(answer.body) <= loaded.limits.answer_bytes
    assert answer.json()["resourceType"] in ("Bundle", "OperationOutcome", "Patient", "List")
    if answer.status >= 400:
        assert answer.json()["issue"][0]["diagnostics"]
        assert loaded.changes(start) == []
    loaded.rollback(start)


MEMORY = ["uri above", "a large page", "sort of 4 MB", "many tags", "open string", "tags of XML"]


@pytest.mark.parametrize("name", MEMORY)
def test_bombs_take_little_memory(loaded: Session, name: str) -> None:
    check_memory(loaded, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in (*SEARCHES, *BODIES) if name not in MEMORY])
def test_all_bombs_take_little_memory(loaded: Session, name: str) -> None:
    check_memory(loaded, name)


def check_memory(loaded: Session, name: str) -> None:
    start = loaded.checkpoint()
    _, peak = measured(lambda: loaded.handle(SEARCHES.get(name) or BODIES[name]))
    loaded.rollback(start)
    assert peak < MOST


@pytest.mark.parametrize("name", ["batch of histories", "batch of long chains", "batch of everything"])
def test_a_bundle_has_one_budget(loaded: Session, name: str) -> None:
    answer = loaded.handle(BODIES[name])
    assert answer.status == 400
    assert "together too costly" in answer.json()["issue"][0]["diagnostics"]


def test_five_patches_do_not_fill_the_memory(empty_world: World) -> None:
    with empty_world.session() as session:
        session.load([{"resourceType": "Patient", "id": "a", "name": [{"family": "x" * 1_000_000}]}])
        patch = send("PATCH", "/Patient/a", [{"op": "copy", "from": "/name/0", "path": "/name/-"}] * 1_000, PATCH)
        for _ in range(5):
            answer, peak = measured(lambda: session.handle(patch))
            assert answer.status == 413 and peak < MOST


def test_the_writes_of_a_session_are_bounded(empty_world: World) -> None:
    with empty_world.session(limits=Limits(overlay_bytes=4 * MIB)) as session:
        body: dict[str, Any] = {"resourceType": "Patient", "id": "a"}
        statuses = []
        for number in range(12):
            body["name"] = [{"family": f"{number}" + "x" * 500_000}]
            statuses.append(session.handle(send("PUT", "/Patient/a", body)).status)
        assert statuses[0] == 201 and statuses[-1] == 413
        assert session.handle(get("/Patient/a")).status == 200
        session.rollback()
        assert session.handle(send("PUT", "/Patient/a", body)).status == 201, "what was undone takes no room"


def test_a_page_ends_before_the_answer_is_too_large(empty_world: World) -> None:
    with empty_world.session(limits=Limits(answer_bytes=40_000)) as session:
        session.load({"resourceType": "Basic", "id": f"b{n:02}", "code": {"text": "x" * 3_000}} for n in range(30))
        for url in ("/Basic?_count=30", "/Basic?_count=30&_offset=0", "/Basic/_history?_count=30"):
            seen: list[str] = []
            while url:
                bundle = session.handle(get(url)).json()
                seen += [entry["resource"]["id"] for entry in bundle["entry"]]
                assert len(seen) <= 30
                links = {link["relation"]: link["url"] for link in bundle["link"]}
                url = links.get("next", "").removeprefix(session.base_url)
            assert sorted(seen) == [f"b{n:02}" for n in range(30)]
