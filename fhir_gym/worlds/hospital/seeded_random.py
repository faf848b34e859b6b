"""Seeded random choices that are identical on every machine and Python version.

The choices use only integers, because floating-point sums, libm functions and hash order differ between platforms or
versions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class SeededRandom:
    """A stream of random choices, identified by a seed and a purpose.

    Streams with different purposes are independent: a change in the draws of medications changes no patient's name.

    Args:
        parts: Seed and purpose, such as ``0, "labs", "S1234567"``.
    """

    def __init__(self, *parts: object) -> None:
        self._random = random.Random("/".join(str(part) for part in parts))  # seeded by the text's SHA-512

    def between(self, low: int, high: int) -> int:
        """Draw an integer from low to high, inclusive."""
        return self._random.randrange(low, high + 1)

    def percent(self, share: int) -> bool:
        """Return True with a probability of `share` percent."""
        return self._random.randrange(100) < share

    def one(self, options: Sequence[T]) -> T:
        """Draw one option uniformly."""
        return options[self._random.randrange(len(options))]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """Draw up to `count` options without replacement, in random order."""
        return self.shuffled(options)[:count]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """Return the options in random order."""
        mixed = list(options)
        self._random.shuffle(mixed)
        return mixed

    def weighted(self, options: Sequence[tuple[T, int]]) -> T:
        """Draw one option from (option, integer weight) pairs."""
        left = self._random.randrange(sum(weight for _, weight in options))
        for option, weight in options:
            left -= weight
            if left < 0:
                return option
        raise ValueError("weights must be positive")

    def bell(self, mean: int, deviation: int) -> int:
        """Draw an approximately normal integer: the sum of twelve random bytes has mean 1530 and deviation 256."""
        return mean + (sum(self._random.randbytes(12)) - 1530) * deviation // 256


def sequential_ids(prefix: str, step: int = 15) -> Iterator[str]:
    """Yield ascending ids with gaps, such as `OBS0000009` and `OBS0000012`.

    The ids contain letters because some FHIR servers reject purely numeric ids in a PUT. Tasks can use the ids in the
    gaps.
    """
    rng, number = SeededRandom("ids", prefix), 0
    while True:
        number += rng.between(1, step)
        yield f"{prefix}{number:07d}"


class IdSequence:
    """Allocates ids from one `sequential_ids` stream per prefix."""

    def __init__(self, step: int = 15) -> None:
        self._step = step
        self._runs: dict[str, Iterator[str]] = {}

    def new(self, prefix: str) -> str:
        """Return the next id with this prefix."""
        if prefix not in self._runs:
            self._runs[prefix] = sequential_ids(prefix, self._step)
        return next(self._runs[prefix])


def decimal(scaled: int, digits: int) -> float | int:
    """Return `scaled / 10**digits`: 41 and 1 give 4.1."""
    return scaled / 10**digits if digits else scaled
