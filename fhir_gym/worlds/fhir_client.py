"""HTTP clients of a FHIR server: one exchanges JSON with retries, one reads all resources."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

import httpx

from fhir_gym.errors import ArgumentError, WorldError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.credentials import Credentials, ServerAddress
from fhir_gym.fhir.messages import JSON
from fhir_gym.http_client import ReplyTooLargeError, RetryPolicy, redirect_target, retry_after
from fhir_gym.printable import one_line
from fhir_gym.types import Json, Resource, objects_in

TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
"""Status codes after which a request is repeated."""

RETRIES = RetryPolicy(6)
"""The pauses between all attempts add up to half a minute."""


class ExpiredError(WorldError):
    """The server no longer has the search to which a page belongs."""


class TooLargeError(WorldError):
    """The server refuses a request because of its size, or needs too much time for it."""


class JsonClient:
    """Client of one FHIR server that exchanges JSON.

    Args:
        url: Base URL, such as ``http://localhost:8080/fhir``. A user and password in the URL are sent as basic
            authentication.
        credentials: Headers and certificate authority; None if the server needs no credentials.
        timeout: Maximum time of one request and its reply in seconds.
        pause: Function that waits before a retry; called with the number of seconds.

    Attributes:
        base: The base URL, without a user, a password or a trailing slash.
        name: The server's name in file names.
        pause: The function that waits.
        requests: Number of requests so far, including repeated ones.

    Raises:
        ArgumentError: The base URL or the CA file is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        credentials: Credentials | None = None,
        timeout: float = 120.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        sent = {"Accept": "application/fhir+json", "Cache-Control": "no-cache"}
        try:
            address = ServerAddress.of(url)
            self._credentials = (credentials or Credentials()).at(address)
            self._client = self._credentials.client(headers=sent, timeout=timeout)
        except ValueError as error:
            raise ArgumentError(str(error)) from error
        self.base, self.name = address.base, address.name
        self.pause = pause
        self.requests = 0

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def hide(self, text: str) -> str:
        """Replace credentials in a text."""
        return self._credentials.hide(text)

    def exchange(self, url: str, body: bytes | None = None, *, retry_connect: bool = True) -> Resource:
        """Fetch a resource, or post a body if there is one, with retries after transient failures.

        Args:
            url: URL of the request.
            body: JSON text to post; it may be sent more than once.
            retry_connect: Whether to retry if the connection fails; False for the first request.

        Raises:
            TooLargeError: The server refuses the size of the body.
            WorldError: All retries failed, or the response is not a JSON object.
        """
        for attempt in range(RETRIES.attempts):
            asked = None
            try:
                answer = self._ask(url, body)
            except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
                trouble = type(error).__name__
                if body is not None:
                    raise TooLargeError(f"{self.base} did not answer a request in time ({trouble})") from error
            except ReplyTooLargeError as error:
                raise TooLargeError(f"{url}: {error}; choose a smaller page_size") from error
            except httpx.DecodingError as error:
                raise WorldError(f"{url}: {error}") from error
            except httpx.RequestError as error:
                trouble = self.hide(f"{type(error).__name__}: {error}")
                if not retry_connect and isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol):
                    raise WorldError(f"cannot reach {self.base}: {self.hide(str(error))}") from error
            except httpx.InvalidURL as error:
                raise WorldError(f"invalid URL {url!r}: {error}") from error
            else:
                if answer.status_code not in TRANSIENT:
                    return self._read(url, answer)
                trouble = f"status {answer.status_code}{self._told(answer)}"
                asked = retry_after(answer.headers)
            if (pause := RETRIES.pause(attempt, asked)) is not None:
                self.pause(pause)
        raise WorldError(
            f"no response from {self.base} to {url} after {RETRIES.attempts} attempts ({trouble}); "
            "finished work is kept: run the same command again to resume"
        )

    def _ask(self, url: str, body: bytes | None) -> httpx.Response:
        self.requests += 1
        headers = {} if body is None else {"Content-Type": JSON}
        return self._client.request("GET" if body is None else "POST", url, content=body, headers=headers)

    def _read(self, url: str, answer: httpx.Response) -> Resource:
        status = answer.status_code
        if status in (401, 403):
            raise WorldError(
                f"{self.base} requires credentials (status {status}); pass a header such as 'Authorization: Bearer …'"
            )
        if status in (404, 410) and "?" in url:
            raise ExpiredError(f"{url} was not found (status {status}{self._told(answer)})")
        if 300 <= status < 400:
            target = redirect_target(url, answer.headers.get("location")) or "elsewhere"
            raise WorldError(
                f"{url} redirects to {self.hide(target)}; redirects are not followed, so pass that URL if it is right"
            )
        if status != 200:
            kind = (
                TooLargeError if status == 413 or (status == 400 and b'"too-costly"' in answer.content) else WorldError
            )
            raise kind(f"the response to {url} has status {status}{self._told(answer)}")
        try:
            document = serialization.loads(answer.content)
        except ValueError as error:
            raise WorldError(f"{self.base} is not a FHIR server: the response to {url} is not JSON") from error
        if not isinstance(document, dict):
            raise WorldError(f"{self.base} is not a FHIR server: the response to {url} is not a JSON object")
        return document

    def _told(self, answer: httpx.Response) -> str:
        """Return the diagnostics of an OperationOutcome for an error message, or an empty text."""
        try:
            said = diagnostics(serialization.loads(answer.content))
        except ValueError:
            return ""
        return f": {self.hide(said)}" if said else ""


