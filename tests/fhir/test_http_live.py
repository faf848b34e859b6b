"""Over a real connection, the HTTP server gives the same responses as a session, and no input stops the server."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fhir_gym.errors import WorldError
from fhir_gym.fhir import Request, Response, Session, World
from fhir_gym.fhir.adapters.http import create_app
from tests.worlds.serving import served

FHIR = "application/fhir+json"
CLOSE = b"Host: ward.test\r\nConnection: close\r\n"
PATIENT = b'{"resourceType": "Patient", "name": [{"family": "Live"}]}'


@pytest.fixture(scope="module")
def base(empty_world: World) -> Iterator[str]:
    with served(create_app(empty_world)) as url:
        yield url


@pytest.fixture
def fresh(hospital: World) -> Iterator[str]:
    """A fresh server."""
    with served(create_app(hospital)) as url:
        yield url


def raw(base: str, data: bytes, seconds: float = 20) -> bytes:
    """Send bytes and read until the server closes the connection, within a timeout."""
    parts = urlsplit(base)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.settimeout(seconds)
        answer = b""
        try:
            connection.sendall(data)
            while chunk := connection.recv(65_536):
                answer += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass  # the server stopped reading; the test needs only its earlier response
        return answer


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(status.split(" ")[1]), headers, body


def request_bytes(method: str, target: str, headers: bytes = b"", body: bytes = b"") -> bytes:
    length = f"Content-Length: {len(body)}\r\n".encode() if body else b""
    return f"{method} {target} HTTP/1.1\r\n".encode() + CLOSE + headers + length + b"\r\n" + body


# the server gives the same responses as a session

AS_FHIR = {"content-type": FHIR}
AS_FORM = {"content-type": "application/x-www-form-urlencoded"}
AS_PATCH = {"content-type": "application/json-patch+json"}
MINE = b'{"resourceType": "Patient", "id": "via-http", "gender": "female"}'
BATCH = b'{"resourceType": "Bundle", "type": "batch", "entry": [{"request": {"method": "GET", "url": "Patient"}}]}'

CONVERSATION: list[tuple[str, str, bytes, dict[str, str]]] = [
    ("GET", "/metadata", b"", {}),
    ("GET", "/Patient?_count=3&_sort=birthdate", b"", {}),
    ("GET", "/Observation?code=GLU&_pretty=false", b"", {}),
    ("POST", "/Patient", PATIENT, AS_FHIR | {"prefer": "return=minimal"}),
    ("POST", "/Patient", PATIENT, AS_FHIR | {"if-none-exist": "family=Live"}),
    ("PUT", "/Patient/via-http", MINE, AS_FHIR),
    ("PATCH", "/Patient/via-http", b'[{"op": "replace", "path": "/gender", "value": "male"}]', AS_PATCH),
    ("GET", "/Patient/via-http", b"", {"if-none-match": 'W/"2"'}),
    ("HEAD", "/Patient/via-http", b"", {}),
    ("GET", "/Patient/via-http/_history/1", b"", {}),
    ("POST", "/Patient/_search", b"family=L%69ve&_total=accurate", AS_FORM),
    ("GET", "/Patient/a%2Fb", b"", {}),
    ("GET", "/Patient?family=%C3%A4%20+%FF", b"", {}),
    ("GET", "/Patient/%zz", b"", {}),
    ("DELETE", "/Patient/via-http", b"", {}),
    ("GET", "/Patient/via-http", b"", {}),
    ("POST", "/", BATCH, AS_FHIR),
    ("POST", "/Patient", b'{"resourceType": "Patient", "name": "\xff\xfe"}', AS_FHIR),
    ("POST", "/Patient", b"{", AS_FHIR),
    ("PATCH", "/Patient/nobody", b"[]", {}),
    ("OPTIONS", "/", b"", {}),
    ("GET", "/_history?_count=2", b"", {}),
    ("GET", "//Patient//", b"", {}),
]


def test_responses_equal_those_of_the_session(fresh: str, hospital: World) -> None:
    host = urlsplit(fresh).netloc
    with Session(hospital, pretty=True) as session, httpx.Client() as client:
        for method, url, body, headers in CONVERSATION:
            path, _, query = url.partition("?")
            expected = session.handle(Request(method, path, query, {**headers, "host": host}, body))
            answer = client.request(method, f"{fresh}{url}", content=body, headers=headers)
            shown = {name: answer.headers.get(name) for name in expected.headers}
            assert Response(answer.status_code, shown, answer.content) == expected, url


def test_indentation_is_the_default_and_pages_keep_it(fresh: str) -> None:
    answer = httpx.get(f"{fresh}/Observation?_count=2")
    assert answer.text.startswith('{\n  "resourceType": "Bundle"')
    following = next(link["url"] for link in answer.json()["link"] if link["relation"] == "next")
    assert following.startswith(fresh) and "_pretty=true" in following
    assert httpx.get(following).text.startswith("{\n")


# requests that the server refuses before the session


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("TRACE", "/fhir/Patient", 405),
        ("BREW", "/fhir/Patient", 400),
        ("get", "/fhir/Patient", 400),
        ("BREW", "/coffee", 404),
        ("GET", "/", 404),
        ("GET", "/fhirs/Patient", 404),
        ("GET", "/FHIR/Patient", 404),
        ("GET", "/fh%69r/Patient", 404),
        ("GET", "//fhir/Patient", 404),
        ("OPTIONS", "*", 404),
        ("GET", "http://ward.test/fhir/Patient", 200),
        ("GET", "/fhir/../etc/passwd", 404),
        ("GET", "/fhir/Patient#fragment", 400),
        ("GET", "/fhir?", 400),
        ("GET", "/fhir/Patient?family=" + "x" * 40_000, 414),
        ("GET", "/fhir/" + "Patient/" * 3_000, 400),
        ("CONNECT", "ward.test:80", 404),
    ],
)
def test_odd_requests_get_an_outcome(base: str, method: str, target: str, status: int) -> None:
    found, headers, body = parsed(raw(base, request_bytes(method, target)))
    assert found == status
    assert headers["content-type"].startswith(FHIR)
    assert json.loads(body)["resourceType"] == ("Bundle" if status == 200 else "OperationOutcome")


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /fhir/Patient?family=\xc3\xa4 HTTP/1.1\r\n" + CLOSE + b"\r\n",
        b"POST /fhir/Patient HTTP/1.1\r\n" + CLOSE + b"Content-Length: many\r\n\r\n",
        b"POST /fhir/Patient HTTP/1.1\r\n" + CLOSE + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /fhir/Patient HTTP/1.1\r\n" + CLOSE + b"Transfer-Encoding: chunked\r\n\r\nnot a length\r\n",
        b"GET /fhir/Patient HTTP/1.1\r\n" + CLOSE + b"X: " + b"y" * 300_000 + b"\r\n\r\n",
        b"GET /fhir/Patient?" + b"x" * 300_000 + b" HTTP/1.1\r\n" + CLOSE + b"\r\n",
    ],
)
def test_invalid_http_is_refused(base: str, data: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    assert parsed(raw(base, data))[0] == 400
    assert httpx.get(f"{base}/metadata").status_code == 200
    assert "Traceback" not in capfd.readouterr().err


def test_three_thousand_headers(base: str) -> None:
    headers = b"".join(b"X-%d: y\r\n" % number for number in range(3_000))
    assert parsed(raw(base, request_bytes("GET", "/fhir/Patient", headers)))[0] == 200


@pytest.mark.parametrize("host", [b"", b'a"<script>', b"\xe4\xff", b"x" * 5_000, b"a/../b?c#d"])
def test_any_host_is_answered(base: str, host: bytes) -> None:
    data = b"GET /fhir/Patient HTTP/1.1\r\nConnection: close\r\nHost: " + host + b"\r\n\r\n"
    status, _, body = parsed(raw(base, data))
    assert status == 200 and json.loads(body)["resourceType"] == "Bundle"


def test_chunked_bodies(base: str) -> None:
    def pieces() -> Iterator[bytes]:
        for start in range(0, len(PATIENT), 7):
            yield PATIENT[start : start + 7]

    answer = httpx.post(f"{base}/Patient", content=pieces(), headers={"content-type": FHIR})
    assert answer.status_code == 201


def test_a_huge_body_is_refused_before_it_is_read(base: str) -> None:
    """The server responds after it has received five of the hundred megabytes that the client announced."""
    parts = urlsplit(base)
    head = b"POST /fhir/Patient HTTP/1.1\r\n" + CLOSE + b"Content-Length: 100000000\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.settimeout(20)
        connection.sendall(head)
        for _ in range(5):
            connection.sendall(b"x" * 1_000_000)
        assert connection.recv(1_000).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("sent", [b"", b"{", PATIENT[:-1]])
def test_a_disconnected_client_disturbs_no_other(base: str, sent: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    parts = urlsplit(base)
    before = httpx.get(f"{base}/Patient?_summary=count").json()["total"]
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        head = b"POST /fhir/Patient HTTP/1.1\r\n" + CLOSE + b"Content-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: 57\r\n\r\n" + sent)
    assert httpx.get(f"{base}/Patient?_summary=count").json()["total"] == before
    assert capfd.readouterr().err == ""


def test_a_damaged_world_is_said_to_be_damaged(empty_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Session, request: Request) -> Response:
        raise WorldError("the world x.sqlite cannot be read: database disk image is malformed")

    monkeypatch.setattr(Session, "handle", fail)
    with served(create_app(empty_world)) as url:
        answer = httpx.get(f"{url}/Patient")
    assert answer.status_code == 500
    assert "x.sqlite" in answer.json()["issue"][0]["diagnostics"]


# arbitrary bytes

TOKEN = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "g!t"])
VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=12)
SEGMENTS = "fhir Patient Observation _history _search $everything $meta $validate metadata 1 %2e %ff %"
PARAMETERS = "_count _sort _include _getpages family code _summary _elements _format _pretty _since _has:a:b:c"
VALUES = "1 -1 text true * Patient:organization json xml 2023 %00 %C3"
PAIR = st.tuples(st.sampled_from(PARAMETERS.split()) | VISIBLE, st.sampled_from(VALUES.split()) | VISIBLE)
TARGET = st.builds(
    lambda segments, pairs: "/fhir/" + "/".join(segments) + ("?" + "&".join(map("=".join, pairs)) if pairs else ""),
    st.lists(st.sampled_from(SEGMENTS.split()) | VISIBLE, max_size=4),
    st.lists(PAIR, max_size=3),
)
NAMES = (
    "Accept Content-Type If-Match If-None-Match If-None-Exist If-Modified-Since Prefer Cache-Control X-Forwarded-Proto "
    "X-Forwarded-For Content-Encoding Upgrade Range Cookie Authorization"
)
HEADER_VALUES = (
    f"{FHIR} application/json-patch+json text/plain * family=x return=OperationOutcome no-store,max-results=2 "
    'websocket gzip \xe4\xff W/"1"'
)
PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20)
HEADER = st.tuples(st.sampled_from(NAMES.split()), st.sampled_from(HEADER_VALUES.split()) | PRINTABLE.map(str.strip))
KEYS = ["resourceType", "id", "name", "entry", "request", "type", "meta"]
DOCUMENT: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | VISIBLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
TYPED = st.builds(
    lambda kind, value: {"resourceType": kind} | (value if isinstance(value, dict) else {}),
    st.sampled_from(["Patient", "Bundle", "Observation", "Parameters"]),
    DOCUMENT,
)
BODY = st.just(b"") | st.binary(max_size=40) | (DOCUMENT | TYPED).map(lambda value: json.dumps(value).encode())


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=TOKEN, target=TARGET, headers=st.lists(HEADER, max_size=4), body=BODY)
def test_anything_is_answered_without_a_server_error(
    base: str, capfd: pytest.CaptureFixture[str], method: str, target: str, headers: list[tuple[str, str]], body: bytes
) -> None:
    lines = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers)
    status, shown, content = parsed(raw(base, request_bytes(method, target, lines, body)))
    assert 200 <= status < 500
    if content and shown["content-type"].startswith(FHIR):
        assert "resourceType" in json.loads(content)
    assert "Traceback" not in capfd.readouterr().err


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), cut=st.integers(0, 120))
def test_any_bytes_at_all(base: str, capfd: pytest.CaptureFixture[str], data: bytes, cut: int) -> None:
    """Mangled requests never break the server; the connection ends after the client's last byte."""
    parts = urlsplit(base)
    whole = request_bytes("POST", "/fhir/Patient", b"Content-Type: application/json\r\n", PATIENT)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.settimeout(20)
        connection.sendall(whole[:cut] + data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while chunk := connection.recv(65_536):
                answer += chunk
        except ConnectionResetError:
            pass
    assert not answer or answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4"))
    assert "Traceback" not in capfd.readouterr().err


# the command


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("sigint_interrupts")
def test_serve_stops_on_a_signal_despite_open_connections(number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "fhir_gym", "serve", "--world", "empty", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        while "Ctrl-C" not in server.stderr.readline():
            assert server.poll() is None
        url = f"http://127.0.0.1:{port}/fhir"
        with httpx.Client(transport=httpx.HTTPTransport(retries=5)) as idle:
            assert idle.get(f"{url}/metadata").status_code == 200
            with socket.create_connection(("127.0.0.1", port)) as slow:
                slow.sendall(b"POST /fhir/Patient HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
                server.send_signal(number)
                errors = server.communicate(timeout=20)[1]
    assert "Traceback" not in errors
    assert server.returncode == (130 if number == signal.SIGINT else -signal.SIGTERM)
