"""The viewer as a protected Starlette application, and `serve_viewer` for `fhir-gym view`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from ipaddress import ip_address
from os import PathLike
from traceback import format_exception
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fhir_gym.errors import ArgumentError, FhirGymError, UnknownNameError
from fhir_gym.http_server import bind, make_http_server
from fhir_gym.printable import visible
from fhir_gym.web.context import ASSETS, PageTemplates, ViewerContext
from fhir_gym.web.links import Links
from fhir_gym.web.pages import page_routes
from fhir_gym.web.rollout_index import RolloutIndex, UnknownEpisodeError
from fhir_gym.web.world_store import WorldStore

if TYPE_CHECKING:
    from fhir_gym.fhir import World


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy of every answer."""
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SAFE_METHODS = ("GET", "HEAD")


class SecurityMiddleware:
    """Refuses requests of other sites and other machines, and adds security headers to every answer.

    A Host header that is not a loopback name is refused, since a foreign name may resolve to this machine (DNS
    rebinding). A POST is refused if the browser says that another site sends it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        problem = _problem(scope["method"], Headers(scope=scope))
        if problem is not None:
            return await PlainTextResponse(problem, 403)(scope, receive, send_with_headers)
        return await self._app(scope, receive, send_with_headers)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address stands for this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _problem(method: str, headers: Headers) -> str | None:
    """Return why a request is refused; None for a good request."""
    host = headers.get("host", "")
    if not is_loopback(_hostname(f"//{host}")):
        return "This viewer answers only requests to 127.0.0.1 or localhost.\n"
    if method in _SAFE_METHODS:
        return None
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    # From a page with the policy `no-referrer`, browsers send the origin "null"; then the site alone decides.
    own_origins = (None, f"http://{host}") if site is None else (None, f"http://{host}", "null")
    if site not in (None, "same-origin") or origin not in own_origins:
        return "This viewer accepts forms only from its own pages.\n"
    return None


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


_log = logging.getLogger(__name__)


def create_viewer(paths: Sequence[str | PathLike[str]] = (), *, world: World | None = None) -> Starlette:
    """Return an ASGI application with the pages of the viewer.

    The application follows the files in a thread from its start to its end. It has no login and must listen on a
    loopback address only; it refuses requests with another Host header.

    Args:
        paths: Rollout files, and folders of experiments.
        world: A world to show in addition to the installed worlds. The application closes it.

    Raises:
        MissingExtraError: Jinja2 is not installed.
        RecordError: A file does not exist.
    """
    templates = PageTemplates()
    context = ViewerContext(
        index=RolloutIndex(paths), worlds=WorldStore([world] if world else []), links=Links(), templates=templates
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        context.index.follow()
        yield
        context.index.close()
        context.plays.close()
        context.worlds.close()

    def show_error(_: Request, error: Exception) -> Response:
        return _error_page(context, error)

    own = [Route("/static/{name}", _asset, name="asset"), Route("/state", _state(context), name="state")]
    return Starlette(
        routes=[*own, *page_routes(context)],
        middleware=[Middleware(SecurityMiddleware), Middleware(_BugPages, context=context)],
        exception_handlers={HTTPException: show_error, FhirGymError: show_error},
        lifespan=lifespan,
    )


def serve_viewer(
    paths: Sequence[str | PathLike[str]],
    *,
    world: World | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    ready: Callable[[str], object] | None = None,
) -> None:
    """Serve the viewer until the process is interrupted.

    Args:
        paths: Rollout files, and folders of experiments.
        world: A world to show in addition to the installed worlds.
        host: A loopback address.
        port: The port; 0 selects a free port.
        ready: Function that is called with the viewer's URL as soon as browsers can connect.

    Raises:
        ArgumentError: The address is not a loopback address or cannot be bound, or a file does not exist.
    """
    if not is_loopback(host):
        raise ArgumentError(
            f"{host} is not a loopback address: the viewer has no login; use 127.0.0.1 and an SSH tunnel"
        )
    with bind(host, port) as listener:
        server = make_http_server(create_viewer(paths, world=world))
        if ready is not None:
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{listener.getsockname()[1]}/")
        server.run(sockets=[listener])


def _asset(request: Request) -> Response:
    """Return a static file of the package; the name is looked up in a table, never used as a path."""
    asset = ASSETS.get(request.path_params["name"])
    if asset is None:
        raise HTTPException(404, "There is no such file.")
    path, media_type = asset
    return Response(path.read_bytes(), media_type=media_type)


def _state(context: ViewerContext) -> Callable[[Request], Response]:
    """Return the endpoint that tells the script of the pages whether the table has changed."""

    def state(_: Request) -> Response:
        index_state = context.index.state
        return JSONResponse(
            {"version": index_state.version, "episodes": index_state.episodes, "complete": index_state.complete}
        )

    return state


class _BugPages:
    """Shows a page after an unexpected exception, which Starlette would show without the security headers."""

    def __init__(self, app: ASGIApp, context: ViewerContext) -> None:
        self._app, self._context = app, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception as error:
            _log.error("%s", visible("".join(format_exception(error)), keep="\n"))
            if not started and scope["type"] == "http":
                await _error_page(self._context, error)(scope, receive, send)


def _error_page(context: ViewerContext, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
    elif isinstance(error, UnknownNameError | UnknownEpisodeError):
        status, message = 404, str(error)
    elif isinstance(error, FhirGymError):
        status, message = 500, str(error)
    else:
        status, message = 500, f"{type(error).__name__}: a bug in fhir_gym; the terminal shows the traceback."
    title = HTTPStatus(status).phrase if status < 500 else "This page cannot be shown"
    message = message if message != title else "There is no such page."
    return HTMLResponse(context.render("error.html.j2", title=title, message=message), status)
