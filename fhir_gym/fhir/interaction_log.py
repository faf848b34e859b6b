"""The log of interactions that a server carried out or refused for one request.

The server adds this log to its `Response` object; agents never see it. For a remote server,
`fhir_gym.fhir.adapters.remote_interactions` derives the same log from the server's responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

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
