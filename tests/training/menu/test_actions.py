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


def test_other_texts_are_not_split() -> None:
    view = View("A prompt")
    assert split_action("hello", view) == []
    assert split_action(Put("/Appointment/A1", BEFORE).text(), view) == [], "the resource was never seen"