def objects(value: Json) -> list[Resource]:
    """Return the objects in a list; empty if the value is not a list."""
    return objects_in(value)


def diagnostics(outcome: Json) -> str:
    """Return the first diagnostics of an OperationOutcome as one line; empty if there are none."""
    issues = objects(outcome.get("issue")) if isinstance(outcome, dict) else []
    return one_line(next((issue["diagnostics"] for issue in issues if isinstance(issue.get("diagnostics"), str)), ""))


_LINK_CHARS = 10_000


class LinkError(WorldError):
    """The next links of a search are invalid or do not end."""


@dataclass(frozen=True)
class Page:
    """The matches on one page of search results, and the URL of the next page, if any."""

    resources: list[Resource]
    next: str | None


class FhirClient(JsonClient):
    """Client that reads all resources of one FHIR server."""

    def types(self) -> list[str]:
        """Return the searchable resource types listed in the server's CapabilityStatement.

        Raises:
            WorldError: The server is unreachable or not an R4 server.
        """
        capabilities = self.exchange(f"{self.base}/metadata", retry_connect=False)
        if capabilities.get("resourceType") != "CapabilityStatement":
            raise WorldError(f"{self.base} is not a FHIR server: {self.base}/metadata is not a CapabilityStatement")
        version = str(capabilities.get("fhirVersion", "4"))
        if not version.startswith("4"):
            raise WorldError(f"{self.base} is a server of FHIR {one_line(version, 60)}; only R4 can be imported")
        rest = [part for part in objects(capabilities.get("rest")) if part.get("mode", "server") == "server"]
        types = [_searchable(entry) for part in rest for entry in objects(part.get("resource"))]
        return list(dict.fromkeys(name for name in types if name))

    def count(self, resource_type: str) -> int | None:
        """Return the server's total of a resource type; None if the server reports no total."""
        bundle = self.exchange(f"{self.base}/{resource_type}?{urlencode({'_summary': 'count'})}")
        total = bundle.get("total")
        return total if isinstance(total, int) and total >= 0 else None

    def first(self, resource_type: str, page_size: int) -> str:
        """Return the URL of the first page of a resource type."""
        return f"{self.base}/{resource_type}?{urlencode({'_count': page_size})}"

    def page(self, url: str, resource_type: str) -> Page:
        """Fetch a page.

        Raises:
            ExpiredError: The server no longer has the search.
            LinkError: The next link is invalid.
            WorldError: All retries failed, or the response is not a page of this type.
        """
        bundle = self.exchange(url)
        if bundle.get("resourceType") != "Bundle":
            raise WorldError(f"the response to {url} is not a Bundle")
        resources = []
        for entry in objects(bundle.get("entry")):
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
        for link in objects(bundle.get("link")):
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


def _searchable(entry: Resource) -> str | None:
    """Return the name of a type in a CapabilityStatement; None if the server cannot search for the type."""
    codes = [interaction.get("code") for interaction in objects(entry.get("interaction"))]
    name = entry.get("type")
    return name if isinstance(name, str) and (not codes or "search-type" in codes) else None
