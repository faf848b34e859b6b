"""Searches that people type: the server's answers, with pages that any session can return."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from fhir_gym.fhir import World
from fhir_gym.web.world_search import PAGE_SIZE, WorldAnswer, answer_in_world, without_paging


def ids(answer: WorldAnswer) -> list[str]:
    assert answer.response is not None
    return [entry["resource"]["id"] for entry in answer.response.json().get("entry", [])]


@pytest.mark.parametrize(
    "text",
    [
        "Patient?family=lee",
        "/Patient?family=lee",
        " GET Patient?family=lee ",
        "http://localhost:8080/fhir/Patient?family=lee",
    ],
)
def test_a_search_is_written_as_agents_write_it(tiny_world: World, text: str) -> None:
    answer = answer_in_world(tiny_world, text)
    assert ids(answer) == ["S1"]
    assert (answer.problem, answer.following, answer.previous) == (None, None, None)


def test_a_single_resource_can_be_read(tiny_world: World) -> None:
    answer = answer_in_world(tiny_world, "Patient/S2")
    assert answer.response is not None and answer.response.json()["id"] == "S2"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "write a search"),
        ("http://example.org/Patient", "only the server at"),
        ("Patient/../x", "must not contain"),
    ],
)
def test_other_texts_are_refused(tiny_world: World, text: str, problem: str) -> None:
    answer = answer_in_world(tiny_world, text)
    assert answer.response is None
    assert answer.problem is not None and problem in answer.problem


@pytest.mark.parametrize("text", ["POST Patient", "DELETE Patient/S1", "FINISH([])"])
def test_a_world_is_only_read(tiny_world: World, text: str) -> None:
    answer = answer_in_world(tiny_world, text)
    assert answer.problem is not None or (answer.response is not None and answer.response.status == 404)
    assert tiny_world.read("Patient", "S1") is not None
    assert len(ids(answer_in_world(tiny_world, "Patient"))) == 2


def test_errors_are_those_of_the_server(tiny_world: World) -> None:
    answer = answer_in_world(tiny_world, "Patient?wrong=1")
    assert answer.response is not None
    assert (answer.response.status, answer.response.json()["resourceType"]) == (400, "OperationOutcome")


def test_pages_lead_through_all_matches_and_back(hospital: World) -> None:
    total = hospital.manifest.counts["Encounter"]
    first = answer_in_world(hospital, "Encounter?status=finished,planned,cancelled,in-progress")
    assert len(ids(first)) == PAGE_SIZE < total
    found, page = ids(first), first
    while page.following:
        page = answer_in_world(hospital, page.following)
        found += ids(page)
    assert len(found) == len(set(found)) == total
    assert page.previous is not None
    assert len(ids(answer_in_world(hospital, page.previous))) == PAGE_SIZE


def test_page_sizes_and_summaries_are_respected(hospital: World) -> None:
    assert len(ids(answer_in_world(hospital, "Encounter?_count=3"))) == 3
    assert ids(answer_in_world(hospital, "Encounter?_summary=count")) == []
    assert answer_in_world(hospital, f"Patient/{hospital.ids('Patient')[0]}/$everything?_count=2").more_elsewhere


@pytest.mark.parametrize(
    ("request_text", "shown"),
    [
        ("Patient?name=o%27brien&_count=50&_offset=50&_total=accurate", "Patient?name=o'brien"),
        ("Patient?_offset=0", "Patient"),
        ("Patient", "Patient"),
        ("Patient?_count=3&_offset=3", "Patient?_count=3"),
        ("Patient?name=a+b", "Patient?name=a b"),
        ("Patient?name=a%26b%2Bc", "Patient?name=a%26b%2Bc"),
        ("Patient?name=a%3Db", "Patient?name=a%3Db"),
        ("Patient?name=%zz", "Patient?name=%zz"),
    ],
)
def test_a_search_is_shown_as_a_person_would_write_it(request_text: str, shown: str) -> None:
    assert without_paging(request_text) == shown


@pytest.mark.parametrize("name", ["a&b", "a+b", "50%", "a=b", "Zoë", "a#b"])
def test_what_is_shown_means_the_same(tiny_world: World, name: str) -> None:
    text = f"Patient?name={quote(name)}"
    first, again = answer_in_world(tiny_world, text), answer_in_world(tiny_world, without_paging(text))
    assert first.response is not None and again.response is not None
    assert first.response.json()["link"] == again.response.json()["link"]
