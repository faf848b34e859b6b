"""A client's credentials for a FHIR server: headers, a user with a password, and a certificate authority."""

from __future__ import annotations

import html
import json
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from typing_extensions import override

from fhir_gym.printable import one_line

if TYPE_CHECKING:
    import ssl

    import httpx

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_USER = re.compile(r"//[^/?#]*@")
_SHORTEST_SECRET = 4  # a shorter value could occur in any text
_SHORTEST_IN_DATA = 12  # records of a server may contain shorter values, such as the name of a tenant


class Credentials:
    """Headers and certificate authority for FHIR servers. Their values appear in no `repr` and no message.

    This is not a dataclass, so that `dataclasses.asdict` does not copy the headers into serialized settings.

    Args:
        headers: Headers of every request, such as `{"Authorization": "Bearer …"}`.
        ca: PEM file with the certificate authorities to trust; by default those of certifi.

    Raises:
        ValueError: A header is invalid.

    Examples:
        >>> Credentials.bearer("eyJhbGciOi")
        Credentials(headers=['Authorization'], ca=None)
    """

    def __init__(self, headers: Mapping[str, str] | None = None, *, ca: str | Path | None = None) -> None:
        self.headers = dict(headers or {})
        self.ca = None if ca is None else Path(ca).expanduser()
        for name, value in self.headers.items():
            text = isinstance(value, str) and value.isascii() and value.isprintable() and value == value.strip()
            if not isinstance(name, str) or not _NAME.fullmatch(name) or not text:
                raise ValueError(
                    f"invalid header {one_line(str(name), 60)!r}: its name or value contains a character that HTTP "
                    "forbids"
                )
        secrets = [secret for name, value in self.headers.items() for secret in _secrets(name, value)]
        self._forms = [form.encode() for form in _forms(secrets, _SHORTEST_SECRET)]
        self._forms_in_data = [form.encode() for form in _forms(secrets, _SHORTEST_IN_DATA)]

    @classmethod
    def basic(cls, user: str, password: str, *, ca: str | Path | None = None) -> Credentials:
        """Return the credentials of a user with a password (basic authentication).

        Raises:
            ValueError: The user's name contains a colon.
        """
        if ":" in user:
            raise ValueError("the user of basic authentication must not contain a colon")
        return cls({"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}, ca=ca)

    @classmethod
    def bearer(cls, token: str, *, ca: str | Path | None = None) -> Credentials:
        """Return the credentials of a client with a token."""
        return cls({"Authorization": f"Bearer {token}"}, ca=ca)

    @classmethod
    def bearer_from_env(cls, variable: str) -> Credentials:
        """Return the credentials of a client whose token is in an environment variable.

        Raises:
            ValueError: The variable is not set. The message does not quote its name, which may be a token.
        """
        if variable not in os.environ:
            raise ValueError("there is no environment variable with the name that was given for the token")
        return cls.bearer(os.environ[variable].strip())

    @override
    def __repr__(self) -> str:
        return f"Credentials(headers={sorted(self.headers)}, ca={None if self.ca is None else str(self.ca)!r})"

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Credentials) and (self.headers, self.ca) == (other.headers, other.ca)

    @override
    def __hash__(self) -> int:
        return hash((frozenset(self.headers.items()), self.ca))

    def at(self, address: ServerAddress) -> Credentials:
        """Return these credentials together with the user and the password of a URL.

        Raises:
            ValueError: Both are given: a user in the URL, and a header `Authorization`.
        """
        if address.auth is None:
            return self
        if any(name.lower() == "authorization" for name in self.headers):
            raise ValueError(f"{address.base}: give a user in the URL or a header Authorization, not both")
        return Credentials({**self.headers, **Credentials.basic(*address.auth).headers}, ca=self.ca)

    def client(self, *, headers: Mapping[str, str] | None = None, timeout: float) -> httpx.Client:
        """Return an HTTP client that does not follow redirects and limits replies (see `fhir_gym.http_client`).

        Args:
            headers: Further headers of every request; those of the credentials take precedence.
            timeout: Maximum time of one request and its reply in seconds.

        Raises:
            ValueError: The CA file cannot be used.
        """
        import httpx

        from fhir_gym.http_client import limit_replies

        sent = {**(headers or {}), **self.headers}
        client = httpx.Client(timeout=timeout, headers=sent, follow_redirects=False, verify=_context(self.ca))
        limit_replies(client, timeout)
        return client

    def hide(self, text: str) -> str:
        """Replace the values of the headers in a message."""
        return self.hide_bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def hide_bytes(self, content: bytes) -> bytes:
        """Replace the values of the headers in a server's error, which may quote the request."""
        return _without(content, self._forms)

    def hide_in_data(self, content: bytes) -> bytes:
        """Replace the values of the headers in a server's data.

        Short values are kept: they may be data, such as the name of a tenant.
        """
        return _without(content, self._forms_in_data)


@dataclass(frozen=True)
class ServerAddress:
    """The base URL of a FHIR server.

    Attributes:
        base: The URL without a user, a password or a trailing slash.
        name: Host and path as a file name.
        auth: User and password from the URL; None if there are none. See `Credentials.at`.
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


def _secrets(name: str, value: str) -> list[str]:
    """Return the parts of a header that must not be shown: the value, its last word, and a password in it."""
    scheme, _, token = value.rpartition(" ")
    texts = [value, token]
    if name.lower() in ("authorization", "proxy-authorization") and scheme.lower() == "basic":
        with suppress(ValueError):  # the header has another form
            texts.append(b64decode(token).decode().partition(":")[2])
    return texts


def _forms(secrets: Iterable[str], shortest: int) -> list[str]:
    """Return how texts may write secrets of at least a length: plain, in JSON, in a URL or in HTML; longest first."""
    forms: set[str] = set()
    for secret in secrets:
        if len(secret) >= shortest:
            quoted = json.dumps(secret)[1:-1]
            forms |= {secret, quoted, quoted.replace("/", "\\/"), quote(secret), quote(secret, safe="")}
            forms |= {html.escape(secret), html.escape(secret, quote=False)}
    return sorted(forms, key=lambda form: (-len(form), form))


def _without(content: bytes, forms: list[bytes]) -> bytes:
    for form in forms:
        content = content.replace(form, "…".encode())
    return content


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


@lru_cache(maxsize=8)
def _context(ca: Path | None) -> ssl.SSLContext:
    """Return a TLS context. It is kept, because reading the authorities takes longer than many requests."""
    import ssl

    import httpx

    if ca is None:
        return httpx.create_ssl_context()
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"cannot use the CA file {ca}: {error.strerror or error}") from error
