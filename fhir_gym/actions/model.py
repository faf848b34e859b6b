"""The action data model, and constructors for reference solutions and agents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal
from urllib.parse import quote, unquote, urlencode, urlsplit

import orjson

from fhir_gym.fhir.messages import Request
from fhir_gym.types import Json

Kind = Literal["GET", "POST", "PUT", "PATCH", "DELETE", "FINISH"]
"""Verb of an action."""
KINDS: tuple[Kind, ...] = ("GET", "POST", "PUT", "PATCH", "DELETE", "FINISH")
EXAMPLES: dict[Kind, str] = {
    "GET": "GET /Patient?family=Lee&birthdate=1980-02-03",
    "POST": 'POST /Patient\n{"resourceType": "Patient", "name": [{"family": "Lee"}]}',
    "PUT": 'PUT /Patient/12\n{"resourceType": "Patient", "id": "12", "gender": "female"}',
    "PATCH": 'PATCH /Patient/12\n[{"op": "replace", "path": "/gender", "value": "female"}]',
    "DELETE": "DELETE /Appointment/12",
    "FINISH": 'FINISH(["12"])',
}
"""A valid action of every kind."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action; create it with `Get`, `Post`, `Put`, `Patch`, `Delete` or `Finish`.

    Attributes:
        kind: The HTTP verb, or ``FINISH``.
        url: Absolute URL, or URL relative to the server's base URL (``/Patient/1``, ``Patient/1``); empty for
            ``FINISH``.
        body: JSON text of the body; None for no body.
        answer: The answer of ``FINISH``; None for requests.
        headers: Request headers, with names in HTTP's usual capitalisation.
    """

    kind: Kind
    url: str = ""
    body: str | None = None
    answer: list[Json] | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """Return the action as text; `parse` is the inverse."""
        if self.kind == "FINISH":
            return f"FINISH({json.dumps(self.answer or [], ensure_ascii=False)})"
        lines = [f"{self.kind} {self.url}", *(f"{name}: {value}" for name, value in self.headers)]
        if self.body is not None:
            lines.append(self.body)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Invalid:
    """An invalid action.

    Attributes:
        reason: What is wrong, in one sentence.
        example: A valid action of the kind that the agent probably meant.
    """

    prefix: ClassVar[str] = "Invalid action: "
    reason: str
    example: str

    def text(self) -> str:
        """Return the explanation for the agent."""
        return f"{self.prefix}{self.reason}\nExample of a valid action:\n{self.example}"


def _body_text(body: Json) -> str | None:
    if body is None or isinstance(body, str):
        return body
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def _headers(headers: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple((headers or {}).items())


def Get(url: str, params: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None) -> Action:
    """Return the action for a read or a search.

    Args:
        url: Relative or absolute URL.
        params: Search parameters without percent-encoding. A list as a value repeats the parameter.
    """
    if params is not None:
        url += ("&" if "?" in url else "?") + _query(params)
    return Action("GET", url)


def Post(url: str, body: Json = None, headers: Mapping[str, str] | None = None) -> Action:
    """Return the action for a create, a Bundle (at ``/``) or an operation; `body` is JSON text or a JSON value."""
    return Action("POST", url, _body_text(body), headers=_headers(headers))


def Put(url: str, body: Json, headers: Mapping[str, str] | None = None) -> Action:
    """Return the action for an update with a complete resource."""
    return Action("PUT", url, _body_text(body), headers=_headers(headers))


def Patch(url: str, body: Json, headers: Mapping[str, str] | None = None) -> Action:
    """Return the action for a JSON Patch (a list of operations) or a FHIRPath Patch (a Parameters resource)."""
    return Action("PATCH", url, _body_text(body), headers=_headers(headers))


def Delete(url: str) -> Action:
    """Return the action for a delete."""
    return Action("DELETE", url)


def Finish(answer: Iterable[Json] = ()) -> Action:
    """Return the action that ends the episode with an answer."""
    return Action("FINISH", answer=list(answer))


def _query(params: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    pairs = params.items() if isinstance(params, Mapping) else params
    return urlencode([(k, _value(v)) for k, vs in pairs for v in (vs if isinstance(vs, list | tuple) else [vs])])


def _value(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


_MAX_URL_LENGTH = 8_192
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LONE_SURROGATES = re.compile(r"[\ud800-\udfff]")
_MAYBE_DOTS = re.compile(r"\.|%2[eE]")
_URL_SAFE = "%!$&'()*+,;=:@/?|[]\"<>`{}\\^~-._"


@lru_cache(256)  # the parser asks first, and then `to_request`, which also gets actions that were not parsed
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


_MAX_DEPTH = 64
"""Maximum nesting depth of a body or an answer. FHIR resources are nested far less deeply."""
_CONTAINERS = (list, dict)
_LONG = re.compile(r"[0-9]{19}")


def parse_json(text: str) -> tuple[Json, str | None]:
    """Parse a JSON text, which may have integers of any size; return the value and an error message or None."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return None, str(error)
    problem = too_deep(value)
    if problem is None and _LONG.search(text):
        value = json.loads(text)  # orjson converts integers beyond 64 bits to floats
    return value, problem


def json_problem(text: str) -> str | None:
    """Return an error message if a text is not valid JSON; None otherwise."""
    try:
        return too_deep(orjson.loads(text))
    except orjson.JSONDecodeError as error:
        return str(error)


def too_deep(value: Json) -> str | None:
    """Return an error message if a decoded value is nested too deeply, else None."""
    level: list[Json] = [value]
    for _ in range(_MAX_DEPTH + 1):
        below: list[Json] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = [item for item in below if item and isinstance(item, _CONTAINERS)]
        if not level:
            return None
    return f"it is nested more than {_MAX_DEPTH} levels deep"


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
    if _MAYBE_DOTS.search(path) and any(unquote(segment) in (".", "..") for segment in path.split("/")):
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
        parts = urlsplit(target) if "//" in target else None
    except ValueError:
        return None
    path = target
    if parts is not None and (parts.netloc or target.startswith("//")):
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
