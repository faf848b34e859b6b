"""Helpers for references and dates in resources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def targets(value: Any) -> Iterator[str]:
    """Yield every `reference` in a resource."""
    if isinstance(value, list):
        for item in value:
            yield from targets(item)
    elif isinstance(value, dict):
        if isinstance(value.get("reference"), str):
            yield value["reference"]
        for item in value.values():
            yield from targets(item)


def dates(value: Any) -> Iterator[str]:
    """Yield every text in a resource that starts like a date."""
    if isinstance(value, list):
        for item in value:
            yield from dates(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from dates(item)
    elif isinstance(value, str) and _DATE.match(value):
        yield value
