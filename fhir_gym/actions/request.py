"""Convert actions to HTTP requests."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit

from fhir_gym.actions.model import EXAMPLES, Action, Invalid
from fhir_gym.fhir.messages import Request

_MAX_URL_LENGTH = 8_192
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LONE_SURROGATES = re.compile(r"[\ud800-\udfff]")
_URL_SAFE = "%!$&'()*+,;=:@/?|[]\"<>`{}\\^~-._"


def url_problem(url: str) -> str | None:
    """Return an error message for a URL that no server can accept; None for other URLs."""
    if len(url) > _MAX_URL_LENGTH:
        return f"the url is longer than {_MAX_URL_LENGTH:,} characters"
    if CONTROL.search(url):
        return "the url contains control characters"
    if _LONE_SURROGATES.search(url):
        return "the url contains invalid Unicode characters (lone surrogates)"
    if "#" in url:
        return "the url must not contain '#'; write %23 for the character itself"
    if " " in url.partition("?")[0]:
        return "no text may follow the url, and its path must not contain spaces (write %20 for a space)"
    return None


def to_request(action: Action, base_url: str) -> Request | Invalid:
    """Return the HTTP request of an action.

    Args:
        action: Any action except ``FINISH``.
        base_url: The server's base URL without a trailing slash. URLs of other servers are refused.
    """
    example = EXAMPLES[action.kind]
    problem = url_problem(action.url)
    if problem:
        return Invalid(problem, example)
    target, _, query = action.url.partition("?")
    path = _path_below(target, base_url)
    if path is None:
        return Invalid(f"only the server at {base_url} can be reached, not {target[:200]!r}", example)
    if any(unquote(segment) in (".", "..") for segment in path.split("/")):
        return Invalid("the path of the url must not contain '.' or '..' segments", example)
    headers = {name.lower(): value for name, value in action.headers}
    if action.body is not None:
        headers.setdefault("content-type", _content_type(action, path))
    body = (action.body or "").encode("utf-8", "replace")
    return Request(action.kind, quote(path, safe=_URL_SAFE), quote(query, safe=_URL_SAFE), headers, body)


def _content_type(action: Action, path: str) -> str:
    if path.rstrip("/").endswith("/_search"):
        return "application/x-www-form-urlencoded"
    if action.kind == "PATCH" and (action.body or "").lstrip().startswith("["):
        return "application/json-patch+json"
    return "application/fhir+json"


def _path_below(target: str, base_url: str) -> str | None:
    """Return the path relative to the base URL, with a leading slash; None for a URL of another server."""
    try:
        base = urlsplit(base_url)
        parts = urlsplit(target)
    except ValueError:
        return None
    path = target
    if parts.netloc or target.startswith("//"):
        same_server = (parts.scheme, parts.netloc.lower()) == (base.scheme, base.netloc.lower())
        if not same_server or not _is_below(parts.path, base.path):
            return None
        path = parts.path
    if base.path.strip("/") and _is_below(path, base.path):
        path = path[len(base.path.rstrip("/")) :]
    return "/" + path.lstrip("/")


def _is_below(path: str, base_path: str) -> bool:
    prefix = base_path.rstrip("/")
    return path == prefix or path.startswith(prefix + "/")
