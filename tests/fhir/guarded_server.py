"""Servers that require a header and quote it, or that fail after a number of requests."""

from __future__ import annotations

import json

from starlette.types import ASGIApp, Receive, Scope, Send

from tests.worlds.strict_server import answer


class GuardedServer:
    """An ASGI application that quotes the request's headers.

    Args:
        app: The FHIR server.
        headers: The required headers, with lower-case names.

    Attributes:
        failing: Whether all requests fail with status 500.
    """

    def __init__(self, app: ASGIApp, headers: dict[str, str]) -> None:
        self.app, self.headers = app, headers
        self.failing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        sent = {key.decode(): value.decode() for key, value in scope["headers"]}
        quoted = json.dumps({"resourceType": "Basic", "id": "echo", "headers": sent}).encode()
        if any(sent.get(name) != value for name, value in self.headers.items()):
            return await answer(send, 401, quoted)
        if self.failing:
            return await answer(send, 500, quoted)
        if scope["path"].endswith("/Basic/echo"):
            return await answer(send, 200, quoted)
        return await self.app(scope, receive, send)


class FailingServer:
    """An ASGI application that answers 503 after a number of requests.

    Args:
        app: The FHIR server.
        left: Number of requests that it answers.

    Attributes:
        requests: Number of requests so far.
    """

    def __init__(self, app: ASGIApp, left: float = 7) -> None:
        self.app, self.left = app, left
        self.requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.requests += 1
            self.left -= 1
            if self.left < 0:
                return await answer(send, 503, b"{}")
        return await self.app(scope, receive, send)
