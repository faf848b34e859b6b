"""The HTTP protocol answers as h11 does, whatever a client sends and in whatever pieces."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fhir_gym.http_server import HttpProtocol

HOST = b"Host: x\r\n"
GET = b"GET /fhir/Patient?name=%20a HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /fhir/Patient HTTP/1.1\r\n" + HOST + b"Content-Length: 7\r\nContent-Type: a/b\r\n\r\nGET / \r"
LATE = b"PUT /late HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc"  # answered before its body is read
ODD = [
    b"BREW /fhir HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /fhir HTTP/1.1\r\n" + HOST + "X: ä\r\n\r\n".encode(),
    b"POST /fhir HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HEAD /fhir HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
    b"GET /fhir HTTP/1.0\r\n" + HOST + b"\r\n",
    b"GET /fhir HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 70_000,
    b"no request\r\n\r\n",
]
ANSWER = re.compile(rb"HTTP/1\.1 (\d+)|\r\n\r\n(\[.*?)(?=HTTP/1\.1 \d|$)", re.DOTALL)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    body = b"" if request.url.path == "/late" else await request.body()
    query = scope["query_string"].decode("latin-1")
    headers = sorted((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    await JSONResponse([scope["method"], scope["path"], query, headers, len(body)])(scope, receive, send)


class Wire(asyncio.Transport):
    """The transport of a connection without a network."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent = b""
        self.paused = self.closed = False
        self.protocol: asyncio.Protocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


async def answers(
    kind: type[H11Protocol] | type[HttpProtocol], pieces: Sequence[bytes]
) -> tuple[bool, list[tuple[bytes, bytes]]]:
    """Whether the server closed the connection, and the statuses and bodies of its responses."""
    config = uvicorn.Config(echo, log_level="critical", access_log=False, ws="none")
    config.load()
    wire, state = Wire(), ServerState()
    wire.set_protocol(kind(config, state, {}))
    assert wire.protocol is not None
    wire.protocol.connection_made(wire)
    for piece in pieces:
        while wire.paused:
            await asyncio.sleep(0)
        if not wire.closed:
            wire.protocol.data_received(piece)
        await asyncio.sleep(0)
    while state.tasks:
        await asyncio.sleep(0)
    wire.protocol.connection_lost(None)
    return wire.closed, ANSWER.findall(wire.sent)


@given(st.lists(st.sampled_from([GET, GET, POST, POST, LATE, *ODD]), max_size=5), st.lists(st.integers(1, 400)))
@example([GET, POST, GET, ODD[0]], [])
@example([POST, LATE, GET], [3] * 200)
@example([GET, ODD[5]], [len(GET) - 5])
def test_it_answers_as_h11(requests: list[bytes], lengths: list[int]) -> None:
    data, pieces = b"".join(requests), []
    for length in lengths:
        pieces.append(data[:length])
        data = data[length:]
    pieces = [piece for piece in (*pieces, data) if piece]
    expected = asyncio.run(answers(H11Protocol, pieces))
    assert asyncio.run(answers(HttpProtocol, pieces)) == expected
