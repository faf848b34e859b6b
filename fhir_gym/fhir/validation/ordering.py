"""Compare dates, times and quantities as FHIRPath does: values of different precision may have no order."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation

from fhir_gym.fhir.validation.tree import Node

_DATE_TIME = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d):(\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)?)?)?)?")


def in_order(first: str, second: str) -> bool | None:
    """Return whether a date or time is not after another; None if their precision does not tell, or one is malformed.

    >>> in_order("2020-01-01T10:00:00+02:00", "2020-01-01T09:00:00Z"), in_order("2020-01", "2020-01-15")
    (True, None)
    """
    left, right = _parts(first), _parts(second)
    if left is None or right is None:
        return None
    for one, other in zip(left, right, strict=False):
        if one != other:
            return one < other
    return True if len(left) == len(right) else None


def _parts(text: str) -> tuple[Decimal, ...] | None:
    """Return year, month, day, hour, minute and second as far as they are given; with a zone, those of UTC."""
    found = _DATE_TIME.fullmatch(text)
    if found is None:
        return None
    *numbers, fraction, zone = found.groups()
    parts = [int(number) for number in numbers if number is not None]
    if zone not in (None, "Z"):
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        offset = timedelta(hours=hours, minutes=minutes)
        try:
            moment = datetime.fromisoformat(text[:19]) - (offset if zone[0] == "+" else -offset)
        except (ValueError, OverflowError):
            return None
        parts = [moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second]
    values = [Decimal(part) for part in parts]
    if fraction:
        values[-1] += Decimal(f"0{fraction}")
    return tuple(values)


def quantities_in_order(low: Node, high: Node) -> bool:
    """Return whether a quantity is not more than another; true if their units differ, as units are not converted."""
    if low.text_of("unit") != high.text_of("unit") or low.text_of("code") != high.text_of("code"):
        return True
    try:
        return Decimal(low.text_of("value") or "") <= Decimal(high.text_of("value") or "")
    except InvalidOperation:
        return True
