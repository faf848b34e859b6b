"""The routing table: which interaction the method and path of a request name, as in HAPI.

The server answers requests by this table, and the log of interactions follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fhir_gym.fhir.messages import WRITES, Interaction, Kind

_MARKS = ("$", "_")
_OPERATION_METHODS = frozenset({"GET", "POST", "DELETE"})
_HISTORY = "_history"


class Target(NamedTuple):
    """The parts of a request's path.

    Attributes:
        resource_type: The first segment; empty for a path that begins with an operation, and for the base URL.
        id: The id of a resource.
        version: The version of the resource.
        operation: A segment such as ``$meta``, ``_history``, ``_search`` or ``metadata``.
        compartment: A further segment such as ``foo`` in ``Patient/1/foo``. Writes and histories ignore it.
        is_valid: Whether HAPI can read the path.
    """

    resource_type: str = ""
    id: str = ""
    version: str = ""
    operation: str = ""
    compartment: str = ""
    is_valid: bool = True


def parse_path(segments: Sequence[str]) -> Target:
    """Return the parts of a path, from its decoded segments without empty ones."""
    if len(segments) in (1, 2) and not _is_operation(segments[0]) and not _is_operation(segments[-1]):  # most requests
        return Target(segments[0], segments[1] if len(segments) == 2 else "")
    first, second, third, *rest = (*segments, "", "", "")[: max(len(segments), 3)]
    resource_type, operation = ("", first) if _is_operation(first) else (first, "")
    id = version = compartment = ""
    is_valid = True
    if _is_operation(second):
        operation = second
    else:
        id = second
    if third == _HISTORY and rest:
        version, is_valid = rest[0], bool(id)
        rest = rest[1:]
    elif third == _HISTORY:
        operation = _HISTORY
    elif _is_operation(third):
        is_valid = not operation
        operation = third
    else:
        compartment = third
    if rest and not operation:
        operation, rest = rest[0], rest[1:]
    # HAPI reads one further segment without a meaning
    return Target(resource_type, id, version, operation, compartment, is_valid and len(rest) <= 1)


def _is_operation(segment: str) -> bool:
    return segment.startswith(_MARKS) or segment == "metadata"


def route(method: str, target: Target) -> Kind | None:
    """Return the interaction that a request names; None if HAPI cannot handle the request.

    The caller handles the base URL. An operation may turn out to be unknown.
    """
    if not target.is_valid:
        return None
    if target.operation:
        return _operation(method, target)
    if method == "GET" and not target.id:
        return "search"
    if method in ("GET", "HEAD"):
        kind: Kind = "vread" if target.version else "read"
        return kind if target.id and not target.compartment else None
    return WRITES.get(method)


def _operation(method: str, target: Target) -> Kind | None:
    name = target.operation
    if name == _HISTORY:
        return None if target.version else "history"  # with every method
    if name == "_search":
        by_type = target.resource_type and not target.id and not target.compartment
        return "search" if by_type and method in ("GET", "POST") else None
    if name == "metadata":
        return None if target.resource_type else "capabilities"
    return "operation" if name.startswith("$") and method in _OPERATION_METHODS else None


def attempted(method: str, segments: Sequence[str]) -> Interaction:
    """Return the interaction that a request attempted, from its method and its decoded path segments.

    A request that cannot be routed counts as what its method suggests.
    """
    target = parse_path(segments)
    kind, id = (target.resource_type, target.id) if target.resource_type[:1].isupper() else ("", "")
    interaction = route(method, target) if segments and (kind or target.operation) else None
    if interaction is None:
        reads = method in ("GET", "HEAD")
        interaction = (
            "read" if reads and id else "search" if reads and (kind or not segments) else WRITES.get(method, "other")
        )
        if method == "POST" and not kind:
            interaction = "other"
    return Interaction(interaction, kind, id, operation=target.operation if interaction == "operation" else "")
