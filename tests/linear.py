"""Whether work grows with the length of a text as reading it does, told without a clock's unit: by ratios."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import orjson

_LENGTHS = (1_024, 8_192, 65_536)
"""The first pair shows what is quadratic before the second would take minutes."""
_TOLERANCE = 3
"""What is linear takes 8 times as long for a text of 8 times the length, and a third of what this allows."""
_ATTEMPTS = 4


def is_linear(work: Callable[[str], object], text: Callable[[int], str]) -> bool:
    """Whether `work` on a long text costs at most in proportion to what it costs on a short one.

    Args:
        work: What is measured.
        text: Gives a text of a length.
    """
    return all(_is_proportional(work, text(short), text(long)) for short, long in pairwise(_LENGTHS))


def _is_proportional(work: Callable[[str], object], short: str, long: str) -> bool:
    floor = f'["{"a," * (_LENGTHS[1] // 2)}"]'  # what takes less than this is too quick to compare
    for _ in range(_ATTEMPTS):  # another process may have disturbed one of the two
        least = max(_seconds(work, short), _seconds(orjson.loads, floor))
        if _seconds(work, long) <= _TOLERANCE * least * len(long) / len(short):
            return True
    return False


def _seconds(work: Callable[[str], object], text: str) -> float:
    begun = time.process_time()
    work(text)
    return time.process_time() - begun
