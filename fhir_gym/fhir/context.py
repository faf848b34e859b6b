"""The context of one request: its query, the store, the limits and the session's counters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

from fhir_gym.fhir.clock import http_date, instant, milliseconds
from fhir_gym.fhir.limits import Limits
from fhir_gym.fhir.messages import Interaction, Kind, Request, Response
from fhir_gym.fhir.store import Store
from fhir_gym.fhir.urls import Pairs
from fhir_gym.fhir.validation import check_valid
from fhir_gym.types import Json

Validation = Literal["hapi", "strict"]
CheckValid = Callable[[Json, bytes], None]
"""Function that refuses an invalid value that a client sent; its JSON text gives the places of the issues."""

TICK = timedelta(seconds=1)
"""Each write advances the virtual clock by this time: a whole second, so that versions differ in `Last-Modified`."""

# The texts of times are cached, because the clock stands still between two writes.
_now_text = lru_cache(maxsize=64)(instant)


@lru_cache(maxsize=64)
def _now_http(now: datetime) -> str:
    return http_date(milliseconds(now))


@dataclass(slots=True)
class ServerCounters:
    """The source of ids, tokens and times. Equal requests get equal answers, byte for byte.

    Attributes:
        next_id: The next id that the server assigns (from one sequence for all types, as in HAPI).
        now: The virtual clock.
        tokens: The number of tokens issued.
        seed: The seed of the tokens (the world's content hash).
    """

    next_id: int
    now: datetime
    seed: str = ""
    tokens: int = 0

    def copy(self) -> ServerCounters:
        """Return a copy for a checkpoint."""
        return ServerCounters(self.next_id, self.now, self.seed, self.tokens)

    def new_id(self) -> str:
        """Return the next id, such as ``"1409"``."""
        value = self.next_id
        self.next_id += 1
        return str(value)

    def new_token(self) -> str:
        """Return the next token, which has the form of a random UUID."""
        self.tokens += 1
        digits = blake2b(f"{self.seed}/{self.tokens}".encode(), digest_size=16).hexdigest()
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"

    def tick(self) -> datetime:
        """Advance the clock by one write and return the new time."""
        self.now += TICK
        return self.now


@dataclass(slots=True)
class RequestContext:
    """Everything that a handler needs to answer one request.

    Attributes:
        store: The world with the session's writes.
        base_url: The server's base URL without a trailing slash; URLs in the answer begin with it.
        counters: The session's ids, tokens and clock.
        handle: Function that answers a further request in the same session, such as a GET entry of a bundle.
        pairs: The names and values in the request's query, decoded.
        limits: The session's limits.
        searches: Search results kept for paging, oldest first.
        validation: The validation mode of writes.
        identifier_of_type: Whether searches may have the modifier `:of-type`.
        pretty_default: Whether to indent the answer to a request without `_pretty`; HAPI does this over HTTP. If so,
            page links contain `_pretty=true`.
        log: The interactions attempted so far; after the request, the interactions carried out. An interaction without
            a status takes the status of the answer. The log is empty if the request was refused before any interaction.
    """

    store: Store
    base_url: str
    counters: ServerCounters
    handle: Callable[[Request], Response]
    request: Request
    pairs: Pairs = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    searches: OrderedDict[str, Any] = field(default_factory=OrderedDict)
    validation: Validation = "hapi"
    identifier_of_type: bool = False
    pretty_default: bool = False
    log: tuple[Interaction, ...] = ()

    def doing(self, kind: Kind, resource_type: str = "", id: str = "", operation: str = "") -> None:
        """Log the interaction that the request attempts."""
        self.log = (Interaction(kind, resource_type, id, 0, "", operation),)

    def check_valid(self, resource: Json, text: bytes = b"") -> None:
        """In strict mode, refuse a resource that is not valid R4; see `fhir_gym.fhir.validation.check_valid`."""
        if self.validation == "strict":
            check_valid(resource, text, self.store.spend)

    @property
    def strict(self) -> CheckValid | None:
        """The function `check_valid` in strict mode, otherwise None."""
        return self.check_valid if self.validation == "strict" else None

    @property
    def now_text(self) -> str:
        """The virtual clock as a FHIR instant."""
        return _now_text(self.counters.now)

    @property
    def now_http(self) -> str:
        """The virtual clock as an HTTP date."""
        return _now_http(self.counters.now)

    def tick(self) -> tuple[int, str]:
        """Advance the clock by one write; return the new time in milliseconds and as a FHIR instant."""
        moment = self.counters.tick()
        return round(moment.timestamp() * 1000), instant(moment)

    def version_headers(self, resource_type: str, id: str, version: int, updated: int) -> dict[str, str]:
        """Return Content-Location, ETag and Last-Modified of a resource version."""
        return {
            "Content-Location": f"{self.base_url}/{resource_type}/{id}/_history/{version}",
            "ETag": f'W/"{version}"',
            "Last-Modified": http_date(updated),
        }

    def bundle_headers(self, bundle_id: str) -> dict[str, str]:
        """Return Content-Location and Last-Modified of a Bundle made for this answer (history, operations)."""
        url = f"{self.base_url}/Bundle/{bundle_id}"
        location = {"Location": url} if self.request.method == "POST" else {}
        return {**location, "Content-Location": url, "Last-Modified": self.now_http}
