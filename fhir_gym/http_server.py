"""What all HTTP servers of fhir_gym share: the socket, the settings of uvicorn, and reading a body."""

from __future__ import annotations

import re
import socket

import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fhir_gym.errors import FhirGymError

__all__ = ["HttpProtocol", "bind", "make_http_server", "read_body"]

_MAX_CONNECTIONS = 1_024  # so that the bodies of all clients fit into memory
_SHUTDOWN_SECONDS = 2  # time that running requests have to finish when the server stops
_HEADER = rb"""
    (?i: content-length: [ ]* (?P<length> [0-9]{1,12}) \r\n
    | (?! content-length | transfer-encoding | expect | upgrade ) [!-9;-~]+ : [\t -~]* \r\n )
"""
_HEAD = re.compile(
    rb"(?: GET|HEAD|POST|PUT|PATCH|DELETE ) [ ] / [!-\"$-~]* [ ] HTTP/1\.1\r\n (?: %b )* \r\n" % _HEADER, re.VERBOSE
)
"""The head of a usual request."""


class HttpProtocol(HttpToolsProtocol):
    """Reads usual requests with httptools, which saves 0.08 ms for each, and leaves other connections to h11.

    httptools itself has no limit on the size of headers, and its errors do not reach the application. So it gets only
    whole heads of requests that `_HEAD` matches, and then as many bytes as the request says.
    """

    _body = 0
    """Number of bytes of the current body that have not arrived."""
    _waiting = b""
    """The part of the next request that has arrived before the response to the current request."""

    @override
    def data_received(self, data: bytes) -> None:
        if self._body:
            part, data = data[: self._body], data[self._body :]
            self._body -= len(part)
            super().data_received(part)
        if not data:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._waiting += data
            self.flow.pause_reading()
        elif head := _HEAD.match(data):
            self._body = int(head["length"] or 0)
            super().data_received(head[0])
            self.data_received(data[head.end() :])
        else:
            self._leave_to_h11(data)

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        data, self._waiting = self._waiting, b""
        if data and not self.transport.is_closing():
            self.data_received(data)

    def _leave_to_h11(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        protocol = H11Protocol(self.config, self.server_state, self.app_state)
        protocol.connection_made(self.transport)
        self.transport.set_protocol(protocol)
        protocol.data_received(data)


def make_http_server(app: ASGIApp) -> uvicorn.Server:
    """Return a server for an application; its `run` and `serve` take the sockets that `bind` opens."""
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        limit_concurrency=_MAX_CONNECTIONS,
    )
    return uvicorn.Server(config)


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket. A port in use is thus reported before the server starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only if the protocol is given. With Nagle's algorithm, each answer waits 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # otherwise the body is sent 40 ms after the headers
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise FhirGymError(f"cannot serve on {host}:{port}: {error.strerror or error}") from error
    return listener


async def read_body(http: Request, most: int) -> bytes:
    """Return the body of a request. Of a body that is larger than `most` bytes, return a part that is larger too."""
    body = bytearray()
    async for chunk in http.stream():
        body += chunk
        if len(body) > most:
            break  # reading on would fill memory
    return bytes(body)
