"""What all HTTP servers of fhir_gym share: the socket, the settings of uvicorn, and reading a body."""

from __future__ import annotations

import socket

import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp

from fhir_gym.errors import FhirGymError

__all__ = ["bind", "make_http_server", "read_body"]

_MAX_CONNECTIONS = 1_024  # so that the bodies of all clients fit into memory
_SHUTDOWN_SECONDS = 2  # time that running requests have to finish when the server stops


def make_http_server(app: ASGIApp) -> uvicorn.Server:
    """Return a server for an application; its `run` and `serve` take the sockets that `bind` opens."""
    config = uvicorn.Config(
        app,
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
