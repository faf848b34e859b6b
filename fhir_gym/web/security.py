"""Protection of the viewer: requests come from this machine and its own pages, and pages run no foreign script."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

    Args:
        app: The application.
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
    known = (None, f"http://{host}") if site is None else (None, f"http://{host}", "null")
    if site not in (None, "same-origin") or origin not in known:
        return "This viewer accepts forms only from its own pages.\n"
    return None


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
