"""Compact observations say what HTTP observations say, in fewer characters."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym import Episode, run
from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir import Response
from fhir_gym.observations import format_response, read_response
from fhir_gym.tasks import pack_ids, task_keys

ENV = "FHIRAgent/Appointment-v0"


def response_to(body: Any, status: int = 200) -> Response:
    return Response(status, body=json.dumps(body).encode())


def test_a_bundle_is_its_total_its_next_page_and_one_resource_a_line() -> None:
    patient = {"resourceType": "Patient", "id": "1", "meta": {"versionId": "2", "lastUpdated": "…"}}
    bundle = {
        "resourceType": "Bundle",
        "id": "x",
        "type": "searchset",
        "total": 2,
        "link": [{"relation": "self", "url": "/Patient"}, {"relation": "next", "url": "/?_getpages=1"}],
        "entry": [{"fullUrl": "/Patient/1", "resource": patient, "search": {"mode": "match"}}],
    }
    text = format_response(response_to(bundle), observations="compact")
    assert text == '200 {"total":2,"next":"/?_getpages=1"}\n{"resourceType":"Patient","id":"1"}'
    response = read_response(text)
    assert response is not None and response.json() == {
        "resourceType": "Bundle",
        "type": "searchset",
        "total": 2,
        "link": [{"relation": "next", "url": "/?_getpages=1"}],
        "entry": [{"resource": {"resourceType": "Patient", "id": "1"}}],
    }


def test_live_tasks_show_the_time_and_the_versions_of_records() -> None:
    record = {"resourceType": "Task", "id": "1", "meta": {"versionId": "2", "lastUpdated": "…"}}
    text = format_response(response_to(record), datetime(2026, 1, 1, 9, 30, tzinfo=UTC), "compact")
    assert text == '200 (09:30:00)\n{"resourceType":"Task","id":"1","meta":{"versionId":"2"}}'
    response = read_response(text)
    assert response is not None and response.status == 200


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (Response(204), "204"),
        (Response(201, {"Location": "/Patient/1"}), "201\nLocation: /Patient/1"),
        (Response(200, body=b"<Patient/>"), "200\n<Patient/>"),
        (
            Response(200, body=b'{"resourceType":"Observation","value":1.50}'),
            '200\n{"resourceType":"Observation","value":1.50}',
        ),
    ],
)
def test_other_responses(response: Response, text: str) -> None:
    assert format_response(response, observations="compact") == text
    parsed = read_response(text)
    assert parsed is not None and (parsed.status, parsed.body) == (response.status, response.body)


def test_a_transaction_shows_what_became_of_each_entry() -> None:
    created = {"status": "201 Created", "location": "Patient/1/_history/1"}
    entry = {"response": {**created, "etag": "1", "lastModified": "…"}}
    bundle = {"resourceType": "Bundle", "type": "transaction-response", "entry": [entry]}
    text = format_response(response_to(bundle), observations="compact")
    head, line = text.split("\n")
    assert head == '200 {"type":"transaction-response"}'
    assert json.loads(line) == {"response": created}


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    read_response(text)
    read_response(f"200 {{{text}")
    read_response(f'200 {{"total":1}}\n{text}')


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="form of observations"):
        Episode(ENV, task="01", observations="short")  # type: ignore[arg-type]


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("env_id", pack_ids())
def test_the_reference_solutions_succeed_on_compact_observations(env_id: str, every: int) -> None:
    keys = [key for key in task_keys(env_id) if not key.startswith("day-")][::every]
    lengths: dict[str, int] = {}
    for form in ("http", "compact"):
        rollouts = [*run(env_id, "gold", tasks=keys, variations=1, observations=form)]
        assert [rollout.task.key for rollout in rollouts if not rollout.success] == []
        assert {rollout.observations for rollout in rollouts} == {form}
        lengths[form] = sum(len(turn.observation) for rollout in rollouts for turn in rollout.turns)
    assert lengths["compact"] < 0.75 * lengths["http"]
