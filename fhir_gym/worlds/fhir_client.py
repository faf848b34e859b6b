"""HTTP client that reads all resources of a FHIR server, with retries."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit, urlunsplit

import httpx

from fhir_gym.errors import WorldError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.redirects import destination
from fhir_gym.printable import one_line
from fhir_gym.types import Json, Resource

_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_ATTEMPTS = 7  # the pauses between the attempts add up to half a minute
_LONGEST_PAUSE = 60.0
_ANSWER_BYTES = 32 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LINK_CHARS = 10_000
_ENCODINGS = "gzip, deflate"  # other encodings could expand a few bytes to gigabytes in one step


class _Answer(NamedTuple):
    status: int
    headers: httpx.Headers
    content: bytes


class ExpiredError(WorldError):
    """The server no longer has the search to which a page belongs."""


class LinkError(WorldError):
    """The next links of a search are invalid or do not end."""


@dataclass(frozen=True)
class Page:
    """The matches on one page of search results, and the URL of the next page, if any."""

    resources: list[Resource]
    next: str | None


class FhirClient:
    """Read-only client of one FHIR server.

    Args:
        url: Base URL, such as ``http://localhost:8080/fhir``. A user and password in the URL are sent as basic
            authentication.
        headers: Headers of every request, such as ``Authorization``.
        timeout: Timeout of one request in seconds.
        pause: Function that waits before a retry; called with the number of seconds.

    Raises:
        WorldError: The base URL or a header is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 120.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = _split(url)
        place = parts.netloc.rpartition("@")[2]
        self.base = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
        self.name = re.sub(r"[^A-Za-z0-9]+", "-", place + parts.path).strip("-")[:100] or "server"
        auth = (parts.username, parts.password or "") if parts.username is not None else None
        sent = {"Accept": "application/fhir+json", "Accept-Encoding": _ENCODINGS, "Cache-Control": "no-cache"}
        sent |= _sendable(headers or {})
        self._client = httpx.Client(timeout=timeout, headers=sent, auth=auth, follow_redirects=False)
        self._pause = pause

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def types(self) -> list[str]:
        """Return the searchable resource types listed in the server's CapabilityStatement.

        Raises:
            WorldError: The server is unreachable or not an R4 server.
        """
        found = self._get(f"{self.base}/metadata", retry_connect=False)
        if found.get("resourceType") != "CapabilityStatement":
            raise WorldError(f"{self.base} is not a FHIR server: {self.base}/metadata is not a CapabilityStatement")
        version = str(found.get("fhirVersion", "4"))
        if not version.startswith("4"):
            raise WorldError(f"{self.base} is a server of FHIR {one_line(version, 60)}; only R4 can be imported")
        rest = [part for part in _objects(found.get("rest")) if part.get("mode", "server") == "server"]
        types = [_searchable(entry) for part in rest for entry in _objects(part.get("resource"))]
        return list(dict.fromkeys(name for name in types if name))

    def count(self, resource_type: str) -> int | None:
        """Return the server's total of a resource type; None if the server reports no total."""
        found = self._get(f"{self.base}/{resource_type}?{urlencode({'_summary': 'count'})}")
        total = found.get("total")
        return total if isinstance(total, int) and total >= 0 else None

    def first(self, resource_type: str, page_size: int) -> str:
        """Return the URL of the first page of a resource type."""
        return f"{self.base}/{resource_type}?{urlencode({'_count': page_size})}"

    def page(self, url: str, resource_type: str) -> Page:
        """Fetch a page.

        Args:
            url: URL of the page.
            resource_type: Resource type of the matches.

        Raises:
            ExpiredError: The server no longer has the search.
            LinkError: The next link is invalid.
            WorldError: All retries failed, or the response is not a page of this type.
        """
        bundle = self._get(url)
        if bundle.get("resourceType") != "Bundle":
            raise WorldError(f"the response to {url} is not a Bundle")
        resources = []
        for entry in _objects(bundle.get("entry")):
            search = entry.get("search")
            if isinstance(search, dict) and search.get("mode", "match") != "match":
                continue
            resource = entry.get("resource")
            if not isinstance(resource, dict) or resource.get("resourceType") != resource_type:
                raise WorldError(f"the response to {url} contains a resource that is not a {resource_type}")
            resources.append(resource)
        return Page(resources, self._next(url, bundle))

    def _next(self, url: str, bundle: Resource) -> str | None:
        """Return the next page's URL with the configured host: behind a proxy, the server may report another host."""
        for link in _objects(bundle.get("link")):
            if link.get("relation") == "next" and isinstance(link.get("url"), str):
                if len(link["url"]) > _LINK_CHARS:
                    raise LinkError(f"the next link of {self.base} has {len(link['url']):,} characters")
                try:
                    target, here = urlsplit(urljoin(url, link["url"])), urlsplit(self.base)
                except ValueError as error:
                    shown = one_line(link["url"], 200)
                    raise LinkError(f"invalid next link {shown!r} of {self.base}: {error}") from error
                following: str = urlunsplit((here.scheme, here.netloc, target.path, target.query, ""))
                if following == url:
                    raise LinkError(f"the next link of {url} points to the same page")
                return following
        return None

    def _get(self, url: str, *, retry_connect: bool = True) -> Resource:
        """Fetch a resource, with retries after transient failures.

        Args:
            url: URL of the resource.
            retry_connect: Whether to retry if the connection fails; False for the first request.
        """
        trouble = ""
        for attempt in range(_ATTEMPTS):
            wait = min(_LONGEST_PAUSE, 0.5 * 2**attempt)
            try:
                answer = self._ask(url)
            except httpx.RequestError as error:
                trouble = f"{type(error).__name__}: {error}"
                if not retry_connect and isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol):
                    raise WorldError(f"cannot reach {self.base}: {error}") from error
            except httpx.InvalidURL as error:
                raise WorldError(f"invalid URL {url!r}: {error}") from error
            else:
                if answer.status not in _TRANSIENT:
                    return self._read(url, answer)
                trouble = f"status {answer.status}{_told(answer)}"
                wait = _retry_after(answer) or wait
            if attempt + 1 < _ATTEMPTS:
                self._pause(wait)
        raise WorldError(
            f"no response from {self.base} to {url} after {_ATTEMPTS} attempts ({trouble}); "
            "fetched pages are kept: run the same import again to resume"
        )

    def _ask(self, url: str) -> _Answer:
        """Send one request and decompress at most `_ANSWER_BYTES` of the response."""
        content = bytearray()
        with self._client.stream("GET", url) as answer:
            encoding = answer.headers.get("content-encoding", "")
            if encoding and encoding.lower() not in _ENCODINGS.split(", "):
                raise WorldError(f"the response to {url} has an unsupported encoding: {one_line(encoding, 60)}")
            for part in answer.iter_bytes():
                content += part
                if len(content) > _ANSWER_BYTES:
                    raise WorldError(
                        f"the response to {url} exceeds {_ANSWER_BYTES:,} bytes; choose a smaller page_size"
                    )
        return _Answer(answer.status_code, answer.headers, bytes(content))

    def _read(self, url: str, answer: _Answer) -> Resource:
        status = answer.status
        if status in (401, 403):
            raise WorldError(
                f"{self.base} requires credentials (status {status}); pass a header such as 'Authorization: Bearer …'"
            )
        if status in (404, 410) and "?" in url:
            raise ExpiredError(f"{url} was not found (status {status}{_told(answer)})")
        if 300 <= status < 400:
            target = destination(url, answer.headers.get("location")) or "elsewhere"
            raise WorldError(
                f"{url} redirects to {target}; redirects are not followed, so pass that URL if it is right"
            )
        if status != 200:
            raise WorldError(f"the response to {url} has status {status}{_told(answer)}")
        try:
            found = serialization.loads(answer.content)
        except ValueError as error:
            raise WorldError(f"{self.base} is not a FHIR server: the response to {url} is not JSON") from error
        if not isinstance(found, dict):
            raise WorldError(f"{self.base} is not a FHIR server: the response to {url} is not a JSON object")
        return found


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError as error:
        raise WorldError(f"invalid URL {url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise WorldError(f"{url!r} is not the base URL of a FHIR server, such as http://localhost:8080/fhir")
    return parts


def _objects(value: Json) -> list[Resource]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _searchable(entry: Resource) -> str | None:
    """Return the name of a type in a CapabilityStatement; None if the server cannot search for the type."""
    codes = [interaction.get("code") for interaction in _objects(entry.get("interaction"))]
    name = entry.get("type")
    return name if isinstance(name, str) and (not codes or "search-type" in codes) else None


def _told(answer: _Answer) -> str:
    """Return the diagnostics of an OperationOutcome for an error message, or an empty text."""
    try:
        outcome = serialization.loads(answer.content)
    except ValueError:
        return ""
    issues = _objects(outcome.get("issue")) if isinstance(outcome, dict) else []
    said = next((issue["diagnostics"] for issue in issues if isinstance(issue.get("diagnostics"), str)), "")
    return f": {one_line(said)}" if said else ""


def _sendable(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise WorldError(
                f"invalid header {one_line(name, 60)!r}: its name or value contains a character that HTTP forbids"
            )
    return dict(headers)


def _retry_after(answer: _Answer) -> float | None:
    text = answer.headers.get("retry-after", "")
    return min(_LONGEST_PAUSE, float(text)) if text.isascii() and text.isdigit() else None
