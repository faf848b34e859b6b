"""Serve an ASGI application over HTTP in a thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from fhir_gym.testing.servers import AppServer


@contextmanager
def served(app: ASGIApp, port: int = 0) -> Iterator[str]:
    """Serve an application under `/fhir`, by default on a free port; return the base URL."""
    with AppServer(app, port, log_level="error") as server:
        yield f"{server.url}/fhir"


class Watched:
    """Records every request before the application responds.

    Args:
        app: The application.
        delay: Delay of each response in seconds.
    """

    def __init__(self, app: ASGIApp, delay: float = 0.0) -> None:
        self.app, self.delay = app, delay
        self.seen: list[str] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.seen.append(f"{scope['path']}?{scope['query_string'].decode()}")
            self.headers.append({key.decode(): value.decode() for key, value in scope["headers"]})
            time.sleep(self.delay)
        await self.app(scope, receive, send)

    def pages(self) -> list[str]:
        """Return the requests for pages of resources."""
        return [url for url in self.seen if "_summary" not in url and "metadata" not in url]
