"""The interaction logs of the embedded server, and the logs derived from a remote server's responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fhir_gym.fhir import Limits, Request, Response, Session, World
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.fhir.adapters.remote_interactions import interactions
from fhir_gym.fhir.messages import Interaction
from tests.fhir.remote_writes import send
from tests.fhir.request_parts import request_parts
from tests.fhir.writing import entry, patient
from tests.property.scene import FHIR


@pytest.fixture(params=["embedded", "elsewhere"])
def session(request: pytest.FixtureRequest, world: World) -> Iterator[Session | RemoteSession]:
    if request.param == "embedded":
        with world.session() as embedded:
            yield embedded
    else:
        remote = RemoteSession(request.getfixturevalue("server"), world)
        yield remote
        remote.close()


def told(response: Response) -> list[str]:
    return [_told(interaction) for interaction in response.done]


def _told(interaction: Interaction) -> str:
    return " ".join(
        filter(
            None,
            (
                interaction.kind,
                interaction.operation,
                f"{interaction.resource_type}/{interaction.id}",
                interaction.effect,
            ),
        )
    )


NEW = patient("S1", "Changed")
OTHER = [{"op": "add", "path": "/gender", "value": "other"}]
LABELS = {
    "resourceType": "Parameters",
    "parameter": [{"name": "meta", "valueMeta": {"tag": [{"system": "urn:x", "code": "a"}]}}],
}


@pytest.mark.parametrize(
    ("method", "url", "body", "done"),
    [
        ("GET", "/Patient/S1", None, "read Patient/S1"),
        ("HEAD", "/Patient/S1", None, "read Patient/S1"),
        ("GET", "//Patient//S1/", None, "read Patient/S1"),
        ("GET", "/Patient?family=Alpha", None, "search Patient/"),
        ("POST", "/Patient/_search", None, "search Patient/"),
        ("GET", "/Patient/S1/_history", None, "history Patient/S1"),
        ("GET", "/Patient/_history", None, "history Patient/"),
        ("GET", "/_history", None, "history /"),
        ("GET", "/metadata", None, "capabilities /"),
        ("GET", "/Patient/S1/$meta", None, "operation $meta Patient/S1"),
        ("POST", "/Patient/$validate", NEW, "operation $validate Patient/"),
        ("POST", "/Patient/S1/$meta-add", LABELS, "update $meta-add Patient/S1 updated"),
        ("PUT", "/Patient/S1", NEW, "update Patient/S1 updated"),
        ("PUT", "/Patient/%531/", NEW, "update Patient/S1 updated"),
        ("PUT", "/Patient/S1/_history", NEW, "history Patient/S1"),
        ("PUT", "/Patient/S1/foo", NEW, "update Patient/S1 updated"),
        ("PUT", "/Patient/S1/$a/b", NEW, "update Patient/S1"),
        ("PUT", "/Patient/S1/_search", NEW, "update Patient/S1"),
        ("PUT", "/Patient/mine", patient("mine"), "update Patient/mine created"),
        ("PUT", "/Patient?family=Alpha", patient(None, "Alpha", active=False), "update Patient/S1 updated"),
        ("DELETE", "/Observation/o1/_history/1", None, "delete Observation/o1 deleted"),
        ("DELETE", "/Observation/o1/$a/b", None, "operation $a Observation/o1"),
        ("DELETE", "/Patient/S1/foo/_history", None, "history Patient/S1"),
        ("DELETE", "/Observation/nobody", None, "delete Observation/nobody"),
        ("DELETE", "/Observation?code=NOTHING", None, "delete Observation/"),
        ("DELETE", "/Patient/S1", None, "delete Patient/S1"),
        ("PUT", "/Patient/S1", b"{", "update Patient/S1"),
        ("POST", "/Patient", b"{", "create Patient/"),
        ("GET", "/Patient/nobody", None, "read Patient/nobody"),
    ],
)
def test_the_log_records_each_interaction(
    session: Session | RemoteSession, method: str, url: str, body: Any, done: str
) -> None:
    response = send(session, method, url, body)
    assert told(response) == [done]
    assert response.done[0].status == response.status
    assert bool(session.changes()) == done.endswith("d")


def test_patches_with_and_without_changes(session: Session | RemoteSession) -> None:
    patched = send(session, "PATCH", "/Patient/S2/_history/1", OTHER, content_type="application/json-patch+json")
    assert told(patched) == ["patch Patient/S2 updated"]
    again = send(session, "PATCH", "/Patient/S2", OTHER, content_type="application/json-patch+json")
    assert told(again) == ["patch Patient/S2"]
    assert told(send(session, "PUT", "/Patient/S1", NEW)) == ["update Patient/S1 updated"]
    assert told(send(session, "PUT", "/Patient/S1", NEW)) == ["update Patient/S1"]


def test_creates_with_and_without_a_match(session: Session | RemoteSession) -> None:
    made = send(session, "POST", "/Patient", patient(None, "Neu"), if_none_exist="family=Neu")
    (done,) = made.done
    assert (done.kind, done.effect, done.status) == ("create", "created", 201) and done.id
    again = send(session, "POST", "/Patient", patient(None, "Neu"), if_none_exist="family=Neu")
    assert told(again) == [f"create Patient/{done.id}"]


BUNDLE = [
    ("GET", "Patient/S1", None, "read Patient/S1"),
    ("POST", "Patient/_search", {"resourceType": "Basic", "code": {"text": "x"}}, "create Basic/ created"),
    ("POST", "Basic/_history", {"resourceType": "Basic", "code": {"text": "x"}}, "create Basic/ created"),
    ("POST", "Basic/$x", {"resourceType": "Basic", "code": {"text": "x"}}, "create Basic/ created"),
    ("PUT", "Patient/S2/_history/1", patient("S2", "Changed"), "update Patient/S2 updated"),
    ("DELETE", "Observation/o1/_history/1", None, "delete Observation/o1 deleted"),
    ("GET", "Observation?subject=Patient/S1", None, "search Observation/"),
]


@pytest.mark.parametrize("kind", ["batch", "transaction"])
def test_entries_with_unusual_urls(session: Session | RemoteSession, kind: str) -> None:
    entries = [entry(method, url, body) for method, url, body, _ in BUNDLE]
    response = send(session, "POST", "/", {"resourceType": "Bundle", "type": kind, "entry": entries})
    assert response.status == 200, response.text
    found = [text.split("/")[0] + "/" + text.split("/")[1].lstrip("0123456789") for text in told(response)]
    assert found == [done for *_, done in BUNDLE]
    assert [interaction.entry for interaction in response.done] == list(range(len(BUNDLE)))


def test_a_transaction_that_fails_did_nothing(session: Session | RemoteSession) -> None:
    entries = [entry("PUT", "Patient/S2", patient("S2", "Changed")), entry("DELETE", "Patient/S1")]
    bundle = {"resourceType": "Bundle", "type": "transaction", "entry": entries}
    response = send(session, "POST", "/", bundle)
    assert response.status == 409
    assert told(response) == ["update Patient/S2", "delete Patient/S1"]
    assert {interaction.status for interaction in response.done} == {409}
    bundle["type"] = "batch"
    response = send(session, "POST", "/", bundle)
    assert told(response) == ["update Patient/S2 updated", "delete Patient/S1"]
    assert response.done[1].status == 409


def test_a_bundle_in_xml(session: Session | RemoteSession) -> None:
    body = (
        b'<Bundle xmlns="http://hl7.org/fhir"><type value="batch"/><entry><resource><Patient><id value="S2"/>'
        b'<active value="true"/></Patient></resource><request><method value="PUT"/>'
        b'<url value="Patient/S2/_history"/></request></entry></Bundle>'
    )
    response = send(session, "POST", "/", body, content_type="application/fhir+xml")
    assert told(response) == ["update Patient/S2 updated"]


def test_a_write_with_a_failed_response_is_undone(session: Session | RemoteSession) -> None:
    before = send(session, "GET", "/Patient/S1").json()
    response = send(session, "PUT", "/Patient/S1?_elements=id&_summary=true", NEW)
    assert response.status == 400
    assert told(response) == ["update Patient/S1"]
    assert send(session, "GET", "/Patient/S1").json() == before


def test_a_write_with_an_oversized_response_is_undone(world: World) -> None:
    with world.session(limits=Limits(answer_bytes=20)) as session:
        response = send(session, "PUT", "/Patient/S1", NEW)
        assert response.status == 413
        assert told(response) == ["update Patient/S1"]
        assert response.done[0].status == 413
        assert session.changes() == []


def test_the_log_is_not_part_of_the_response(world: World) -> None:
    with world.session() as session:
        response = send(session, "GET", "/Patient/S1")
        assert response == Response(response.status, response.headers, response.body)
        assert "done" not in repr(response)


def answered(method: str, path: str, response: Response, body: Any = None) -> list[str]:
    """Return the interactions that follow from a remote server's response, without a comparison of the resources."""
    request = Request(method, path, "", {"content-type": FHIR}, json.dumps(body).encode())
    parts = request_parts(request)
    return [_told(interaction) for interaction in interactions(request, response, parts, [[] for _ in parts])]


def test_a_response_without_details_is_logged_as_the_worst_case() -> None:
    done = json.dumps({"resourceType": "Bundle", "type": "batch-response", "entry": [{"response": {"status": "200"}}]})
    assert answered("POST", "/Patient", Response(200, {}, b"")) == ["create Patient/ created"]
    assert answered("POST", "/Patient", Response(400, {}, b"")) == ["create Patient/"]
    labels = answered("POST", "/Patient/S1/$meta-add", Response(200, {}, b"{}"))
    assert labels == ["update $meta-add Patient/S1 updated"]
    assert answered("POST", "/Patient/$everything", Response(200, {}, b"{}")) == ["operation $everything Patient/"]
    asked = {"entry": [{"request": {"method": "POST", "url": "Patient"}}, {"request": {"method": "GET", "url": ""}}]}
    assert answered("POST", "/", Response(200, {}, done.encode()), asked)[0] == "create Patient/ created"
    assert answered("POST", "/", Response(400, {}, done.encode()), asked)[0] == "create Patient/"
