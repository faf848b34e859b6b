"""The client of a remote server repeats the requests that are safe to repeat, and no others."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from fhir_gym.errors import InfraError
from fhir_gym.fhir import Request
from fhir_gym.fhir.adapters import remote_client
from fhir_gym.fhir.adapters.remote_client import NotSentError, RemoteClient

Fault = Callable[[httpx.Request], httpx.Response]


def raises(error: httpx.TransportError) -> Fault:
    def fault(_: httpx.Request) -> httpx.Response:
        raise error

    return fault


def status(code: int, **headers: str) -> Fault:
    return lambda _: httpx.Response(code, headers={name.replace("_", "-"): value for name, value in headers.items()})


RESET = raises(httpx.ReadError("connection reset"))
HALF = raises(httpx.RemoteProtocolError("incomplete body"))
REFUSED = raises(httpx.ConnectError("refused"))
LATE = raises(httpx.ReadTimeout("too late"))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses before retries, which take no time."""
    waited: list[float] = []
    monkeypatch.setattr(remote_client, "sleep", waited.append)
    return waited


class Script:
    """A server that has some faults and then answers."""

    def __init__(self, *faults: Fault, answered: bool = True) -> None:
        self.faults, self.requests = list(faults), 0
        self.client = RemoteClient("http://x/fhir", client=httpx.Client(transport=httpx.MockTransport(self.respond)))
        self.client._answered = answered

    def respond(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        return self.faults.pop(0)(request) if self.faults else httpx.Response(200, json={"resourceType": "Patient"})

    def send(self, method: str) -> int:
        return self.client.send(Request(method, "/Patient/1")).status


def test_a_read_is_repeated_after_failures_that_pass(pauses: list[float]) -> None:
    script = Script(RESET, status(503), HALF, status(429, retry_after="7"))
    assert script.send("GET") == 200
    assert pauses == [0.5, 1.0, 2.0, 7.0]


@pytest.mark.parametrize(
    "fault", [RESET, REFUSED, status(502), status(504), status(429)], ids=["reset", "refused", "502", "504", "429"]
)
def test_the_number_of_attempts_is_bounded(pauses: list[float], fault: Fault) -> None:
    script = Script(*[fault] * 20)
    with pytest.raises(InfraError, match="http://x/fhir"):
        script.send("GET")
    assert script.requests == 5 and len(pauses) == 4


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("fault", [RESET, HALF, LATE, status(502), status(503, retry_after="1")])
def test_a_write_that_the_server_may_have_carried_out_is_not_repeated(
    pauses: list[float], fault: Fault, method: str
) -> None:
    script = Script(fault)
    with pytest.raises(InfraError) as told:
        script.send(method)
    assert not isinstance(told.value, NotSentError)
    assert script.requests == 1 and not pauses


@pytest.mark.parametrize("fault", [REFUSED, status(429)], ids=["refused", "429"])
def test_a_write_that_the_server_did_not_carry_out_is_repeated(pauses: list[float], fault: Fault) -> None:
    assert Script(fault, fault).send("POST") == 200
    with pytest.raises(NotSentError):
        Script(*[fault] * 5).send("POST")


@pytest.mark.parametrize(("text", "seconds"), [("3", 3.0), ("100000", 60.0), ("-1", 0.5), ("soon", 0.5), ("٣", 0.5)])
def test_a_server_can_ask_for_a_pause(pauses: list[float], text: str, seconds: float) -> None:
    Script(lambda _: httpx.Response(429, headers=[(b"retry-after", text.encode())])).send("GET")
    assert pauses == [seconds]


def test_a_timeout_and_a_server_that_never_answered_are_not_waited_for(pauses: list[float]) -> None:
    for script in (Script(LATE), Script(REFUSED, answered=False)):
        with pytest.raises(InfraError, match="does not answer"):
            script.send("GET")
        assert script.requests == 1
    assert not pauses
