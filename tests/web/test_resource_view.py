from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from fhir_gym.types import Resource
from fhir_gym.web.episode_replay import Difference, differences
from fhir_gym.web.resource_view import (
    MAX_ROWS,
    Node,
    Target,
    ViewLimits,
    columns_of,
    find_element,
    target_of,
    tree,
    view_json,
    view_text,
)

PATIENT = {"resourceType": "Patient", "id": "p1", "name": [{"family": "Lee", "given": ["Ann"]}], "gender": "female"}
PULSE = {
    "resourceType": "Observation",
    "id": "o1",
    "status": "final",
    "code": {"text": "Heart rate"},
    "subject": {"reference": "Patient/p1"},
    "valueQuantity": {"value": 72, "unit": "/min"},
}


def bundle(*resources: Resource, **elements: Any) -> Resource:
    return {
        "resourceType": "Bundle",
        "type": "searchset",
        "entry": [{"resource": resource} for resource in resources],
        **elements,
    }


def test_a_bundle_is_one_table_for_each_type_with_links() -> None:
    view = view_json(bundle(PULSE, PATIENT, total=12, link=[{"relation": "next", "url": "http://x/?page=2"}]))
    assert (view.kind, view.heading) == ("bundle", "Bundle: 2 entries of 12 matches")
    pulse, patient = view.tables
    assert pulse.columns == ("id", "code", "value", "subject", "status")
    assert [cell.text for cell in pulse.rows[0]] == ["o1", "Heart rate", "72 /min", "Patient/p1", "final"]
    assert pulse.rows[0][0].target == Target("Observation", "o1")
    assert pulse.rows[0][3].target == Target("Patient", "p1")
    assert patient.columns == ("id", "name", "gender")
    assert view.links == (("next", "http://x/?page=2"),)


def test_included_entries_and_long_bundles_are_marked() -> None:
    many = [PATIENT | {"id": f"p{number}"} for number in range(MAX_ROWS + 5)]
    [table] = view_json(bundle(*many)).tables
    assert (len(table.rows), table.number) == (MAX_ROWS, MAX_ROWS + 5)
    included = bundle(PATIENT) | {"entry": [{"resource": PATIENT, "search": {"mode": "include"}}]}
    [table] = view_json(included).tables
    assert (table.columns[1], table.rows[0][1].text) == ("found as", "include")


def test_a_transaction_response_is_a_table_of_its_entries() -> None:
    outcome = {"resourceType": "OperationOutcome", "issue": [{"severity": "error", "diagnostics": "no such patient"}]}
    entries = [{"response": {"status": "201", "location": "Patient/7/_history/1"}}, {"response": {"outcome": outcome}}]
    [table] = view_json({"resourceType": "Bundle", "type": "transaction-response", "entry": entries}).tables
    assert [cell.text for cell in table.rows[0]] == ["1", "", "Patient/7/_history/1", "201", ""]
    assert table.rows[0][2].target == Target("Patient", "7")
    assert table.rows[1][4].text == "no such patient"


def test_an_operation_outcome_lists_its_issues() -> None:
    issue = {"severity": "error", "code": "processing", "diagnostics": "HAPI-0302: Unknown resource type"}
    view = view_json({"resourceType": "OperationOutcome", "issue": [issue, 3]})
    assert view.kind == "outcome" and view.heading == "OperationOutcome: HAPI-0302: Unknown resource type"
    assert view.issues == (("error", "processing", "HAPI-0302: Unknown resource type"),)


def test_a_resource_is_a_tree_in_which_references_have_targets() -> None:
    view = view_text(json.dumps(PULSE))
    assert (view.kind, view.heading) == ("resource", "Observation/o1: Heart rate")
    [root] = view.trees
    subject = next(child for child in root.children if child.name == "subject")
    assert subject.children == (Node("reference", root.children[4].children[0].cell),)
    assert subject.children[0].cell.target == Target("Patient", "p1")
    assert json.loads(view.source) == PULSE


