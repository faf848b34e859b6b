from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fhir_gym.actions import Action, Delete, Get, Patch, Post, Put, to_request
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.remote_interactions import interactions
from fhir_gym.fhir.messages import Interaction, Request, Response
from fhir_gym.tasks.grading.end_state import LoggedRequest
from fhir_gym.tasks.grading.tool_usage import measure
from tests.fhir.request_parts import request_parts

BASE = "http://localhost:8080/fhir"


def logged(action: Action, status: int = 200, body: Any = None) -> LoggedRequest:
    request = to_request(action, BASE)
    assert isinstance(request, Request)
    response = Response(status, body=json.dumps(body).encode())
    parts = request_parts(request)
    done = interactions(request, response, parts, [[]] * len(parts))
    return LoggedRequest(action, request, replace(response, done=done))


def bundle(*requests: tuple[str, str]) -> dict[str, Any]:
    entries = [{"request": {"method": method, "url": url}} for method, url in requests]
    return {"resourceType": "Bundle", "type": "batch", "entry": entries}


def test_entries_of_a_bundle_count_one_by_one() -> None:
    sent = bundle(("GET", "Patient?family=Lee"), ("DELETE", "Patient/1"), ("POST", "Patient"))
    answer = {"entry": [{"response": {"status": s}} for s in ("200 OK", "404 Not Found", "201 Created")]}
    process = measure([logged(Post("/", sent), 200, answer)])
    assert process.requests == {"create": 1, "delete": 1, "search": 1}
    assert process.errors == {"delete": 1}


def test_a_refused_bundle_fails_as_a_whole() -> None:
    process = measure([logged(Post("", bundle(("PUT", "Patient/1"), ("DELETE", "Patient/2"))), 400)])
    assert process.errors == {"delete": 1, "update": 1}


@pytest.mark.parametrize("body", ["{", "[]", '{"entry": 1}', '{"entry": [1, {"request": 2}]}', "[" * 2_000])
def test_an_invalid_bundle_is_still_a_request(empty_world: World, body: str) -> None:
    action = Post("/", body)
    request = to_request(action, BASE)
    assert isinstance(request, Request)
    with empty_world.session() as session:
        process = measure([LoggedRequest(action, request, session.handle(request))])
    assert set(process.requests) == {"other"}


def test_errors_by_tool() -> None:
    process = measure([logged(Get("/Patient/1"), 404), logged(Get("/Patient/2")), logged(Delete("/Patient/1"), 200)])
    assert process.requests == {"delete": 1, "read": 2}
    assert process.errors == {"read": 1}


def test_calls_by_tool_and_resource_type() -> None:
    process = measure(
        [
            logged(Get("/Patient?family=Lee")),
            logged(Get("/Patient?family=Lea"), 400),
            logged(Get(f"{BASE}?_getpages=1")),
        ]
    )
    assert [(call.tool, call.resource_type, call.requests, call.errors) for call in process.calls] == [
        ("search", "", 1, 0),
        ("search", "Patient", 2, 1),
    ]


def test_a_delete_with_an_outcome_is_no_error() -> None:
    outcome = {"resourceType": "OperationOutcome", "issue": [{"severity": "information", "code": "informational"}]}
    process = measure([logged(Delete("/Patient/1"), 200, outcome)])
    assert process.errors == {}
    assert process.calls[0].errors == 0


TEMPLATES = (("search", "update", "update"), ("create",))


@pytest.mark.parametrize(
    ("actions", "selected", "ordered"),
    [
        ((Get("/Slot"), Put("/Slot/1", {}), Put("/Slot/2", {})), True, True),
        ((Get("/Slot"), Patch("/Slot/1", []), Get("/Slot/1"), Put("/Slot/2", {})), True, True),
        ((Put("/Slot/1", {}), Get("/Slot"), Put("/Slot/2", {})), True, False),
        ((Get("/Slot"), Put("/Slot/1", {})), False, False),
        ((Get("/Slot/1"), Post("/Slot", {})), True, True),
        ((), False, False),
    ],
)
def test_templates(actions: tuple[Action, ...], selected: bool, ordered: bool) -> None:
    process = measure([logged(action) for action in actions], templates=TEMPLATES)
    assert (process.tools_selected, process.tools_in_order) == (selected, ordered)


def test_without_templates_there_is_no_overlap() -> None:
    process = measure([logged(Get("/Slot"))])
    assert (process.tools_selected, process.tools_in_order, process.overlap) == (None, None, None)


def test_overlap_with_the_nearest_template() -> None:
    used = [logged(Get("/Slot")), logged(Get("/Slot/1")), logged(Put("/Slot/1", {}))]
    overlap = measure(used, templates=TEMPLATES).overlap
    assert overlap is not None
    assert (overlap.lcs, overlap.jaccard, overlap.f1) == (2 / 3, 2 / 4, 4 / 6)
    nothing = measure([], templates=TEMPLATES).overlap
    assert nothing is not None
    assert (nothing.lcs, nothing.jaccard, nothing.f1) == (0.0, 0.0, 0.0)


def test_required_types_count_in_url_body_or_answer() -> None:
    answer = {"resourceType": "Bundle", "entry": [{"resource": {"resourceType": "Slot", "id": "1"}}]}
    body = {"resourceType": "Appointment", "slot": [{"reference": "Slot/1"}], "subject": {"reference": "Patient/1"}}
    required = ("Slot", "Schedule", "Appointment", "Patient")
    assert measure([logged(Get("/Schedule"), 200, answer)], required=required).untouched == ("Appointment", "Patient")
    assert measure([logged(Post("/Appointment", body))], required=required).untouched == ("Schedule",)
    assert measure([], required=required).untouched == required


def test_prohibited_tools_are_named() -> None:
    sent = bundle(("GET", "Patient"), ("DELETE", "Patient/1"))
    process = measure([logged(Post("/", sent))], prohibited=("delete", "create"))
    assert process.prohibited == ("delete",)


def test_a_put_that_creates_uses_both_tools() -> None:
    put = logged(Put("/Patient/mine", {"resourceType": "Patient", "id": "mine"}), 201)
    new = replace(put.response, done=(Interaction("update", "Patient", "mine", 201, "created"),))
    made = replace(put, response=new)
    assert measure([made], prohibited=("create", "delete")).prohibited == ("create",)
    assert measure([made], prohibited=("update",)).prohibited == ("update",)
    assert measure([put], prohibited=("create",)).prohibited == ()
