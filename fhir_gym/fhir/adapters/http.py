"""A session over HTTP: a Starlette application with a queue of requests, and `serve` for `fhir-gym serve`."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from html import escape
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
from fhir_gym.fhir.context import Validation
from fhir_gym.fhir.limits import Limits
from fhir_gym.fhir.messages import JSON, Request, Response
from fhir_gym.fhir.outcome import operation_outcome
from fhir_gym.fhir.session import Session
from fhir_gym.fhir.world import World
from fhir_gym.http_server import bind, make_http_server, read_body

BASE_PATH = "/fhir"
_PURPOSE = "All records are synthetic. Not for clinical use."
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
            return _outcome(404, f"This server answers under {_base_url(http)}. {_PURPOSE}")
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
                http.client, partial(answer, request), expected=_expected(request), is_wanted=_wanted(http)
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
    async def is_wanted() -> bool:
        return not await http.is_disconnected()

    return is_wanted


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


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{name} - fhir-gym</title>
<style>body {{ font-family: sans-serif; max-width: 42em; margin: 2em auto; line-height: 1.5; padding: 0 1em }}</style>
</head>
<body>
<h1>FHIR R4 server of fhir-gym</h1>
<p>This server contains the world <b>{name}</b>: {total} resources of {types} types.
It is made for programs and agents, and answers in JSON. Changes by clients are lost when the server stops.</p>
<p>Base URL for clients: <code>{base}</code></p>
<h2>To try</h2>
<ul>
{links}
</ul>
<p>From a terminal: <code>curl '{base}/{example}'</code></p>
<h2>To read</h2>
<ul>
<li><a href="{base}/metadata">CapabilityStatement</a>: every type, interaction and search parameter</li>
<li><code>docs/server.md</code> and <code>docs/hapi.md</code>: interactions, limits, differences from HAPI</li>
<li><a href="https://hl7.org/fhir/R4/http.html">FHIR R4: RESTful API</a></li>
</ul>
</body>
</html>
"""


def front_page(world: World, base: str) -> str:
    """Return the page as HTML that loads no other files."""
    counts = world.manifest.counts
    kinds = sorted(counts, key=lambda kind: (kind != "Patient", -counts[kind], kind))[:5]
    examples = [f"{kind}?_count=5" for kind in kinds] or ["Patient?_count=5"]
    links = "\n".join(
        f'<li><a href="{escape(f"{base}/{example}")}"><code>GET {escape(example)}</code></a></li>'
        for example in examples
    )
    return _PAGE.format(
        name=escape(world.manifest.name),
        total=f"{world.manifest.total:,}",
        types=len(counts),
        base=escape(base),
        links=links,
        example=escape(examples[0]),
    )


_CLIENTS = 4_096
"""Maximum number of clients in the usage record; the least recent client is dropped first."""

_ROUNDS = 12
"""Number of event loop rounds that a request needs to get from its socket into this queue."""

_HALF_LIFE = 10.0
"""Time in seconds after which a client's recorded use is halved."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A waiting request.

    `number` is the request's number in order of arrival; `wanted` returns whether the client is still connected.
    """

    client: Hashable
    expected: float
    work: Callable[[], Response]
    wanted: Callable[[], Awaitable[bool]]
    number: int
    answer: asyncio.Future[Response | None]


@dataclass(slots=True)
class RequestQueue:
    """Runs requests one after another. The client that has used the server least goes first.

    Between two requests, the event loop reads new requests. So a client waits only for the running request, and not for
    all earlier requests of another client.
    """

    clock: Callable[[], float] = time.perf_counter
    executor: Executor | None = None
    """Runs the requests; None for the event loop's thread, in which a short request takes least time."""
    _waiting: list[_Waiting] = field(default_factory=list)
    _used: OrderedDict[Hashable, tuple[float, float]] = field(default_factory=OrderedDict)
    _arrived: int = 0
    _task: asyncio.Task[None] | None = None

    async def run(
        self,
        client: Hashable,
        work: Callable[[], Response],
        *,
        expected: float,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> Response | None:
        """Wait for the request's turn and run it.

        Args:
            client: The client's address and port.
            work: Function that answers the request without waiting.
            expected: The expected duration in seconds. If clients have equal use, the shortest request goes first.
            is_wanted: Function that returns whether the client is still connected; called if the request had to wait.

        Returns:
            The response; None if the client is gone.
        """
        answer: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
        self._arrived += 1
        self._waiting.append(_Waiting(client, expected, work, is_wanted, self._arrived, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        try:
            waited = False
            while self._waiting:
                chosen = min(
                    self._waiting, key=lambda waiting: (self.used(waiting.client) + waiting.expected, waiting.number)
                )
                self._waiting.remove(chosen)
                if not chosen.answer.done():  # the answer to a cancelled request is already done
                    await self._answer(chosen, waited=waited)
                waited = True
                for _ in range(_ROUNDS if self._waiting else 0):  # the loop sends the answer and reads new requests
                    await asyncio.sleep(0)
        finally:
            self._task = None

    async def _answer(self, chosen: _Waiting, *, waited: bool) -> None:
        response: Response | None = None
        failure: Exception | None = None
        if not waited or await chosen.wanted():
            start = self.clock()
            try:
                if self.executor is None:
                    response = chosen.work()
                else:
                    response = await asyncio.get_running_loop().run_in_executor(self.executor, chosen.work)
            except Exception as error:
                failure = error
            self._use(chosen.client, self.clock() - start)
        if chosen.answer.done():
            return  # cancelled meanwhile
        if failure is None:
            chosen.answer.set_result(response)
        else:
            chosen.answer.set_exception(failure)

    def used(self, client: Hashable) -> float:
        """Return how much of the server's time a client has used recently, in seconds."""
        seconds, at = self._used.get(client, (0.0, 0.0))
        return seconds * 0.5 ** ((self.clock() - at) / _HALF_LIFE) if seconds else 0.0

    def _use(self, client: Hashable, seconds: float) -> None:
        self._used[client] = (self.used(client) + seconds, self.clock())
        self._used.move_to_end(client)
        if len(self._used) > _CLIENTS:
            self._used.popitem(last=False)
