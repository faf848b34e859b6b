"""A server that refuses resources with unknown references, as HAPI FHIR does by default, and that can fail."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from starlette.types import Receive, Scope, Send

from fhir_gym.fhir import Request, World
from fhir_gym.fhir.limits import Limits
from fhir_gym.worlds.bundles import rewrite_references
from tests.worlds.serving import served

Fault = Literal["503", "half", "lost", "entries"]
"""503 and half an answer: not executed. lost: executed, half an answer. entries: every second entry is not executed."""


class StrictServer:
    """An ASGI application with one session of a world.

    Args:
        world: What the server has at first.
        delay: Delay of each response in seconds.
        authorization: The required header, if any.
    """

    def __init__(self, world: World, *, delay: float = 0.0, authorization: str | None = None) -> None:
        self.session = world.session(limits=Limits(overlay_bytes=1 << 34))
        self.known = {f"{r['resourceType']}/{r['id']}" for r in map(json.loads, world.resources())}
        self.delay, self.authorization = delay, authorization
        self.requests = 0
        self.written = Counter[str]()
        self.faults: dict[int, Fault] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.requests += 1
        time.sleep(self.delay)
        fault = self.faults.pop(self.requests, None)
        if self.authorization and headers.get("authorization") != self.authorization:
            return await answer(send, 401, _outcome(f"unknown: {headers.get('authorization')}"))
        if fault == "503":
            return await answer(send, 503, _outcome("the database is away"))
        if fault == "half":
            return await answer(send, 200, b'{"resourceType":', missing=100)
        path = scope["path"].removeprefix("/fhir")
        request = Request(scope["method"], path, scope["query_string"].decode(), headers, body)
        status, content = self._batch(request, fault) if request.method == "POST" else self._handle(request)
        return await answer(send, status, content[: len(content) // 2] if fault == "lost" else content, len(content))

    def _handle(self, request: Request) -> tuple[int, bytes]:
        response = self.session.handle(request)
        return response.status, response.body

    def _batch(self, request: Request, fault: Fault | None) -> tuple[int, bytes]:
        bundle = json.loads(request.body)
        answers: list[Any] = [self._refusal(entry) for entry in bundle["entry"]]
        if fault == "entries":
            answers[::2] = [{"response": {"status": "503 Service Unavailable"}} for _ in answers[::2]]
        taken = [entry for entry, answer in zip(bundle["entry"], answers, strict=True) if answer is None]
        if taken:
            body = json.dumps({**bundle, "entry": taken}).encode()
            response = self.session.handle(Request("POST", "", headers=request.headers, body=body))
            if response.status != 200:
                return response.status, response.body
            found = iter(response.json()["entry"])
            answers = [next(found) if answer is None else answer for answer in answers]
        written = [entry["request"]["url"] for entry in taken if entry["request"]["method"] == "PUT"]
        self.known.update(written)
        self.written.update(written)
        return 200, json.dumps({"resourceType": "Bundle", "type": "batch-response", "entry": answers}).encode()

    def _refusal(self, entry: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer for a write with a reference that was unknown before this batch."""
        unknown: list[str] = []

        def check(target: str) -> str:
            if target not in self.known:
                unknown.append(target)
            return target

        rewrite_references(entry.get("resource"), check)
        if not unknown:
            return None
        outcome = json.loads(_outcome(f"Resource {unknown[0]} not found"))
        return {"response": {"status": "400 Bad Request", "outcome": outcome}}


@contextmanager
def strict_server(world: World, **settings: Any) -> Iterator[tuple[str, StrictServer]]:
    """Serve a world; yield the base URL and the application."""
    app = StrictServer(world, **settings)
    with served(app) as url:
        yield url, app


async def answer(send: Send, status: int, body: bytes, length: int = 0, *, missing: int = 0) -> None:
    """Send a whole answer, or one that ends too early if `length` or `missing` say so."""
    headers = [
        (b"content-type", b"application/fhir+json"),
        (b"content-length", str(max(length, len(body)) + missing).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _outcome(text: str) -> bytes:
    issue = {"severity": "error", "code": "processing", "diagnostics": text}
    return json.dumps({"resourceType": "OperationOutcome", "issue": [issue]}).encode()
