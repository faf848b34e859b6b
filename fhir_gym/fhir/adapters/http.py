"""A session over HTTP: a Starlette application, and `serve` for `fhir-gym serve`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse
from starlette.responses import Response as HttpResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from fhir_gym.errors import InfraError, WorldError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.front_page import front_page
from fhir_gym.fhir.adapters.request_queue import RequestQueue
from fhir_gym.fhir.context import Validation
from fhir_gym.fhir.limits import Limits
from fhir_gym.fhir.messages import JSON, Request, Response
from fhir_gym.fhir.outcome import operation_outcome
from fhir_gym.fhir.session import Session
from fhir_gym.fhir.world import World
from fhir_gym.http_server import bind, make_http_server, read_body

BASE_PATH = "/fhir"
_PIECE = 65_536  # size in bytes of the pieces in which a large answer is sent


def create_app(
    world: World, *, validation: Validation = "hapi", identifier_of_type: bool = False, limits: Limits | None = None
) -> Starlette:
    """Return an ASGI application that serves one session of a world under `/fhir`.

    All clients share the session, and writes last until the process ends. Requests run one after another on the event
    loop: most requests take well under a millisecond, so threads would only add cost, and `limits` bounds every
    request. Of the waiting clients, the client that has used the server least goes first.

    Args:
        world: The world.
        validation: The validation mode; see `Session`.
        identifier_of_type: Whether `:of-type` is enabled; see `Session`.
        limits: The limits; see `Session`.
    """
    session = Session(world, validation=validation, identifier_of_type=identifier_of_type, limits=limits, pretty=True)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        session.close()

    app = Starlette(lifespan=lifespan)
    # For all methods and paths, so that every error is an OperationOutcome.
    app.router.default = fhir_endpoint(session.handle, session.limits, partial(front_page, world))
    return app


def fhir_endpoint(
    answer: Callable[[Request], Response],
    limits: Limits,
    page: Callable[[str], str] | None = None,
    executor: Executor | None = None,
) -> ASGIApp:
    """Return an ASGI application that answers FHIR requests under `/fhir`, one after another.

    Args:
        answer: Function that answers a request.
        limits: The limits of the server; longer bodies are not read to their end.
        page: Function from the base URL to the HTML page for browsers; None for no page.
        executor: Runs the function; None to run it on the event loop.
    """
    queue = RequestQueue(executor=executor)

    async def respond(http: HttpRequest) -> HttpResponse | None:
        path = _path(http)
        if page is not None and _is_browser_at_base(http, path):
            return HTMLResponse(page(_base_url(http)))
        if path != BASE_PATH and not path.startswith(f"{BASE_PATH}/"):
            return _outcome(404, f"This server answers under {_base_url(http)}")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(http.headers.raw)}
        request = Request(
            method=http.method,
            path=path.removeprefix(BASE_PATH),
            query=http.scope.get("query_string", b"").decode("latin-1"),
            headers={**headers, "x-forwarded-proto": http.scope["scheme"]},
            body=await read_body(http, limits.body_bytes),  # the session refuses a body that is too large
        )
        try:
            response = await queue.run(
                http.client, partial(answer, request), expected=_expected(request), wanted=_wanted(http)
            )
        except (InfraError, WorldError) as error:
            return _outcome(500, str(error))
        return None if response is None else _PiecewiseResponse(response.body, response.status, dict(response.headers))

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await respond(HttpRequest(scope, receive))
        except ClientDisconnect:
            return  # the client is gone
        except asyncio.CancelledError:  # the server stops before the whole request has arrived
            response = _outcome(503, "This server is being stopped")
        if response is not None:
            await response(scope, receive, send)

    return handle


class _PiecewiseResponse(HttpResponse):
    """A response that sends a large body in pieces, so that other responses need not wait."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) <= _PIECE:
            return await super().__call__(scope, receive, send)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        whole = memoryview(self.body)
        for start in range(0, len(whole), _PIECE):
            piece = bytes(whole[start : start + _PIECE])
            await send({"type": "http.response.body", "body": piece, "more_body": start + _PIECE < len(whole)})
        return None


def _expected(request: Request) -> float:
    """Estimate the duration of a request in seconds. Bundles take longest, then searches and operations, then reads."""
    if request.method == "POST" and not request.path.strip("/"):
        return 0.5
    _, _, rest = request.path.strip("/").partition("/")
    return 0.1 if not rest or rest.startswith("_") or "$" in rest else 0.0


def _wanted(http: HttpRequest) -> Callable[[], Awaitable[bool]]:
    async def wanted() -> bool:
        return not await http.is_disconnected()

    return wanted


def _is_browser_at_base(http: HttpRequest, path: str) -> bool:
    """Return whether a browser requests the base URL. Other clients do not ask for HTML."""
    at_base = path.rstrip("/") in ("", BASE_PATH) and not http.scope.get("query_string")
    return at_base and http.method == "GET" and "text/html" in http.headers.get("accept", "")


def _path(http: HttpRequest) -> str:
    """Return the percent-encoded path, even if the request line contains a whole URL (RFC 9112, 3.2.2)."""
    raw: bytes = http.scope.get("raw_path") or http.scope["path"].encode()
    path = raw.decode("latin-1").split("?", 1)[0]
    return urlsplit(path).path if path.startswith(("http://", "https://")) else path


def _base_url(http: HttpRequest) -> str:
    return f"{http.url.scheme}://{http.url.netloc}{BASE_PATH}"


def _outcome(status: int, text: str) -> HttpResponse:
    code = "not-found" if status == 404 else "exception"
    return HttpResponse(serialization.dumps(operation_outcome(text, code=code)), status, media_type=JSON)


def serve(
    world: World,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    validation: Validation = "hapi",
    identifier_of_type: bool = False,
) -> None:
    """Serve a world until the process is interrupted.

    Args:
        world: The world.
        host: The address to bind.
        port: The port to bind; 0 selects a free port.
        validation: The validation mode; see `Session`.
        identifier_of_type: Whether `:of-type` is enabled; see `Session`.

    Raises:
        FhirGymError: The address cannot be bound, for example because the port is in use.
    """
    with bind(host, port) as listener:
        app = create_app(world, validation=validation, identifier_of_type=identifier_of_type)
        make_http_server(app).run(sockets=[listener])
