"""Reading many resources of a remote server takes few requests and has the same result as reading each alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from fhir_gym.errors import InfraError
from fhir_gym.fhir import Request, World
from fhir_gym.fhir.adapters.remote_client import Key, RemoteClient, read_all
from fhir_gym.types import Resource
from tests.fhir.writing import FHIR, patient

URL = "http://x/fhir"
KEYS = [("Patient", "a"), ("Patient", "gone"), ("Patient", "never"), ("Observation", "a")]


class Server:
    """A server that answers reads and, as `batch` says, batches."""

    def __init__(self, respond: Callable[[httpx.Request], httpx.Response]) -> None:
        self.requests: list[str] = []
        self._respond = respond
        self.client = RemoteClient(URL, client=httpx.Client(transport=httpx.MockTransport(self._answer)))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request.method)
        return self._respond(request)

    def read_one(self, resource_type: str, id: str) -> Resource | None:
        response = self.client.read(f"/{resource_type}/{id}")
        return self.client.json(response) if response.status == 200 else None

    def read_all(self, keys: list[Key]) -> dict[Key, Resource | None]:
        return read_all(self.client, keys, self.read_one)


def embedded(world: World) -> Server:
    """A server with the embedded server behind it, which holds Patient/a and a deleted Patient/gone."""
    session = world.session()
    session.load([patient(id=id) for id in ("a", "gone", *(f"p{n}" for n in range(450)))])
    session.handle(Request("DELETE", "/Patient/gone"))

    def respond(request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().removeprefix("/fhir")
        answer = session.handle(Request(request.method, path, "", {"content-type": FHIR}, request.content))
        return httpx.Response(answer.status, headers=answer.headers, content=answer.body)

    return Server(respond)


def test_a_batch_tells_what_single_reads_tell(empty_world: World) -> None:
    server = embedded(empty_world)
    keys = [*KEYS, ("Patient", "a b/../?c"), ("Nothing", "x"), ("Patient", "ü")]
    found = server.read_all(keys)
    assert server.requests[0] == "POST"
    alone = {key: server.read_one(*key) for key in KEYS}
    assert {key: found[key] for key in KEYS} == alone
    assert [key for key, resource in found.items() if resource is not None] == [("Patient", "a")]


def test_the_number_of_requests(empty_world: World) -> None:
    server = embedded(empty_world)
    assert len(server.read_all([("Patient", f"p{n}") for n in range(450)] * 2)) == 450
    assert server.requests == ["POST"] * 3
    server.requests.clear()
    assert server.read_all([]) == {} and server.requests == []
    assert server.read_all(KEYS[:1])[KEYS[0]] and server.requests == ["GET"]


def entries(*listed: Any) -> httpx.Response:
    return httpx.Response(200, json={"resourceType": "Bundle", "type": "batch-response", "entry": listed})


FINE = {"response": {"status": "200 OK"}, "resource": {"resourceType": "Patient", "id": "a"}}
ABSENT = {"response": {"status": "404 Not Found"}}
UNCLEAR = [
    {"response": {"status": "500 Internal Server Error"}},
    {"response": {"status": "200 OK"}},
    {"response": {"status": 200}, "resource": {"resourceType": "Patient", "id": "other"}},
    {"response": []},
    "x",
    None,
]


@pytest.mark.parametrize("unclear", UNCLEAR, ids=str)
def test_a_resource_is_read_alone_if_its_entry_is_unclear(unclear: Any) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        return entries(unclear, ABSENT) if request.method == "POST" else httpx.Response(200, json=FINE["resource"])

    server = Server(respond)
    assert server.read_all(KEYS[:2]) == {KEYS[0]: FINE["resource"], KEYS[1]: None}
    assert server.requests == ["POST", "GET"]


@pytest.mark.parametrize(
    "refusal",
    [
        httpx.Response(400, json={"resourceType": "OperationOutcome"}),
        httpx.Response(413),
        entries(FINE),
        entries(),
        httpx.Response(200, json={"resourceType": "Bundle", "entry": {}}),
        httpx.Response(302, headers={"Location": "/elsewhere"}),
    ],
    ids=["400", "413", "too few", "none", "no list", "redirect"],
)
def test_resources_are_read_alone_if_the_server_does_not_answer_the_batch(refusal: httpx.Response) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        return refusal if request.method == "POST" else httpx.Response(200, json={"resourceType": "Patient"})

    server = Server(respond)
    assert all(server.read_all(KEYS[:2]).values())
    assert server.requests == ["POST", "GET", "GET"]


def test_a_failure_of_the_server_is_no_missing_resource() -> None:
    server = Server(lambda request: httpx.Response(500 if request.method == "POST" else 307, content=json.dumps({})))
    with pytest.raises(InfraError, match="redirects"):
        server.read_all(KEYS)
