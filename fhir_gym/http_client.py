"""What all HTTP clients of fhir_gym share: limits on a server's reply, retries, and redirects."""

from __future__ import annotations

import ssl
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from time import monotonic
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpcore
import httpx
from typing_extensions import override

from fhir_gym.printable import one_line

__all__ = [
    "REPLY_BYTES",
    "ReplyTooLargeError",
    "RetryPolicy",
    "limit_replies",
    "limit_size",
    "redirect_target",
    "retry_after",
]

REPLY_BYTES = 32 * 1024 * 1024
"""The maximum size of a decompressed reply, unless the client sets another limit."""

_PIECE = 65_536  # size in bytes of the pieces in which a reply is decompressed
_GZIP = 16 + zlib.MAX_WBITS
_deadline: ContextVar[float] = ContextVar("deadline")


class ReplyTooLargeError(httpx.RequestError):
    """A server's reply is larger than its client accepts."""


def limit_replies(client: httpx.Client, seconds: float) -> None:
    """Limit the size and the duration of the replies that a client reads.

    The time limit is for the whole reply, unlike httpx's, which is for each read: a server could send a byte a second
    for ever. A reply that is too late raises `httpx.ReadTimeout`; see `limit_size` for one that is too large.

    Args:
        client: The client.
        seconds: Maximum time from the start of a request to the end of its reply.
    """

    def start(_: httpx.Request) -> None:
        _deadline.set(monotonic() + seconds)

    client.event_hooks["request"].append(start)
    limit_size(client)
    for transport in (client._transport, *client._mounts.values()):  # httpx has no public way to set the backend
        if isinstance(transport, httpx.HTTPTransport):
            transport._pool._network_backend = _Backend(transport._pool._network_backend)


def limit_size(client: Any, most: int = REPLY_BYTES) -> None:
    """Limit the size of the replies that a client reads. A larger reply raises `ReplyTooLargeError`.

    `asyncio.timeout` limits the duration of an asynchronous request.

    Args:
        client: A `Client` or `AsyncClient` of httpx, or of httpx2, which the SDKs of OpenAI and MCP use.
        most: Maximum size of a reply in bytes, after decompression.
    """

    def limit(response: Any) -> None:
        encoding = response.headers.pop("content-encoding", "identity").lower()  # so that httpx does not decompress
        if encoding not in ("gzip", "identity"):
            raise httpx.DecodingError(f"the reply has an unsupported encoding: {encoding[:60]}")
        package = import_module(type(response).__module__.partition(".")[0])
        kind = type("LimitedReply", (_LimitedReply, package.SyncByteStream, package.AsyncByteStream), {})
        response.stream = kind(response.stream, most, compressed=encoding == "gzip")

    async def limit_async(response: Any) -> None:
        limit(response)

    client.headers["Accept-Encoding"] = "gzip"
    client.event_hooks["response"].append(limit_async if hasattr(client, "aclose") else limit)


class _LimitedReply:
    """The body of a reply: decompresses it in small pieces and counts its bytes."""

    def __init__(self, stream: Any, most: int, *, compressed: bool) -> None:
        self._stream, self._most = stream, most
        self._gzip = zlib.decompressobj(_GZIP) if compressed else None
        self._size = 0

    def __iter__(self) -> Iterator[bytes]:
        for data in self._stream:
            yield from self._pieces(data)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            for piece in self._pieces(data):
                yield piece

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        for piece in (data,) if self._gzip is None else _decompressed(self._gzip, data):
            self._size += len(piece)
            if self._size > self._most:
                raise ReplyTooLargeError(f"the reply exceeds {self._most:,} bytes")
            yield piece


def _decompressed(gzip: Any, data: bytes) -> Iterator[bytes]:
    """Decompress data in pieces, of which only the last one is shorter than `_PIECE`."""
    piece = None
    while piece is None or len(piece) == _PIECE:
        try:
            piece = gzip.decompress(data, _PIECE)
        except zlib.error as error:
            raise httpx.DecodingError(f"the reply is not valid gzip: {error}") from error
        data = gzip.unconsumed_tail
        yield piece


class _Backend(httpcore.NetworkBackend):
    """Opens connections on which no operation lasts longer than the deadline of the running request."""

    def __init__(self, backend: httpcore.NetworkBackend) -> None:
        self._backend = backend

    @override
    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *arguments: Any, **options: Any
    ) -> httpcore.NetworkStream:
        return _Stream(self._backend.connect_tcp(host, port, _remaining(timeout), *arguments, **options))


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    @override
    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _remaining(timeout))

    @override
    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _remaining(timeout))

    @override
    def close(self) -> None:
        self._stream.close()

    @override
    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, _remaining(timeout)))

    @override
    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _remaining(timeout: float | None) -> float:
    """Return the shorter of a timeout and the time until the deadline of the running request."""
    remaining = _deadline.get() - monotonic()
    if remaining <= 0:
        raise httpcore.ReadTimeout("the reply took too long")
    return remaining if timeout is None else min(timeout, remaining)


_LONGEST_PAUSE = 60.0
"""Longest pause between two attempts, in seconds."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a failed request is repeated, and after which pauses.

    Attributes:
        retries: Maximum number of retries.
        backoff: Seconds before the first retry; the pause doubles with each retry.
    """

    retries: int
    backoff: float = 0.5

    @property
    def attempts(self) -> int:
        """Maximum number of attempts."""
        return self.retries + 1

    def pause(self, attempt: int, asked: float | None = None) -> float | None:
        """Return the pause after a failed attempt, in seconds; None after the last attempt.

        Args:
            attempt: Number of the attempt, from 0.
            asked: The pause that the server asks for; see `retry_after`.
        """
        if attempt >= self.retries:
            return None
        return min(_LONGEST_PAUSE, self.backoff * 2.0**attempt if asked is None else asked)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the pause in seconds that a reply asks for; None if it asks for none or names a date."""
    text = headers.get("retry-after", "")
    try:
        seconds = float(text) if text.isascii() else -1.0
    except ValueError:
        return None
    return seconds if seconds >= 0 else None


def redirect_target(url: str, location: str | None) -> str | None:
    """Return the URL a redirect points to, for messages. Redirects are never followed: they could leak credentials.

    Returns:
        The URL on one line, without user and password; None if there is no Location header.
    """
    if not location:
        return None
    try:
        target = urlsplit(urljoin(url, location.strip()))
        shown = target._replace(netloc=target.netloc.rpartition("@")[2]).geturl()
    except ValueError:  # such as an incomplete IPv6 address
        shown = location
    return one_line(shown, 200)
