"""The resource types on which the response to a plain read or search depends."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from fhir_gym.fhir.messages import Request

_PLAIN_PATH = re.compile(r"/?([A-Z][A-Za-z]+)(?:/[A-Za-z0-9.-]+)?/?$")
"""Path of a search or a read, relative to the base URL."""
_PLAIN_PARAMETER = re.compile(r"(?:[a-z][a-z-]*|_id|_count|_sort|_elements|_summary|_total|_lastUpdated)$")
"""Name of a search parameter, without chains and modifiers, that neither includes nor depends on other types."""
_REVERSE_INCLUDE = re.compile(r"([A-Z][A-Za-z]+):[a-z][a-z-]*(?::[A-Z][A-Za-z]+)?$")
"""Value of `_revinclude` that includes resources of one type."""


def types_of(request: Request) -> frozenset[str] | None:
    """Return the resource types on which the response to a plain read or search depends; None for another request.

    The response contains resources of these types only.
    """
    path = _PLAIN_PATH.match(request.path) if request.method == "GET" else None
    if path is None:
        return None
    found = {path[1]}
    for name, value in parse_qsl(request.query, keep_blank_values=True):
        included = _REVERSE_INCLUDE.match(value) if name == "_revinclude" else None
        if included is not None:
            found.add(included[1])
        elif not _PLAIN_PARAMETER.match(name):
            return None
    return frozenset(found)
