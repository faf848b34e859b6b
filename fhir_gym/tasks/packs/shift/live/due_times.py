"""Due times of the requests of a live shift, which somebody who works steadily can keep."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from fhir_gym.tasks.packs.shift.live.plan import Priority

LONGEST_STRETCH = 8
"""Requests that take more minutes are interrupted for others that are due earlier."""
_STRETCH = 5
"""Minutes of work on an interrupted request before somebody looks at the worklist again."""
_SLACK: Mapping[str, tuple[int, int]] = {"routine": (4, 16), "urgent": (3, 10), "stat": (1, 6)}
"""Minutes between the time at which a steady worker is done with a request and its due time, by priority."""
_RANK: Mapping[str, int] = {"stat": 0, "urgent": 1, "routine": 2}
_SPEEDS = (1.1, 1.0, 0.85, 0.7, 0.55, 0.4)
"""Multiples of the usual minutes of work for which due times are tried."""
_MARGIN = 12
SHORTEST_NOTICE = 20
"""Minimum number of minutes from the arrival of a request to its due time."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work that one request takes.

    Attributes:
        arrival: Minute of the shift at which the request arrives.
        hurried: Minute at which it becomes urgent; None for never.
    """

    arrival: int
    priority: Priority
    minutes: int
    hurried: int | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """The minutes at which a request is due.

    Attributes:
        usual: The minute if nothing happens.
        hurried: The minute after the request became urgent.
    """

    usual: int
    hurried: int


def draw_due_times(rng: random.Random, works: Sequence[Work]) -> list[Due]:
    """Draw the minutes at which each request is due.

    Args:
        rng: Random generator.
        works: The requests in the order of their arrival.
    """
    arrivals, minutes = [work.arrival for work in works], [work.minutes for work in works]
    ends = completion_times(arrivals, [_RANK[work.priority] for work in works], minutes)
    usual = [rounded(end + rng.randint(*_SLACK[work.priority])) for end, work in zip(ends, works, strict=True)]
    dues = [_hurried_due(work, due) for due, work in zip(usual, works, strict=True)]
    # An agent that always handles the request that is due first must be in time, too, at any speed. A faster agent does
    # not always finish earlier: an urgent request may arrive just after it has begun another request.
    for speed in _SPEEDS:
        ends = completion_times(arrivals, dues, [minute * speed for minute in minutes])
        dues = [max(due, rounded(end + _MARGIN)) for end, due in zip(ends, dues, strict=True)]
    earliest = [max(SHORTEST_NOTICE, LONGEST_STRETCH + work.minutes + _MARGIN) for work in works]
    dues = [max(due, rounded(work.arrival + first)) for due, work, first in zip(dues, works, earliest, strict=True)]
    return [Due(max(due, usual_due), due) for due, usual_due in zip(dues, usual, strict=True)]


def _hurried_due(work: Work, due: int) -> int:
    """Return the minute at which a request is due after it became urgent, if it does."""
    return due if work.hurried is None else min(due, rounded(work.hurried + 2 * LONGEST_STRETCH + 3 * work.minutes))


def completion_times(arrivals: Sequence[int], ranks: Sequence[int], minutes: Sequence[float]) -> list[float]:
    """Return when somebody who always works on the waiting request with the lowest rank is done with each request.

    Long work is interrupted, other work is not.

    Args:
        arrivals: Minutes at which the requests arrive, in order.
        ranks: Their ranks.
        minutes: Minutes of work that they need.
    """
    ends, rest = [0.0] * len(arrivals), list(minutes)
    left, now = list(range(len(arrivals))), 0.0
    while left:
        waiting = [place for place in left if arrivals[place] <= now]
        if not waiting:
            now = float(arrivals[left[0]])
            continue
        taken = min(waiting, key=lambda place: (ranks[place], arrivals[place], place))
        worked = rest[taken] if minutes[taken] <= LONGEST_STRETCH else min(rest[taken], _STRETCH)
        now += worked
        rest[taken] -= worked
        if rest[taken] <= 0:
            ends[taken] = now
            left.remove(taken)
    return ends


def rounded(minutes: float) -> int:
    """Round up to a multiple of five minutes."""
    return 5 * ceil(minutes / 5)
