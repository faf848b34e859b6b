"""A server that does something else than a request asks for is noticed at once, and what it did is undone."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import pytest
from typing_extensions import override

from fhir_gym import worlds
from fhir_gym.errors import InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.fhir.adapters.server_lock import state_dir
from tests.fhir.remote_writes import CLIENT, bundle, send, state
from tests.fhir.writing import entry, patient
from tests.property.scene import FHIR

Meddle = Callable[["Meddler", httpx.Request], httpx.Response]
HEADERS = {"content-type": FHIR}


class Meddler(httpx.HTTPTransport):
    """Sends requests; but meddles with the writes of an agent, once it is armed."""

    def __init__(self, server: str, meddle: Meddle, *, history: bool = True) -> None:
        super().__init__(verify=False)
        self.server, self.meddle, self.history = server, meddle, history
        self.armed = False

    @override
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/fhir/_history") and not self.history:
            return httpx.Response(501)
        if self.armed and request.method != "GET" and not only_reads(request):
            self.armed = False
            return self.meddle(self, request)
        return self.send(request)

    def send(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        return httpx.Response(response.status_code, headers=plain(response), content=response.read())

    def put(self, id: str) -> httpx.Response:
        content = json.dumps(patient(id, "Meddled"))
        return CLIENT.put(f"{self.server}/Patient/{id}", content=content, headers=HEADERS)


def plain(response: httpx.Response) -> dict[str, str]:
    dropped = ("content-length", "content-encoding", "transfer-encoding")
    return {name: value for name, value in response.headers.items() if name not in dropped}


def only_reads(request: httpx.Request) -> bool:
    entries = json.loads(request.content or b"{}").get("entry", [])
    return bool(entries) and all(entry["request"]["method"] == "GET" for entry in entries)


def also_writes(meddler: Meddler, request: httpx.Request) -> httpx.Response:
    meddler.put("S2")
    return meddler.send(request)


def also_creates(meddler: Meddler, request: httpx.Request) -> httpx.Response:
    response = meddler.send(request)
    CLIENT.post(f"{meddler.server}/Basic", content=b'{"resourceType":"Basic","code":{"text":"x"}}', headers=HEADERS)
    return response


def also_deletes(meddler: Meddler, request: httpx.Request) -> httpx.Response:
    CLIENT.delete(f"{meddler.server}/Observation/o1")
    CLIENT.delete(f"{meddler.server}/Observation/o3")
    return meddler.send(request)


def refuses_and_writes(meddler: Meddler, request: httpx.Request) -> httpx.Response:
    meddler.send(request)
    return httpx.Response(400, json={"resourceType": "OperationOutcome"}, headers=HEADERS)


def writes_elsewhere(meddler: Meddler, request: httpx.Request) -> httpx.Response:
    response = meddler.put("S2")
    return httpx.Response(200, headers=plain(response), content=response.content)


def overwrites(meddler: Meddler, request: httpx.Request) -> httpx.Response:
    response = meddler.put("S2")
    headers = plain(response) | {"location": response.headers["content-location"]}
    return httpx.Response(201, headers=headers, content=response.content)


def shortens(meddler: Meddler, request: httpx.Request) -> httpx.Response:
    answer = meddler.send(request).json()
    return httpx.Response(200, json=answer | {"entry": answer["entry"][:-1]}, headers=HEADERS)


def garbles(meddler: Meddler, request: httpx.Request) -> httpx.Response:
    meddler.send(request)
    return httpx.Response(200, text="<html>", headers={"content-type": "text/html"})


def refuses_an_entry(meddler: Meddler, request: httpx.Request) -> httpx.Response:
    answer = meddler.send(request).json()
    answer["entry"][0] = {"response": {"status": "409 Conflict"}}
    return httpx.Response(200, json=answer, headers=HEADERS)


def update(session: RemoteSession) -> Any:
    return send(session, "PUT", "/Patient/S1", patient("S1", "Changed"))


def create(session: RemoteSession) -> Any:
    return send(session, "POST", "/Patient", patient())


def batch(session: RemoteSession) -> Any:
    entries = entry("PUT", "Patient/S1", patient("S1", "Changed")), entry("POST", "Patient", patient())
    return send(session, "POST", "/", bundle("batch", *entries))


CASES = [
    (update, also_writes, "Patient/S2"),
    (create, also_writes, "Patient/S2"),
    (batch, also_writes, "Patient/S2"),
    (update, also_creates, "Basic/"),
    (create, also_deletes, "Observation/o"),
    (update, refuses_and_writes, "Patient/S1"),
    (create, refuses_and_writes, "Patient/"),
    (batch, refuses_and_writes, "Patient/"),
    (update, writes_elsewhere, "Patient/S2"),
    (create, overwrites, "Patient/S2"),
    (batch, shortens, "answered 1 entries instead of 2"),
    (batch, refuses_an_entry, "Patient/S1"),
    (batch, garbles, "answered 0 entries instead of 2"),
]


def meddled(server: str, world: World, meddle: Meddle, *, history: bool = True) -> RemoteSession:
    transport = Meddler(server, meddle, history=history)
    session = RemoteSession(server, world, client=httpx.Client(transport=transport))
    session.load([patient("prepared")])
    transport.armed = True
    return session


def journal() -> str:
    return "".join(path.read_text() for path in state_dir().rglob("*.undo.jsonl"))


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize(("write", "meddle", "named"), CASES)
def test_what_the_server_did_besides_is_named_and_undone(
    server: str, world: World, write: Callable[[RemoteSession], Any], meddle: Meddle, named: str, crashed: bool
) -> None:
    before = state(server)
    session = meddled(server, world, meddle)
    with pytest.raises(InfraError, match=f"{named}.*does not ask for"):
        write(session)
    assert named in journal() and '"doubt"' in journal()
    assert state(server) != before
    if crashed:
        session._resources.close()
        RemoteSession(server, world).close()
    else:
        session.close()
    assert state(server) == before
    RemoteSession(server, world).close()
    assert journal() == ""


@pytest.mark.parametrize(("write", "meddle"), [(update, writes_elsewhere), (create, overwrites), (batch, shortens)])
def test_without_history_the_difference_is_named_until_the_server_is_restored(
    server: str, world: World, write: Callable[[RemoteSession], Any], meddle: Meddle
) -> None:
    before = state(server)
    session = meddled(server, world, meddle, history=False)
    with pytest.raises(InfraError, match="does not ask for"):
        write(session)
    for attempt in (session.close, lambda: failing(server, world)):
        with pytest.raises(InfraError, match=r"could not be restored: the server .*--from-world.*--force"):
            attempt()
    assert "Patient/prepared" not in state(server), "everything else is restored"
    worlds.restore(world, server, comparison=worlds.compare(world, server))
    assert state(server) == before and journal() == ""


def failing(server: str, world: World) -> None:
    transport = Meddler(server, also_writes, history=False)
    RemoteSession(server, world, client=httpx.Client(transport=transport)).close()


def test_writes_that_change_nothing_are_no_difference(server: str, world: World) -> None:
    with closing(RemoteSession(server, world)) as session:
        for _ in range(2):
            assert update(session).status == 200
        for url in ("/Patient/nobody", "/Patient?family=nobody", "/Observation/o1"):
            assert send(session, "DELETE", url).status == 200
        assert send(session, "DELETE", "/Observation/o1").status == 200
        assert send(session, "POST", "/Patient", patient(), if_none_exist="family=Alba").status == 200
        assert send(session, "PUT", "/Observation/o1", {"resourceType": "Observation", "id": "o1"}).status == 201
