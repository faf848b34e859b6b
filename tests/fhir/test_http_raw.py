"""The server under hostile clients, concurrent clients and browsers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from tests.worlds.serving import served

FHIR = "application/fhir+json"
HOST = b"Host: ward.test\r\n"
CLOSE = HOST + b"Connection: close\r\n"


@pytest.fixture(scope="module")
def base(empty_world: World) -> Iterator[str]:
    with served(create_app(empty_world)) as url:
        yield url


@pytest.fixture(scope="module")
def busy(hospital: World) -> Iterator[str]:
    with served(create_app(hospital)) as url:
        yield url


class Wire:
    """A connection that reads responses one by one."""

    def __init__(self, base: str) -> None:
        parts = urlsplit(base)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=20)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the next response."""
        status = int(self.file.readline().split()[1])
        headers: dict[str, str] = {}
        while (line := self.file.readline().decode("latin-1").rstrip("\r\n")) != "":
            name, colon, value = line.partition(":")
            assert colon and value == value.rstrip(), line
            assert name.lower() not in headers, "each header once"
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0)) if body else 0
        return status, headers, self.file.read(length)


def request(method: str, target: str, body: bytes = b"", headers: bytes = HOST) -> bytes:
    length = f"Content-Length: {len(body)}\r\nContent-Type: {FHIR}\r\n".encode() if body else b""
    return f"{method} {target} HTTP/1.1\r\n".encode("latin-1") + headers + length + b"\r\n" + body


# headers


@pytest.mark.parametrize("method", ["DELETE", "GET", "PUT"])
@pytest.mark.parametrize(
    "id", ["x%20", "%20", "x%0d%0aX-Injected:%201", "x%0a", "x%00", "%E2%82%AC", "%C3%A9", "x%7F", "%ED%A0%80"]
)
def test_a_connection_survives_any_id(base: str, method: str, id: str) -> None:
    with Wire(base) as wire:
        body = b'{"resourceType": "Patient", "id": "x"}' if method == "PUT" else b""
        wire.send(request(method, f"/fhir/Patient/{id}", body))
        status, headers, content = wire.answer()
        assert 200 <= status < 500 and "x-injected" not in headers
        assert json.loads(content)["resourceType"] == "OperationOutcome"
        wire.send(request("GET", "/fhir/metadata"))
        assert wire.answer()[0] == 200


@pytest.mark.parametrize("host", [b"a b", b"a\tb", b"\xe4\xff", b'a"><script>alert(1)</script>', b"a:b:c", b"["])
def test_a_connection_survives_any_host(base: str, host: bytes) -> None:
    with Wire(base) as wire:
        for method, target, body in (
            ("POST", "/fhir/Patient", b'{"resourceType": "Patient"}'),
            ("DELETE", "/fhir/Patient/none", b""),
            ("GET", "/fhir/Patient", b""),
        ):
            wire.send(request(method, target, body, b"Host: " + host + b"\r\n"))
            assert wire.answer()[0] < 500


def test_only_one_content_length_is_believed(base: str) -> None:
    for lengths in (
        b"Content-Length: 2\r\nContent-Length: 3\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 1e1\r\n",
    ):
        with Wire(base) as wire:
            wire.send(b"POST /fhir/Patient HTTP/1.1\r\n" + CLOSE + lengths + b"\r\n{}")
            assert wire.answer()[0] == 400


def test_chunks_and_a_length_are_not_mixed(base: str) -> None:
    smuggled = b"0\r\n\r\nGET /fhir/metadata HTTP/1.1\r\nHost: x\r\n\r\n"
    with Wire(base) as wire:
        head = b"POST /fhir/Patient HTTP/1.1\r\n" + CLOSE + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        wire.send(head + smuggled)
        wire.answer()
        assert wire.file.read() == b"", "what follows is no second request"


# connections


def test_a_connection_survives_errors(base: str) -> None:
    with Wire(base) as wire:
        for target, status in (
            ("/fhir/Nope", 404),
            ("/fhir/Patient/%zz", 400),
            ("/elsewhere", 404),
            ("/fhir/metadata", 200),
        ):
            wire.send(request("GET", target))
            assert wire.answer()[0] == status


def test_requests_sent_at_once_are_answered_in_order(base: str) -> None:
    with Wire(base) as wire:
        wire.send(b"".join(request("GET", f"/fhir/Patient/p{number}") for number in range(30)))
        for number in range(30):
            status, _, body = wire.answer()
            assert status == 404 and f"Patient/p{number} " in body.decode()


