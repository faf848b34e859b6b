"""Test whether a function takes linear time, by comparing CPU times for texts of different lengths."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import orjson

_LENGTHS = (1_024, 8_192, 65_536)
"""Text lengths in characters. The first two detect quadratic time, so the third never takes minutes."""
_TOLERANCE = 3
"""Linear work on a text of 8 times the length takes 8 times as long; the test allows 3 times as much."""
_ATTEMPTS = 4


def is_linear(work: Callable[[str], object], text: Callable[[int], str]) -> bool:
    """Whether the cost of `work` grows at most linearly with the length of the text.

    Args:
        work: The measured function.
        text: Function that returns a text of a given length.
    """
    return all(_is_proportional(work, text(short), text(long)) for short, long in pairwise(_LENGTHS))


def _is_proportional(work: Callable[[str], object], short: str, long: str) -> bool:
    floor = f'["{"a," * (_LENGTHS[1] // 2)}"]'  # times shorter than parsing this text are too short to compare
    for _ in range(_ATTEMPTS):  # another process may have disturbed a measurement
        least = max(_seconds(work, short), _seconds(orjson.loads, floor))
        if _seconds(work, long) <= _TOLERANCE * least * len(long) / len(short):
            return True
    return False


def _seconds(work: Callable[[str], object], text: str) -> float:
    begun = time.process_time()
    work(text)
    return time.process_time() - begun
