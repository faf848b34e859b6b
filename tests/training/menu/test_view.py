"""What a view takes from the server's answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fhir_gym.training.menu import PLACES, Menu, Templates
from fhir_gym.training.menu.features import Features
from fhir_gym.training.menu.view import View

PATIENT = {"resourceType": "Patient", "id": "1"}


def view_of(answer: object, action: str = "GET /Patient?_count=3") -> View:
    view = View("A prompt")
    view.add(action, f"HTTP 200 OK\n{json.dumps(answer)}")
    return view


@pytest.mark.parametrize(
    "answer",
    [
        "text",
        [1],
        {"resourceType": ["Patient"], "id": "1"},
        {"resourceType": "Patient", "id": None},
        {"entry": None},
        {"entry": {"resource": PATIENT}},
        {"entry": ["text", None]},
        {"entry": [{"resource": None}, {"resource": "text"}, {"resource": {"id": "1"}}]},
        {"entry": [{"resource": {"resourceType": [1], "id": "1"}}]},
        {"entry": [], "total": "3"},
    ],
)
def test_malformed_answers_show_no_resources(templates: Templates, answer: Any) -> None:
    if isinstance(answer, dict) and "entry" in answer:
        answer = {"resourceType": "Bundle"} | answer
    assert view_of(answer).latest == {}
    session = Menu(templates).start("A prompt")
    session.add("GET /Patient", f"HTTP 200 OK\n{json.dumps(answer)}")
    features = Features(session)
    assert features.state().any()
    assert len(features.candidates(session.candidates())) == PLACES


def test_an_entry_with_a_malformed_search_is_read() -> None:
    view = view_of({"resourceType": "Bundle", "entry": [{"resource": PATIENT, "search": None}, {}], "total": None})
    assert list(view.latest) == ["Patient/1"]
    assert view.searches["Patient"].total == 1


def test_entries_before_an_entry() -> None:
    patients = [{"resource": PATIENT | {"id": str(number)}} for number in range(3)]
    view = view_of({"resourceType": "Bundle", "entry": patients})
    assert [[seen.id for seen in seen.before] for seen in view.last] == [[], ["0"], ["0", "1"]]


def test_the_entries_of_a_large_answer_are_kept_once() -> None:
    patients = [{"resource": PATIENT | {"id": str(number)}} for number in range(300)]
    view = view_of({"resourceType": "Bundle", "entry": patients})
    assert len({id(seen.entries) for seen in view.last}) == 1


def test_the_history_of_a_resource_shows_its_newest_version() -> None:
    versions = [{"resource": PATIENT | {"meta": {"versionId": str(number)}}} for number in (3, 2, 1)]
    view = view_of({"resourceType": "Bundle", "type": "history", "entry": versions}, "GET /Patient/1/_history")
    assert view.latest["Patient/1"].data["meta"]["versionId"] == "3"
