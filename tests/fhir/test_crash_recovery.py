"""After a crash, or an answer that is lost, the next session leaves every resource as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from typing_extensions import override

from fhir_gym.errors import InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.fhir.adapters.server_lock import state_dir
from tests.fhir.remote_writes import WRITES, furnish, send, state
from tests.fhir.writing import patient
from tests.worlds.serving import served


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[str]:
    with served(create_app(world)) as url:
        furnish(url)
        yield url


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.fhir.adapters.remote.sleep", lambda _: None)
    monkeypatch.setattr("fhir_gym.fhir.adapters.remote_client.sleep", lambda _: None)


QUICK = ("create", "labels added", "transaction")
ALL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in WRITES]


def only_reads(request: httpx.Request) -> bool:
    """Whether a request is a GET or a batch of GETs."""
    if request.method == "GET" or "json" not in request.headers.get("content-type", ""):
        return request.method == "GET"
    body = json.loads(request.content or b"{}")
    entries = body.get("entry", []) if isinstance(body, dict) else []
    return bool(entries) and all(entry["request"]["method"] == "GET" for entry in entries)


HEAD = b"HEAD"  # stands for a valid first line of a journal


class LosesAnswers(httpx.HTTPTransport):
    """Sends requests, but loses the answers to writes while `active`."""

    active = False
    history = True

    @override
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("_history") and not self.history:
            return httpx.Response(501)
        response = super().handle_request(request)
        if self.active and not only_reads(request):
            response.close()
            raise httpx.ReadError("connection reset")
        return response


def crash(session: RemoteSession) -> None:
    """End a session as the end of its process does: without undoing anything."""
    session._resources.close()


def journals() -> list[Path]:
    return sorted(state_dir().rglob("*.undo.jsonl"))


@pytest.mark.parametrize("name", ALL)
def test_the_next_session_undoes_the_writes_of_a_crashed_one(
    server: str, world: World, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = state(server)
    first = RemoteSession(server, world)
    first.load([patient("prepared")])
    WRITES[name](first)
    assert state(server) != before and journals()
    crash(first)
    with closing(RemoteSession(server, world)) as second:
        assert state(server) == before
        assert "Patient/prepared" in second.restored and second.changes() == []
        (line,) = caplog.messages
        assert line.startswith(f"{server}: restored ") and "interrupted" in line
    assert not journals()
    with closing(RemoteSession(server, world)) as third:
        assert not third.restored


@pytest.mark.parametrize(
    ("name", "crashed"),
    [
        *((name, crashed) for name in QUICK for crashed in (False, True)),
        *(pytest.param(name, n % 2 == 0, marks=pytest.mark.slow) for n, name in enumerate(WRITES) if name not in QUICK),
    ],
)
def test_a_write_whose_answer_is_lost_is_undone(server: str, world: World, name: str, crashed: bool) -> None:
    before = state(server)
    transport = LosesAnswers()
    session = RemoteSession(server, world, client=httpx.Client(transport=transport))
    transport.active = True
    with pytest.raises(InfraError, match="does not answer"):
        WRITES[name](session)
    transport.active = False
    if crashed:
        crash(session)
    else:
        session.close()
        assert state(server) == before
        assert journals(), "the server may carry the write out after the rollback"
    with closing(RemoteSession(server, world)) as after:
        assert state(server) == before and bool(after.restored) == crashed
    assert not journals()


def test_a_write_whose_effect_the_server_does_not_tell_is_an_error(server: str, world: World) -> None:
    """A server without a history of types cannot tell what a lost create has created."""
    transport = LosesAnswers()
    transport.history = False
    session = RemoteSession(server, world, client=httpx.Client(transport=transport))
    transport.active = True
    with pytest.raises(InfraError, match="does not answer"):
        send(session, "POST", "/Patient", patient(None, "Lost"))
    transport.active = False
    crash(session)
    with pytest.raises(InfraError, match=r"POST /Patient has an unknown outcome.*servers restore small .*--from-world"):
        RemoteSession(server, world)
    with closing(RemoteSession(server, world, undo=())) as forgetful:
        (lost,) = forgetful.search("Patient", family="Lost")
    assert httpx.delete(f"{server}/Patient/{lost['id']}").status_code == 200
    assert not journals()


def test_a_session_that_only_reads_leaves_no_journal(server: str, world: World) -> None:
    with closing(RemoteSession(server, world)) as session:
        assert send(session, "GET", "/Patient?_count=1").status == 200
        assert not journals()
        assert send(session, "PUT", "/Patient/S1", patient("S1")).status == 200
        (journal,) = journals()
        begin = journal.stat().st_size
        here = session.checkpoint()
        for _ in range(3):  # an environment that is reset again and again
            send(session, "PUT", "/Patient/mine", patient("mine"))
            send(session, "PUT", "/Patient/S1", patient("S1", "Other"))
            assert journal.stat().st_size > begin
            session.rollback(here)
            assert journal.stat().st_size == begin
    assert not journals()


def test_the_changes_of_an_episode_with_another_world_are_not_forgotten(
    server: str, world: World, tiny_world: World
) -> None:
    before = state(server)
    first = RemoteSession(server, world)
    send(first, "DELETE", "/Observation/o1")
    crash(first)
    with pytest.raises(InfraError, match=r"interrupted episode with the world 'small': run `fhir-gym servers restore"):
        RemoteSession(server, tiny_world)
    RemoteSession(server, world).close()
    assert state(server) == before
    RemoteSession(server, tiny_world).close()


def test_the_next_session_may_write_the_url_in_another_way(server: str, world: World) -> None:
    before = state(server)
    first = RemoteSession(server, world)
    send(first, "DELETE", "/Observation/o1")
    crash(first)
    RemoteSession(server.replace("127.0.0.1", "localhost") + "/", world).close()
    assert state(server) == before and not journals()


def test_a_deleted_patient_does_not_hide_the_world(tiny_world: World) -> None:
    """A session looks for the first and the last patient of the world, before it restores any resource."""
    with served(create_app(tiny_world)) as url:
        first = RemoteSession(url, tiny_world)
        assert [send(first, "DELETE", f"/Patient/{id}").status for id in ("S1", "S2")] == [200, 200]
        crash(first)
        with served(create_app(tiny_world)) as other, closing(RemoteSession(other, tiny_world)) as session:
            assert not session.restored, "another server"
        with closing(RemoteSession(url, tiny_world)) as session:
            assert set(session.restored) == {"Patient/S1", "Patient/S2"}
        assert {httpx.get(f"{url}/Patient/{id}").status_code for id in ("S1", "S2")} == {200}


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]\n",
        b"\xff\n",
        b"{}\n",
        b'{"format": 1}\n{"write": 1}\n',
        b"[" * 100_000 + b"\n",
        b"null\nnull\n",
        HEAD + b'{"write": "x", "creates": true, "time": 1, "undo": []}\n',
        HEAD + b'{"created": []}\n',
    ],
)
def test_an_unusable_journal_is_an_error(server: str, world: World, content: bytes) -> None:
    first = RemoteSession(server, world)
    send(first, "PUT", "/Patient/mine", patient("mine"))
    (journal,) = journals()
    crash(first)
    whole = journal.read_bytes()
    journal.write_bytes(content.replace(HEAD, whole[: whole.index(b"\n") + 1]))
    if content == b"{":  # the last line is incomplete, so its write was not sent
        RemoteSession(server, world).close()
    else:
        with pytest.raises(InfraError, match="cannot use the undo journal") as told:
            RemoteSession(server, world)
        assert "\n" not in str(told.value) and len(str(told.value)) < 600
    journal.write_bytes(whole)
    RemoteSession(server, world).close()
    assert httpx.get(f"{server}/Patient/mine").status_code == 410
