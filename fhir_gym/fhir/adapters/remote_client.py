"""HTTP client of a session on a running FHIR server, with retries of safe requests and reads of many resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import sleep
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import httpx

from fhir_gym.errors import FhirServerError, InfraError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.credentials import Credentials, ServerAddress
from fhir_gym.fhir.messages import JSON, Request, Response
from fhir_gym.fhir.outcome import FhirError, operation_outcome
from fhir_gym.fhir.paging import all_matches
from fhir_gym.http_client import ReplyTooLargeError, RetryPolicy, redirect_target, retry_after
from fhir_gym.printable import one_line
from fhir_gym.types import Json, Resource, as_object

RETRIES = RetryPolicy(4)

_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_TIMEOUTS = (httpx.ReadTimeout, httpx.WriteTimeout)
_REFUSED = 429
_NOT_IMPLEMENTED = 501
_DOWN = frozenset({502, 503, 504})
_HEADERS = ("Content-Type", "Location", "Content-Location", "ETag", "Last-Modified")


class NotSentError(FhirServerError):
    """The server did not carry out the request, because the request did not reach it or was refused."""


class _Failure(NamedTuple):
    """A failed attempt: its error, whether the cause may pass, and the pause in seconds that the server asks for."""

    error: FhirServerError
    passing: bool
    pause: float | None = None


class RemoteClient:
    """Sends requests to one FHIR server.

    A request that the server did not carry out is repeated: after a failed connection and after status 429. A request
    that only reads is also repeated after an interrupted answer and after status 502, 503 and 504. A write is not,
    because the server may have carried it out. Neither is a request that the server does not answer in time.

    Args:
        url: Base URL of the server.
        credentials: Headers and certificate authority; None if the server needs no credentials.
        client: The HTTP client; a new one with the credentials if None.
        timeout: Maximum time of one request and its answer, in seconds.

    Attributes:
        base_url: The base URL without a user, a password or a trailing slash.
        credentials: The credentials, including the user and the password of the URL.

    Raises:
        InfraError: The URL is not a base URL, or the CA file cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        credentials: Credentials | None = None,
        client: httpx.Client | None = None,
        timeout: float = 60.0,
    ) -> None:
        try:
            address = ServerAddress.of(url)
            self.credentials = (credentials or Credentials()).at(address)
            self._client = client or self.credentials.client(timeout=timeout)
        except ValueError as error:
            raise InfraError(str(error)) from error
        self.base_url = address.base
        self._answered = False

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed."""
        return self._client.is_closed

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(self, request: Request, *, repeatable: bool | None = None) -> Response:
        """Send a request and return the answer.

        Args:
            request: The request.
            repeatable: Whether the request may be carried out twice without harm. By default, only GET and HEAD may.

        Raises:
            NotSentError: The server did not carry out the request.
            FhirServerError: The server does not answer or is down. It may have carried out the request.
        """
        if repeatable is None:
            repeatable = request.method in ("GET", "HEAD")
        attempt = 0
        while isinstance(result := self._attempt(request, repeatable), _Failure):
            pause = RETRIES.pause(attempt, result.pause)
            if pause is None or not result.passing or not (repeatable or isinstance(result.error, NotSentError)):
                raise result.error
            sleep(pause)
            attempt += 1
        return result

    def read(self, path: str) -> Response:
        """Send a GET and return the answer.

        Raises:
            FhirServerError: The server does not answer, is down or redirects.
        """
        response = self.send(Request("GET", path))
        if 300 <= response.status < 400:
            target = redirect_target(self.base_url, response.headers.get("Location")) or "elsewhere"
            raise FhirServerError(
                f"{self.base_url} redirects to {target} (HTTP {response.status}), but redirects are not followed: "
                "if the redirect is right, use that URL for the server"
            )
        return response

    def matches(self, url: str) -> list[Resource]:
        """Return the matches of a search on all its pages.

        Raises:
            FhirError: The server refuses the search.
        """
        return all_matches(self.page, url)

    def page(self, url: str) -> Resource:
        """Return the Bundle at a URL, absolute or relative to the base URL.

        Raises:
            FhirError: The server refuses the request.
            FhirServerError: The server does not answer, or fails.
        """
        parts = urlsplit(url.removeprefix(self.base_url))
        response = self.send(Request("GET", parts.path, parts.query))
        if response.status == 200:
            return self.json(response)
        said = one_line(response.text, 300)
        if response.status >= 500 and response.status != _NOT_IMPLEMENTED:
            raise FhirServerError(f"{self.base_url}{parts.path} answered {response.status}: {said}")
        raise FhirError(response.status, said)

    def json(self, response: Response) -> Resource:
        """Parse the JSON object in an answer; decimals keep their digits."""
        try:
            document = serialization.loads(response.body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise FhirServerError(f"{self.base_url} answered {response.status} without JSON: {response.text[:300]}")
        return document

    def _attempt(self, request: Request, repeatable: bool) -> Response | _Failure:
        try:
            answer = self._exchange(request)
        except httpx.InvalidURL as error:  # the request is at fault, not the server
            outcome = operation_outcome(f"The request is not valid HTTP: {error}", code="invalid")
            return Response(400, {"Content-Type": JSON}, serialization.dumps(outcome))
        except ReplyTooLargeError as error:
            if not repeatable:
                return _Failure(FhirServerError(f"{self.base_url} sends too much: {error}"), passing=False)
            # The request is at fault: an agent must not be able to end an episode without a verdict.
            outcome = operation_outcome(f"The answer is too large: {error}", code="too-costly")
            return Response(413, {"Content-Type": JSON}, serialization.dumps(outcome))
        except httpx.RequestError as error:
            kind = NotSentError if isinstance(error, _NEVER_SENT) else FhirServerError
            reason = self.credentials.hide(f"{type(error).__name__}: {error}")
            failure = kind(f"{self.base_url} does not answer: {reason}")
            failure.__cause__ = error
            return _Failure(failure, passing=self._answered and not isinstance(error, _TIMEOUTS))
        self._answered = True
        status = answer.status_code
        if status == _REFUSED:
            failure = NotSentError(f"{self.base_url} refuses requests because there are too many: it answered {status}")
        elif status in _DOWN:
            failure = FhirServerError(f"{self.base_url} is down: it answered {status}")
        else:
            kept = {name: self.credentials.hide(answer.headers[name]) for name in _HEADERS if name in answer.headers}
            body = _compact(answer)
            if status >= 300 or not _is_json(answer):  # an error may quote the request's headers
                body = self.credentials.hide_bytes(body)
            return Response(status, kept, body)
        return _Failure(failure, passing=True, pause=retry_after(answer.headers))

    def _exchange(self, request: Request) -> httpx.Response:
        path = request.path if request.path.startswith("/") or not request.path else f"/{request.path}"
        url = f"{self.base_url}{path}" + (f"?{request.query}" if request.query else "")
        headers = {"Accept": "application/fhir+json", "Cache-Control": "no-cache", **request.headers}
        headers.pop("host", None)
        return self._client.request(
            request.method, url, headers=headers, content=request.body or None, follow_redirects=False
        )


def _is_json(answer: httpx.Response) -> bool:
    return str(answer.headers.get("Content-Type", "")).startswith(JSON.partition(";")[0])


def _compact(answer: httpx.Response) -> bytes:
    """Return the body as one line of JSON, as the embedded server does."""
    if _is_json(answer) and answer.content:
        try:
            return serialization.dumps(serialization.loads(answer.content))
        except ValueError:
            return answer.content
    return answer.content


Key = tuple[str, str]
"""Type and id of a resource."""

_BATCH = 200
_ABSENT = ("404", "410")


def read_all(
    client: RemoteClient, keys: Iterable[Key], read_one: Callable[[str, str], Resource | None]
) -> dict[Key, Resource | None]:
    """Return current resources by type and id; None stands for a resource that does not exist.

    Args:
        client: The server.
        keys: Types and ids.
        read_one: Function that reads one resource. It is called for a single resource, and for each resource of a batch
            for which the server's answer neither contains the resource nor says that it does not exist.
    """
    resources: dict[Key, Resource | None] = {}
    distinct = list(dict.fromkeys(keys))
    for start in range(0, len(distinct), _BATCH):
        chunk = distinct[start : start + _BATCH]
        if len(chunk) > 1:
            resources |= _read_batch(client, chunk)
    return {key: resources[key] if key in resources else read_one(*key) for key in distinct}


def _read_batch(client: RemoteClient, keys: Sequence[Key]) -> dict[Key, Resource | None]:
    """Return the resources that the answer to a batch contains or reports as missing."""
    entries = [
        {"request": {"method": "GET", "url": f"{quote(kind, safe='')}/{quote(id, safe='')}"}} for kind, id in keys
    ]
    body = serialization.dumps({"resourceType": "Bundle", "type": "batch", "entry": entries})
    response = client.send(Request("POST", "", headers={"content-type": JSON}, body=body), repeatable=True)
    answers = client.json(response).get("entry") if response.status == 200 else None
    if not isinstance(answers, list) or len(answers) != len(keys):
        return {}
    resources: dict[Key, Resource | None] = {}
    for key, answer in zip(keys, answers, strict=True):
        status, resource = _entry(answer)
        if status in _ABSENT:
            resources[key] = None
        elif status == "200" and (resource.get("resourceType"), resource.get("id")) == key:
            resources[key] = resource
    return resources


def _entry(answer: Json) -> tuple[str, Resource]:
    """Return the status and the resource of an entry in the answer to a batch."""
    if not isinstance(answer, dict) or not isinstance(answer.get("response"), dict):
        return "", {}
    return str(answer["response"].get("status"))[:3], as_object(answer.get("resource"))
