"""Requests to the server, its responses, and the interactions that the server carried out or refused for a request.

The server adds the log of interactions to its `Response` object; agents never see it. For a remote server,
`fhir_gym.fhir.adapters.remote_interactions` derives the same log from the server's responses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from fhir_gym.types import Json

Kind = Literal[
    "create", "read", "vread", "search", "history", "update", "patch", "delete", "operation", "capabilities", "other"
]
Effect = Literal["", "created", "updated", "deleted"]

WRITES: Mapping[str, Kind] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
"""The interaction of each HTTP method that writes, if the URL names no other interaction."""

_LOOKS = frozenset({"read", "vread", "search", "history", "operation", "capabilities"})


class Interaction(NamedTuple):
    """One interaction that a server carried out or refused.

    An operation that writes is an ``update`` with the operation's name (``$meta-add``).

    Attributes:
        kind: FHIR's name of the interaction.
        resource_type: The resource type; empty if the interaction is on the whole server.
        id: The id of the resource; empty if the interaction is not on one resource.
        status: The interaction's own HTTP status; in a Bundle, the status of the whole response may differ.
        effect: The effect on stored resources; empty for reads, refusals, updates without a change, and conditional
            creates that found a match.
        operation: The operation's name, if any.
        entry: The position of the entry in its Bundle; None outside of a Bundle.
    """

    kind: Kind
    resource_type: str = ""
    id: str = ""
    status: int = 0
    effect: Effect = ""
    operation: str = ""
    entry: int | None = None

    @property
    def looks(self) -> bool:
        """Whether the interaction only reads."""
        return self.kind in _LOOKS and not self.effect


JSON = "application/fhir+json;charset=UTF-8"

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
# The classes below are not frozen, because creating a frozen object takes twice as long; `Final` has the same effect.
# A default factory returns this: dataclasses refuse unhashable defaults, such as a mappingproxy before Python 3.12.


@dataclass(slots=True)
class Request:
    """One FHIR HTTP request; the URL is relative to the server's base URL.

    Attributes:
        method: HTTP method as the client sent it.
        path: Path below the base URL, percent-encoded, with or without a leading slash (``"/Patient/1"``).
        query: Query string without ``?``, percent-encoded.
        headers: Headers; the names are in lower case.
        body: Raw body.
    """

    method: Final[str]
    path: Final[str]
    query: Final[str] = ""
    headers: Final[Mapping[str, str]] = field(default_factory=lambda: _NO_HEADERS)
    body: Final[bytes] = b""


@dataclass(slots=True)
class Response:
    """One FHIR HTTP response.

    Attributes:
        status: HTTP status.
        headers: Headers with HTTP's usual capitalisation (``"ETag"``).
        body: Body in UTF-8.
        done: The interactions carried out; for a bundle, in the order of its entries. For grading only: clients never
            get them.
        json_body: The body as JSON if `body` has another format; for grading only.
    """

    status: Final[int]
    headers: Final[Mapping[str, str]] = field(default_factory=lambda: _NO_HEADERS)
    body: Final[bytes] = b""
    done: Final[tuple[Interaction, ...]] = field(default=(), compare=False, repr=False)
    json_body: Final[bytes] = field(default=b"", compare=False, repr=False)

    @property
    def content(self) -> bytes:
        """The body as JSON, whatever format the client asked for."""
        return self.json_body or self.body

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Json:
        """Parse the body; `ValueError` if it is not JSON."""
        return json.loads(self.body)
