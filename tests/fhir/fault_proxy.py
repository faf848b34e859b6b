"""An HTTP proxy that injects faults between a client and a server."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

_RESET = struct.pack("ii", 1, 0)  # closing the socket resets the connection
_DROPPED = ("connection", "keep-alive", "transfer-encoding", "content-length", "date", "server")


class Answer(NamedTuple):
    """The server's answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Exchange:
    """One request on its way through the proxy."""

    def __init__(self, handler: BaseHTTPRequestHandler, upstream: str) -> None:
        self.method, self.path = handler.command, handler.path
        self._handler, self._upstream = handler, upstream
        self._body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))

    def forward(self) -> Answer:
        """Send the request to the server."""
        connection = http.client.HTTPConnection(self._upstream, timeout=30)
        try:
            connection.request(self.method, self.path, self._body, dict(self._handler.headers.items()))
            response = connection.getresponse()
            kept = {name: value for name, value in response.getheaders() if name.lower() not in _DROPPED}
            return Answer(response.status, kept, response.read())
        finally:
            connection.close()

    def reply(self, answer: Answer, *, half: bool = False) -> None:
        """Send an answer to the client, or only the first half of its body."""
        self._handler.send_response(answer.status)
        for name, value in answer.headers.items():
            self._handler.send_header(name, value)
        self._handler.send_header("Content-Length", str(len(answer.body) or int(half)))
        self._handler.end_headers()
        self._handler.wfile.write(answer.body[: len(answer.body) // 2] if half else answer.body)
        if half:
            self.close()

    def reset(self) -> None:
        """Reset the connection to the client."""
        self._handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()

    def close(self) -> None:
        """Close the connection to the client."""
        self._handler.close_connection = True
        self._handler.wfile.flush()
        self._handler.connection.close()


Fault = Callable[[Exchange], None]


def no_fault(exchange: Exchange) -> None:
    exchange.reply(exchange.forward())


def delay(exchange: Exchange) -> None:
    time.sleep(0.03)
    no_fault(exchange)


def reset_before(exchange: Exchange) -> None:
    exchange.reset()


def reset_after(exchange: Exchange) -> None:
    exchange.forward()
    exchange.reset()


def reset_during(exchange: Exchange) -> None:
    """Reset the connection before the server has received the request."""
    threading.Timer(0.02, exchange.forward).start()
    exchange.reset()


def too_many(exchange: Exchange) -> None:
    exchange.reply(Answer(429, {"Retry-After": "0"}, b""))


def unavailable_before(exchange: Exchange) -> None:
    exchange.reply(Answer(503, {"Content-Type": "text/plain"}, b"busy"))


def unavailable_after(exchange: Exchange) -> None:
    exchange.forward()
    unavailable_before(exchange)


def half_answer(exchange: Exchange) -> None:
    exchange.reply(exchange.forward(), half=True)


FAULTS: tuple[Fault, ...] = (
    delay,
    reset_before,
    reset_after,
    reset_during,
    too_many,
    unavailable_before,
    unavailable_after,
    half_answer,
)


@contextmanager
def fault_proxy(server: str, handle: Callable[[Exchange], None]) -> Iterator[str]:
    """Start a proxy.

    Args:
        server: Base URL of the server.
        handle: Called with each exchange, one at a time.

    Yields:
        The base URL of the server through the proxy.
    """
    upstream, one_at_a_time = urlsplit(server), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body leave together
        disable_nagle_algorithm = True

        def _handle(self) -> None:
            exchange = Exchange(self, upstream.netloc)
            with one_at_a_time:
                handle(exchange)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that is killed breaks its connections

    with Server(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}{upstream.path}"
        finally:
            proxy.shutdown()
            thread.join()