def test_long_texts_and_attachments_can_be_unfolded() -> None:
    text = "A rule.\n" * 100
    data = base64.b64encode(text.encode()).decode()
    attachment = {"contentType": "text/plain", "data": data}
    assert tree(attachment).children[1].name == "data (decoded)" and tree(attachment).children[1].text == text
    assert tree({"contentType": "image/png", "data": data}).children[1].text == data
    assert tree(attachment | {"data": "not base64"}).children[1].cell.text == "not base64"
    assert tree({"comment": "short"}).children[0].text == ""


def test_a_cell_has_a_link_for_each_reference() -> None:
    actors = [{"actor": {"reference": "Patient/1"}}, {"actor": {"reference": "Location/2", "display": "Room"}}]
    [table] = view_json(bundle({"resourceType": "Appointment", "id": "a", "participant": actors})).tables
    cell = table.rows[0][table.columns.index("participant.actor")]
    assert [part.target for part in cell.parts] == [Target("Patient", "1"), Target("Location", "2")]


def test_types_without_chosen_columns_show_summary_elements() -> None:
    device = {"resourceType": "Device", "id": "d", "meta": {}, "status": "active", "note": [{"text": "n"}]}
    assert [column.title for column in columns_of([device])] == ["status"]
    assert columns_of([{"resourceType": "Nothing", "id": "n"}]) == ()
    assert columns_of([]) == ()


@pytest.mark.parametrize(
    ("path", "found"),
    [("valueQuantity.value", 72), ("value[x]", {"value": 72, "unit": "/min"}), ("code.text", "Heart rate")],
)
def test_elements_are_found_by_path(path: str, found: Any) -> None:
    assert find_element(PULSE, path) == found
    assert find_element({"values": 1}, "value[x]") is None


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ({"reference": "Patient/1"}, Target("Patient", "1")),
        ("http://localhost:8080/fhir/Patient/1/_history/2", Target("Patient", "1")),
        ("http://example.org/Patient/1", None),
        ("javascript:alert(1)", None),
        ("Patient/../../etc", None),
        ({"reference": ["Patient/1"]}, None),
        (None, None),
    ],
)
def test_only_references_to_this_server_have_a_target(value: Any, target: Target | None) -> None:
    assert target_of(value) == target


@pytest.mark.parametrize(
    "value",
    [
        {"resourceType": "Bundle", "entry": {"resource": 1}, "link": "x", "total": "many"},
        {"resourceType": "Bundle", "entry": [1, {"resource": {"resourceType": ["x"], "id": {}}}, {"response": 4}]},
        {"resourceType": "Bundle", "entry": [{"search": 1, "resource": {"resourceType": "Patient", "id": 9}}]},
        {"resourceType": "OperationOutcome", "issue": {"severity": 1}},
        {"resourceType": "", "id": None},
        {"resourceType": "Patient.contact", "id": 1, "name": "x"},
        {"resourceType": 1},
        {},
        [],
        7,
        "text",
        None,
    ],
)
def test_malformed_content_still_has_a_view(value: Any) -> None:
    assert view_json(value).source


def test_deep_and_large_content_is_shortened() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert view_text(deep).kind == "text"
    nested: Any = "end"
    for _ in range(300):
        nested = {"child": nested}
    assert "only in the JSON" in repr(tree(nested))
    wide = tree({f"e{number}": number for number in range(10_000)})
    assert len(wide.children) < 2_000 and wide.children[-1].cell.text.endswith("more elements only in the JSON")
    view = view_text("x" * 1_000, limits=ViewLimits(characters=10))
    assert (view.source, view.left_out) == ("x" * 10, 990)


def test_differences_name_the_elements_and_ignore_version_and_time() -> None:
    before = {"status": "free", "meta": {"versionId": "1", "tag": [1]}, "name": [{"given": ["A", "B"]}], "old": "x"}
    after = {"status": "busy", "meta": {"versionId": "2", "tag": [1]}, "name": [{"given": ["A"]}], "new": {"text": "y"}}
    assert differences(before, after) == (
        Difference("status", "free", "busy"),
        Difference("name[1].given[2]", "B", None),
        Difference("old", "x", None),
        Difference("new", None, "y"),
    )
    assert differences(before, before) == ()
