"""Choose time windows for prompts such that every condition of the prompt matters.

Times are whole numbers of days or quarter hours. `matching` contains the times of all slots that meet every condition;
`failing_one` contains, for each condition, the times of the slots that fail only this condition. For each condition, a
window must contain a slot that fails only this condition; and there must be matching slots before and after the window.
An agent that ignores a condition, or that searches outside the window, then gets a wrong answer.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

NEVER = 1 << 40
"""A time after all slots; if it is the last time in `matching`, windows may have no end."""

Times = Sequence[int]


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A set of windows that all contain the same slots of `matching`.

    Attributes:
        matching: Sorted times of the slots that meet all conditions.
        failing_one: For each condition, the sorted times of the slots that fail only this condition.
        first: Index in `matching` of the first slot in the window.
        size: Number of slots of `matching` in the window.
    """

    matching: Times
    failing_one: Sequence[Times]
    first: int
    size: int

    def bounds(self, rng: random.Random) -> tuple[int, int]:
        """Draw the start (inclusive) and the end (exclusive) of one of the windows."""
        after, before = self.matching[self.first - 1], self.matching[self.first + self.size]
        within = list(self.matching[self.first : self.first + self.size])
        for times in self.failing_one:
            within.append(times[rng.randrange(bisect_right(times, after), bisect_left(times, before))])
        return rng.randrange(after + 1, min(within) + 1), rng.randrange(max(within) + 1, before + 1)


def time_windows(matching: Times, failing_one: Sequence[Times], sizes: Iterable[int]) -> Iterator[TimeWindow]:
    """Yield all windows of the given sizes in which every condition matters.

    Args:
        matching: Sorted times of the slots that meet all conditions.
        failing_one: For each condition, the sorted times of the slots that fail only this condition.
        sizes: Allowed numbers of slots of `matching` in a window.
    """
    for size in sizes:
        for first in range(1, len(matching) - size):
            after, before = matching[first - 1], matching[first + size]
            if size and not (after < matching[first] and matching[first + size - 1] < before):
                continue
            for times in failing_one:
                if bisect_right(times, after) >= bisect_left(times, before):
                    break
            else:
                yield TimeWindow(matching, failing_one, first, size)
