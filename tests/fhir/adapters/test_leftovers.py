"""What cannot be undone does not keep a session from undoing everything else, and never blocks `--force`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typing_extensions import override

from fhir_gym import worlds
from fhir_gym.errors import InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.fhir.adapters.server_lock import state_dir
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli  # a fixture
from tests.fhir.remote_writes import NOTE, send, state
from tests.fhir.writing import patient


class Refuser(httpx.HTTPTransport):
    """Sends requests, but refuses those that name a resource."""

    def __init__(self, name: str, *, reads: bool = False) -> None:
        super().__init__(verify=False)
        self.name, self.reads = name, reads
        self.active = False

    @override
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.active and (self.reads or request.method != "GET") and self._refuses(request):
            return httpx.Response(422, json={"resourceType": "OperationOutcome", "issue": [{"diagnostics": "no way"}]})
        if self.active and request.content and not self.reads:
            return self._batch(request)
        return super().handle_request(request)

    def _refuses(self, request: httpx.Request) -> bool:
        body = json.loads(request.content or b"{}")
        entries = body.get("entry", [])
        if self.reads:
            only_reads = entries and all(entry["request"]["method"] == "GET" for entry in entries)
            return request.url.path.endswith(self.name) or bool(only_reads)
        return body.get("type") == "transaction" and self.name in [entry["request"]["url"] for entry in entries]

    def _batch(self, request: httpx.Request) -> httpx.Response:
        """Run a batch without the entries that are refused."""
        entries = json.loads(request.content).get("entry", [])
        wrong = [n for n, entry in enumerate(entries) if entry["request"] == {"method": "PUT", "url": self.name}]
        for number in wrong:
            entries[number] = {"request": {"method": "GET", "url": "Patient/nobody"}}
        content = json.dumps({"resourceType": "Bundle", "type": json.loads(request.content)["type"], "entry": entries})
        headers = {"content-type": "application/fhir+json"}
        return super().handle_request(httpx.Request("POST", request.url, content=content, headers=headers))


def journals() -> list[Path]:
    return sorted(state_dir().rglob("*.undo.jsonl"))


def scribble(session: RemoteSession) -> None:
    """Change two resources, and create two of which one refers to the other."""
    for id in ("S1", "S2"):
        assert send(session, "PUT", f"/Patient/{id}", patient(id, "Changed")).status == 200
    new = send(session, "POST", "/Patient", patient()).json()
    note = NOTE | {"subject": {"reference": f"Patient/{new['id']}"}}
    assert send(session, "POST", "/Observation", note).status == 201
    assert send(session, "DELETE", "/Observation/o4").status == 200


@pytest.mark.parametrize("reads", [False, True])
def test_all_else_is_restored_and_the_rest_is_named(server: str, world: World, reads: bool) -> None:
    before = state(server)
    transport = Refuser("Patient/S2", reads=reads)
    session = RemoteSession(server, world, client=httpx.Client(transport=transport))
    scribble(session)
    transport.active = True
    with pytest.raises(InfraError, match=r"could not be restored: Patient/S2 still differs.*--from-world.*--force"):
        session.close()
    if not reads:
        left = state(server)
        assert {name for name in {*left, *before} if left.get(name) != before.get(name)} == {"Patient/S2"}
    assert journals()
    RemoteSession(server, world).close()
    assert state(server) == before and not journals()


def test_the_command_forgets_what_it_cannot_undo(
    server: str, world: World, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(server)
    session = RemoteSession(server, world)
    scribble(session)
    session._resources.close()
    transport = Refuser("Patient/S2")
    transport.active = True
    monkeypatch.setattr(
        "fhir_gym.fhir.adapters.credentials.Credentials.client", lambda *_, **__: httpx.Client(transport=transport)
    )
    refused = cli("servers", "restore", world.path, server)
    assert refused.code != 0 and "Patient/S2 still differs" in refused.err and "--force" in refused.err
    forced = cli("servers", "restore", world.path, server, "--force")
    assert forced.code == 0 and "not undone: Patient/S2 still differs" in forced.err
    assert not journals()
    monkeypatch.undo()
    worlds.restore(world, server, comparison=worlds.compare(world, server))
    assert state(server) == before


STRANGE = ("a\tb", "../x", "x y", "", "ü", "a" * 100, "?_expunge=true", "$expunge")


@pytest.mark.parametrize("before", [None, {"resourceType": "Patient", "active": True}])
@pytest.mark.parametrize("id", STRANGE)
def test_a_strange_note_does_not_block_the_others(server: str, world: World, id: str, before: Any) -> None:
    was = state(server)
    session = RemoteSession(server, world)
    scribble(session)
    session._resources.close()
    (journal,) = journals()
    line = {
        "write": "POST /",
        "creates": False,
        "time": None,
        "undo": [["Patient", id, before and before | {"id": id}]],
    }
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\n")
    try:
        RemoteSession(server, world).close()
    except InfraError as error:
        assert "--force" in str(error)
    assert state(server) == was
    worlds.restore(world, server, force=True)
    assert state(server) == was and not journals()
    RemoteSession(server, world).close()


def garble(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\n{broken\n", 1))


def behead(path: Path) -> None:
    path.write_bytes(b"{}\n" + path.read_bytes().partition(b"\n")[2])


def rename(path: Path) -> None:
    path.rename(path.with_name("other-0000000000000000.undo.jsonl"))


def spoil(path: Path) -> None:
    path.rename(path.with_name("other-0000000000000000.undo.jsonl")).write_bytes(b"\xff\n\xff\n")


@pytest.mark.parametrize(("damage", "salvaged"), [(garble, True), (behead, True), (rename, False), (spoil, False)])
def test_unusable_notes_never_block_force(
    server: str, world: World, damage: Callable[[Path], Any], salvaged: bool
) -> None:
    before = state(server)
    session = RemoteSession(server, world)
    scribble(session)
    session._resources.close()
    damage(journals()[0])
    with pytest.raises(InfraError, match=r"fhir-gym servers restore small http.* --force"):
        RemoteSession(server, world)
    worlds.restore(world, server, force=True)
    assert not journals() and (state(server) == before) == salvaged
    worlds.restore(world, server, comparison=worlds.compare(world, server))
    assert state(server) == before
