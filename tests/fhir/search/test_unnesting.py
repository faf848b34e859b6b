"""Long chains and filters work despite the limited stack of SQLite's parser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fhir_gym.fhir import Request, Session, World
from fhir_gym.fhir.search import sql_query
from fhir_gym.fhir.search.predicates import Sql
from fhir_gym.fhir.search.sql_query import unnested


def test_values_follow_their_queries() -> None:
    inner = "SELECT a FROM t WHERE b IN (SELECT c FROM u WHERE d = ?) AND e = ?"
    text = f"SELECT x FROM v WHERE y = ? AND z IN ({inner}) AND (w = ? OR NOT (1)) LIMIT ?"
    query = text, (1, 2, 3, 4, 5)
    assert unnested(query) == query, "few are left where they are"
    whole: Sql = query
    for _ in range(5):
        whole = f"SELECT x FROM v WHERE z IN ({whole[0]}) AND y = ?", (*whole[1], 9)
    flat, values = unnested(whole)
    assert flat.count("?") == len(values) == len(whole[1])
    assert sorted(values) == sorted(whole[1])
    assert values[0] == 2, "the innermost comes first"
    assert "IN (SELECT * FROM nested0) AND e = ?" in flat


@pytest.fixture
def chained(clinic: World) -> Iterator[Session]:
    """A session with a patient whose organization is the lowest of a hierarchy of six."""
    with clinic.session() as session:
        above = {"partOf": {"reference": "Organization/top1"}}
        resources: list[dict[str, Any]] = [{"resourceType": "Organization", "id": "top0", "name": "Summit"}]
        for number in range(1, 5):
            resources.append(
                {"resourceType": "Organization", "id": f"top{number}", "name": f"Level {number}"}
                | {"partOf": {"reference": f"Organization/top{number - 1}"}}
            )
        resources.append({"resourceType": "Organization", "id": "mine"} | above)
        session.load(resources)
        yield session


@pytest.mark.parametrize("links", range(1, 5))
def test_long_chains_find_the_same_as_short_ones(chained: Session, links: int) -> None:
    query = "partof." * links + "name=Summit"
    found = chained.handle(Request("GET", "/Organization", query)).json()
    ids = [entry["resource"]["id"] for entry in found["entry"]]
    assert ids == ([f"top{links}", "mine"] if links == 2 else [f"top{links}"])


def test_it_makes_no_difference_where_they_stand(chained: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = ["partof.name=Summit", "partof.partof.name=Summit&_sort=name", "partof:missing=true&_total=accurate"]
    before = [chained.handle(Request("GET", "/Organization", query)).json().get("entry") for query in queries]
    monkeypatch.setattr(sql_query, "MAX_NESTED", 0)
    assert [chained.handle(Request("GET", "/Organization", query)).json().get("entry") for query in queries] == before


@pytest.mark.parametrize("links", range(1, 7))
def test_as_many_links_as_are_promised(clinic: World, links: int) -> None:
    with clinic.session() as session:
        url = "patient.organization." + "partof." * (links - 2) if links > 1 else "patient."
        assert session.handle(Request("GET", "/Observation", f"{url}name=x")).status == 200


@pytest.mark.parametrize("terms", [10, 30, 50])
@pytest.mark.parametrize("word", ["or", "and"])
def test_long_filters(clinic: World, terms: int, word: str) -> None:
    filters = ["gender%20eq%20male", "family%20eq%20Smith"]
    text = f"%20{word}%20".join((filters * terms)[:terms])
    with clinic.session() as session:
        long = session.handle(Request("GET", "/Patient", f"_filter={text}")).json()
        short = session.handle(Request("GET", "/Patient", f"_filter={f'%20{word}%20'.join(filters)}")).json()
    assert [e["resource"]["id"] for e in long["entry"]] == [e["resource"]["id"] for e in short["entry"]]
