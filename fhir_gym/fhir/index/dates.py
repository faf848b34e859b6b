"""FHIR dates as intervals of instants and of calendar days.

As in HAPI, searches by day, month or year compare days as written; other searches compare instants.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date, datetime
from functools import lru_cache
from typing import NamedTuple

DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1).toordinal()
_SECONDS = len("2023-11-14T09:00:00Z")
"""Length of an instant in the usual form. `datetime` parses this form faster than a regular expression does."""
_SHORT = 40
"""Maximum length of the dates in the cache."""

_DATE = re.compile(
    r"\s*(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(Z|[+-]\d\d:\d\d)?)?)?)?\s*", re.ASCII
)


class Interval(NamedTuple):
    """The interval that a date value covers, including both ends.

    Attributes:
        low: First millisecond since the epoch.
        high: Last millisecond.
        low_day: First calendar day as a number yyyymmdd.
        high_day: Last calendar day.
    """

    low: int
    high: int
    low_day: int
    high_day: int


FAR_PAST = -62_135_596_800_000
"""0001-01-01: the start of a period without a start."""

FAR_FUTURE = 253_402_300_799_999
"""9999-12-31: the end of a period without an end."""


@lru_cache(maxsize=4096)
def start_of_day(year: int, month: int, day: int) -> int:
    """Return midnight UTC in milliseconds; `ValueError` for an invalid day."""
    return (date(year, month, day).toordinal() - _EPOCH) * DAY_MS


def interval(text: str) -> Interval | None:
    """Return the interval of a FHIR date, dateTime or instant; None if it is invalid."""
    return _interval(text) if len(text) <= _SHORT else _interval.__wrapped__(text)


@lru_cache(maxsize=16384)
def _interval(text: str) -> Interval | None:
    if len(text) == _SECONDS and text[4::3] == "--T::Z":
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return _parsed(text)
        seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
        low = (moment.toordinal() - _EPOCH) * DAY_MS + seconds * 1000
        day = moment.year * 10000 + moment.month * 100 + moment.day
        return Interval(low, low, day, day)
    return _parsed(text)


def _parsed(text: str) -> Interval | None:
    match = _DATE.fullmatch(text)
    if not match:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        y, m, d = int(year), int(month or 1), int(day or 1)
        low = start_of_day(y, m, d)
    except ValueError:
        return None
    low_day = y * 10000 + m * 100 + d
    if hour:
        low += int(hour) * 3_600_000 + int(minute) * 60_000 + int(second or 0) * 1000
        if fraction:
            low += int(f"{fraction:0<3.3}")
        if zone and zone != "Z":
            offset = (int(zone[1:3]) * 60 + int(zone[4:6])) * 60_000
            low += -offset if zone[0] == "+" else offset
        return Interval(low, low, low_day, low_day)
    if day:
        return Interval(low, low + DAY_MS - 1, low_day, low_day)
    m = m if month else 12
    d = monthrange(y, m)[1]
    return Interval(low, start_of_day(y, m, d) + DAY_MS - 1, low_day, y * 10000 + m * 100 + d)


def period(start: str | None, end: str | None) -> Interval | None:
    """Return the interval of a Period. A missing end is unlimited. None if both ends are missing or invalid."""
    first = interval(start) if start else None
    last = interval(end) if end else None
    if first is None and last is None:
        return None
    return Interval(
        first.low if first else FAR_PAST,
        last.high if last else FAR_FUTURE,
        first.low_day if first else 10101,
        last.high_day if last else 99991231,
    )
