"""A server elsewhere gets what the embedded server understands, and nothing else; the agent sees the same answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from typing_extensions import override

from fhir_gym.fhir import Response, Session, World
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.fhir.definitions import RESOURCE_TYPES
from tests.fhir.adapters.hostile_writes import HOSTILE, OPERATIONS
from tests.fhir.remote_writes import state

TYPE = f"({'|'.join(RESOURCE_TYPES)})"
URL = re.compile(
    rf"/fhir(/metadata|/_history|/\$meta|/{TYPE}(/[A-Za-z0-9.-]{{1,64}}(/_history(/[A-Za-z0-9.-]{{1,64}})?)?)?"
    r"(/_history|/_search|/\$(everything|expand|meta|meta-add|meta-delete|validate|validate-code))?)?/?"
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
SENT_HEADERS = {
    *("accept", "accept-encoding", "cache-control", "connection", "content-length", "content-type", "host"),
    *("if-match", "if-modified-since", "if-none-exist", "if-none-match", "prefer", "user-agent"),
}


class Recorder(httpx.HTTPTransport):
    """Sends requests and keeps them."""

    def __init__(self) -> None:
        super().__init__(verify=False)
        self.seen: list[httpx.Request] = []

    @override
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        return super().handle_request(request)


@pytest.fixture(scope="module")
def before(server: str) -> dict[str, Any]:
    """The server's content before the first test."""
    return state(server)


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def remote(world: World, server: str, recorder: Recorder) -> Iterator[RemoteSession]:
    """A session elsewhere for all tests, which undo what they write."""
    with closing(RemoteSession(server, world, client=httpx.Client(transport=recorder))) as session:
        yield session


@pytest.fixture(scope="module")
def embedded(world: World, server: str) -> Iterator[Session]:
    with world.session(base_url=server) as session:
        yield session


def answer(response: Response) -> Any:
    """Return what an agent sees, without ids, versions, times and base URLs that depend on the server."""
    text = re.sub(r"https?://[^/]+/fhir", "BASE", response.text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[0-9:.+Z-]+", "X", text)
    text = re.sub(r'(/|"|&quot;)\d{1,4}\b', r"\1N", text).replace("&_pretty=true", "")
    text = re.sub(r"a(%20|\+)b", "a b", text)  # a condition with a blank is encoded
    return response.status, response.headers.get("Content-Type"), text


def log(response: Response) -> list[Any]:
    return [
        (interaction.kind, interaction.effect, interaction.status // 100, interaction.entry)
        for interaction in response.done
    ]


UNSENDABLE = ("dots as an id", "a dot as an id", "a version with a sign")
"""Requests that the embedded server would carry out."""
NEVER_SENT = ("answers that cannot be given", "a page for browsers", *UNSENDABLE)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_get_the_embedded_answer_and_are_undone(
    remote: RemoteSession, embedded: Session, recorder: Recorder, server: str, before: dict[str, Any], name: str
) -> None:
    embedded.rollback()
    recorder.seen.clear()
    expected, told = embedded.handle(HOSTILE[name]), remote.handle(HOSTILE[name])
    if name in NEVER_SENT or (name in OPERATIONS and "$" in name and expected.status >= 400):
        assert recorder.seen == []
    for sent in recorder.seen:
        check(sent)
    if name in UNSENDABLE:
        assert (told.status, remote.changes()) == (400, [])
    else:
        assert answer(told) == answer(expected)
        assert log(told) == log(expected)
        assert len(remote.changes()) == len(embedded.changes())
    remote.rollback()
    assert state(server) == before


def check(sent: httpx.Request) -> None:
    """Check that a request consists of what the embedded server knows."""
    assert URL.fullmatch(sent.url.path), sent.url
    assert sent.method in METHODS
    assert {name.lower() for name in sent.headers} <= SENT_HEADERS
    assert not {"_expunge", "_cascade", "_method"} & {*sent.url.params} or sent.url.path.endswith("$validate")
    if sent.method != "POST" or sent.url.path not in ("/fhir", "/fhir/"):
        return
    bundle = json.loads(sent.content)
    assert bundle["type"] in ("batch", "transaction") and not sent.url.query
    for entry in bundle["entry"]:
        assert entry["request"]["method"] in METHODS
        assert URL.fullmatch(f"/fhir/{entry['request']['url'].partition('?')[0]}"), entry["request"]
