"""The resource type on which the response to a plain read or search depends."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from fhir_gym.fhir.messages import Request

EVERY_TYPE = ""
"""Stands for all resource types."""
_PLAIN_PATH = re.compile(r"/?([A-Z][A-Za-z]+)(?:/[A-Za-z0-9.-]+)?/?$")
"""Path of a search or a read, relative to the base URL."""
_PLAIN_PARAMETER = re.compile(r"(?:[a-z][a-z-]*|_id|_count|_sort|_elements|_summary|_total|_lastUpdated)$")
"""Name of a search parameter, without chains and modifiers, that neither includes nor depends on other types."""


def only_type(request: Request) -> str:
    """Return the only resource type that a plain read or search depends on; `EVERY_TYPE` for another request."""
    path = _PLAIN_PATH.match(request.path) if request.method == "GET" else None
    names = (name for name, _ in parse_qsl(request.query, keep_blank_values=True))
    return path[1] if path is not None and all(map(_PLAIN_PARAMETER.match, names)) else EVERY_TYPE
