"""Actions as skeletons with leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fhir_gym.actions import Get, Put
from fhir_gym.training.menu.actions import fill, meaning, split_action
from fhir_gym.training.menu.view import View

BEFORE: dict[str, Any] = {
    "resourceType": "Appointment",
    "id": "A1",
    "status": "proposed",
    "participant": [
        {"actor": {"reference": "Patient/S1"}, "status": "accepted"},
        {"actor": {"reference": "Practitioner/P1"}, "status": "declined"},
    ],
    "supportingInformation": [{"reference": "Condition/C1"}],
    "comment": "first",
}


def seen(resource: dict[str, Any]) -> View:
    view = View("A prompt")
    view.add("GET /Appointment/A1", f"HTTP 200 OK\n{json.dumps(resource)}")
    return view


@pytest.mark.parametrize(
    "action",
    [
        Get("/Patient", {"family": "Peña", "birthdate": "ge1990-01-01"}).text(),
        "GET /Patient/S1",
        "DELETE /Appointment/A1",
        'POST /Account\n{"resourceType": "Account", "subject": [{"reference": "Patient/S1"}], "active": true}',
        "FINISH([])",
        'FINISH([3, "a", "b", "c"])',
    ],
)
def test_a_split_action_can_be_put_together_again(action: str) -> None:
    view = View("A prompt")
    splits = split_action(action, view)
    assert splits
    for skeleton, leaves in splits:
        text = fill(skeleton, [value for _, value in leaves], view)
        assert text is not None and meaning(text) == meaning(action)


def test_an_update_is_split_into_edits() -> None:
    after = json.loads(json.dumps(BEFORE))
    after["status"] = "booked"
    after["participant"][1] = {"actor": {"reference": "Practitioner/P2"}, "status": "accepted"}
    after["supportingInformation"].append({"reference": "Condition/C2"})
    del after["comment"]
    view = seen(BEFORE)
    action = Put("/Appointment/A1", after).text()
    skeleton, leaves = split_action(action, view)[0]
    assert [edit[:2] for edit in skeleton["edits"]] == [
        ["set", ["status"]],
        ["set", ["participant", "@Practitioner", "actor", "reference"]],
        ["set", ["participant", "*", "status"]],
        ["append", ["supportingInformation"]],
        ["remove", ["comment"]],
    ]
    text = fill(skeleton, [value for _, value in leaves], view)
    assert text is not None and meaning(text) == meaning(action)
    again = seen(after)
    assert fill(skeleton, [value for _, value in leaves], again) is None, "an update without a change is no action"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ["a", "c"]},
        {"name": ["a", "b", "c"]},
        {"name": ["a"]},
        {"note": ["new"]},
        {"note": [{"reference": "Patient/1"}, "text"]},
        {"note": [{"reference": "Patient/1"}, {"text": "x"}]},
    ],
)
def test_updates_of_lists_can_be_put_together_again(changes: dict[str, Any]) -> None:
    before = {"resourceType": "Basic", "id": "B1", "name": ["a", "b"]}
    view = View("A prompt")
    view.add("GET /Basic/B1", f"HTTP 200 OK\n{json.dumps(before)}")
    action = Put("/Basic/B1", before | changes).text()
    for skeleton, leaves in split_action(action, view):
        text = fill(skeleton, [value for _, value in leaves], view)
        assert text is not None and meaning(text) == meaning(action)


@pytest.mark.parametrize("value", ['{"$": 1}', '[{"$several": 0}]', "1e40"])
def test_unusual_bodies_can_be_put_together_again(value: str) -> None:
    view = View("A prompt")
    action = f'POST /Basic\n{{"resourceType": "Basic", "code": {value}}}'
    [(skeleton, leaves)] = split_action(action, view)
    text = fill(skeleton, [value for _, value in leaves], view)
    assert text is not None and meaning(text) == meaning(action)


def test_large_numbers_can_be_filled() -> None:
    view = View("A prompt")
    for number in ("123456789012345678901234567890", "1e999"):
        for skeleton, leaves in split_action(f'POST /Basic\n{{"resourceType": "Basic", "code": {number}}}', view):
            assert fill(skeleton, [value for _, value in leaves], view)


def test_other_texts_are_not_split() -> None:
    view = View("A prompt")
    assert split_action("hello", view) == []
    assert split_action("PUT /Appointment/A1\n[1]", seen(BEFORE)) == [], "an update needs a resource"
    assert split_action(Put("/Appointment/A1", BEFORE).text(), view) == [], "the resource was never seen"
