"""What a client needs to be admitted by a FHIR server: headers, a user with a password, and a certificate authority."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

import httpx

from fhir_gym.printable import one_line

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_USER = re.compile(r"//[^/?#]*@")
_SHORTEST_SECRET = 4  # a shorter value could occur in any text


@dataclass(frozen=True)
class Credentials:
    """Headers and certificate authority for one server. Their values appear in no `repr` and no message.

    Attributes:
        headers: Headers of every request, such as `{"Authorization": "Bearer …"}`.
        ca: PEM file with the certificate authorities to trust; by default those of certifi.

    Raises:
        ValueError: A header is invalid.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca: Path | None = None

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not _NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
                raise ValueError(
                    f"invalid header {one_line(name, 60)!r}: its name or value contains a character that HTTP forbids"
                )

    def client(self, address: ServerAddress, *, headers: Mapping[str, str], timeout: float) -> httpx.Client:
        """Return an HTTP client that does not follow redirects.

        Args:
            address: The server.
            headers: Further headers of every request; those of the credentials take precedence.
            timeout: Timeout of one request in seconds.

        Raises:
            ValueError: The CA file cannot be used.
        """
        settings: dict[str, Any] = {} if self.ca is None else {"verify": _context(self.ca)}
        sent = {**headers, **self.headers}
        return httpx.Client(timeout=timeout, headers=sent, auth=address.auth, follow_redirects=False, **settings)

    def hide(self, text: str) -> str:
        """Replace the values of the headers in a text, for example in an error that quotes the server's answer."""
        for value in self.headers.values():
            for secret in (value, value.rpartition(" ")[2]):
                if len(secret) >= _SHORTEST_SECRET:
                    text = text.replace(secret, "…")
        return text


@dataclass(frozen=True)
class ServerAddress:
    """The base URL of a FHIR server.

    Attributes:
        base: The URL without a user, a password or a trailing slash.
        name: Host and path as a file name.
        auth: User and password from the URL, which are sent as basic authentication; None if there are none.
    """

    base: str
    name: str
    auth: tuple[str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str) -> ServerAddress:
        """Parse a base URL.

        Raises:
            ValueError: It is not the base URL of a FHIR server.
        """
        parts = _split(url)
        place = parts.netloc.rpartition("@")[2]
        base = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
        name = re.sub(r"[^A-Za-z0-9]+", "-", place + parts.path).strip("-")[:100] or "server"
        auth = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
        return cls(base, name, auth)

    def hide(self, text: str) -> str:
        """Replace the password in a text."""
        password = self.auth[1] if self.auth else ""
        return (
            text.replace(password, "…").replace(quote(password, safe=""), "…")
            if len(password) >= _SHORTEST_SECRET
            else text
        )


def _split(url: str) -> SplitResult:
    shown = _USER.sub("//…@", one_line(url.strip(), 200))
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError:
        raise ValueError(f"invalid URL {shown!r}") from None  # the cause could quote a password
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{shown!r} is not the base URL of a FHIR server, such as http://localhost:8080/fhir")
    return parts


def _context(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"cannot use the CA file {ca}: {error.strerror or error}") from error
