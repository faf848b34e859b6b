"""Draw and intersect ranges of days, and find the gaps between them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date
from itertools import pairwise

DayRange = tuple[int, int]
"""First and last day as ordinals (`date.toordinal`)."""

_FIRST, _LAST = date.min.toordinal(), date.max.toordinal()
_LENGTHS, _GAPS = (90, 500), (15, 200)


def iso_day(ordinal: int) -> str:
    """Return the ISO date of an ordinal (``"2023-11-13"``)."""
    return date.fromordinal(ordinal).isoformat()


def day_range(start: str | None, end: str | None) -> DayRange:
    """Convert a period of ISO dates to a range of days; None means that the period has no start or no end."""
    return (
        _FIRST if start is None else date.fromisoformat(start).toordinal(),
        _LAST if end is None else date.fromisoformat(end).toordinal(),
    )


def intersection(first: Sequence[DayRange], *others: Sequence[DayRange]) -> list[DayRange]:
    """Return the ranges of days that all lists of ranges cover."""
    common = list(first)
    for other in others:
        common = [(a if a > c else c, b if b < d else d) for a, b in common for c, d in other if a <= d and c <= b]
    return common


def gaps_between(ranges: Sequence[DayRange]) -> list[DayRange]:
    """Return the gaps between consecutive ranges."""
    return [(end + 1, start - 1) for (_, end), (start, _) in pairwise(ranges) if end + 1 < start]


def draw_consecutive(rng: random.Random, today: date, count: int) -> list[DayRange]:
    """Draw consecutive ranges that have gaps between them; today may be in any of the ranges or gaps."""
    ranges, start = [], 0
    for _ in range(count):
        end = start + rng.randrange(*_LENGTHS)
        ranges.append((start, end))
        start = end + rng.randrange(*_GAPS)
    shift = today.toordinal() - rng.randrange(ranges[-1][1])
    return [(start + shift, end + shift) for start, end in ranges]


def draw_spanning(rng: random.Random, ranges: Sequence[DayRange]) -> DayRange:
    """Draw a range that starts within the first and ends within the last of several consecutive ranges."""
    (first, first_end), (last_start, last) = ranges[0], ranges[-1]
    return rng.randrange(first, first_end + 1), rng.randrange(last_start, last + 1)


def draw_day(rng: random.Random, ranges: Sequence[DayRange], edges: Sequence[int] = ()) -> str:
    """Draw a day in the ranges; if some `edges` are in the ranges, draw one of these with probability 1/2."""
    close = [edge for edge in edges if any(start <= edge <= end for start, end in ranges)]
    if close and rng.random() < 0.5:
        return iso_day(rng.choice(close))
    start, end = rng.choice(ranges)
    return iso_day(rng.randrange(start, end + 1))