def test_a_client_may_ask_before_it_sends(base: str) -> None:
    body = b'{"resourceType": "Patient"}'
    with Wire(base) as wire:
        wire.send(
            request(
                "POST",
                "/fhir/Patient",
                b"",
                HOST + b"Expect: 100-continue\r\nContent-Length: 27\r\nContent-Type: application/json\r\n",
            )
        )
        assert wire.answer(body=False)[0] == 100
        wire.send(body)
        assert wire.answer()[0] == 201


@pytest.mark.parametrize(("method", "status"), [("HEAD", 404), ("OPTIONS", 400), ("TRACE", 405)])
def test_methods_without_a_body(base: str, method: str, status: int) -> None:
    with Wire(base) as wire:
        wire.send(request(method, "/fhir/Patient/none"))
        assert wire.answer(body=method != "HEAD")[0] == status
        wire.send(request("GET", "/fhir/metadata"))
        assert wire.answer()[0] == 200


def test_slow_clients_do_not_delay_others(base: str) -> None:
    body = b'{"resourceType": "Patient"}'
    with Wire(base) as slow, Wire(base) as quick:
        whole = request("POST", "/fhir/Patient", body)
        for start in range(0, len(whole), 40):
            slow.send(whole[start : start + 40])
            quick.send(request("GET", "/fhir/Patient/none"))
            assert quick.answer()[0] == 404
        assert slow.answer()[0] == 201


def test_a_large_answer_arrives_whole(busy: str) -> None:
    answer = httpx.get(f"{busy}/Observation?_count=2000&_pretty=false", timeout=60)
    assert len(answer.content) == int(answer.headers["content-length"]) > 500_000
    assert len(answer.json()["entry"]) == 2_000


# concurrent requests


@pytest.mark.slow
def test_a_read_does_not_wait_for_all_heavy_requests_of_others(busy: str) -> None:
    """Four connections send batches while one client reads."""
    patient = httpx.get(f"{busy}/Patient?_count=1").json()["entry"][0]["resource"]["id"]
    entries = [{"request": {"method": "GET", "url": f"Patient/{patient}/$everything?_count=1"}}] * 100
    batch = {"resourceType": "Bundle", "type": "batch", "entry": entries}
    stop = threading.Event()
    statuses: list[int] = []

    def flood() -> None:
        with httpx.Client(timeout=120) as client:
            while not stop.is_set():
                statuses.append(client.post(busy, json=batch, headers={"content-type": FHIR}).status_code)

    floods = [threading.Thread(target=flood) for _ in range(4)]
    for thread in floods:
        thread.start()
    answered_meanwhile = []
    try:
        with httpx.Client(timeout=120) as client:
            for _ in range(5):
                before = len(statuses)
                assert client.get(f"{busy}/Patient/{patient}").status_code == 200
                answered_meanwhile.append(len(statuses) - before)
    finally:
        stop.set()
        for thread in floods:
            thread.join()
    assert set(statuses) == {200}
    assert max(answered_meanwhile) < 4, "a read waits for the batch under way, not for all four"


# browsers


BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.mark.parametrize("path", ["", "/", "/fhir", "/fhir/"])
def test_a_browser_gets_a_page_about_the_server(busy: str, path: str) -> None:
    answer = httpx.get(busy.removesuffix("/fhir") + path, headers=BROWSER)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    for text in ("hospital-small", f"{busy}/metadata", f"{busy}/Patient?_count=5", "docs/server.md"):
        assert text in answer.text
    assert "<script" not in answer.text and "src=" not in answer.text and "<link" not in answer.text


def test_the_links_of_the_page_work(busy: str) -> None:
    page = httpx.get(busy, headers=BROWSER).text
    links = [piece.split('"')[0] for piece in page.split('href="')[1:]]
    assert len(links) > 3
    for link in links:
        if link.startswith(busy):
            assert httpx.get(link).status_code == 200


@pytest.mark.parametrize("accept", [None, "*/*", "application/fhir+json", "application/json"])
def test_a_program_is_answered_as_before(busy: str, accept: str | None) -> None:
    headers = {"accept": accept} if accept else {}
    assert httpx.get(busy, headers=headers).status_code == 400
    assert httpx.get(busy.removesuffix("/fhir"), headers=headers).status_code == 404


def test_the_page_escapes_client_input(busy: str) -> None:
    with Wire(busy) as wire:
        wire.send(request("GET", "/fhir", b"", b'Host: a"><script>alert(1)</script>\r\nAccept: text/html\r\n'))
        status, headers, body = wire.answer()
        assert status == 200 and headers["content-type"].startswith("text/html")
        assert b"<script" not in body
