"""The random number generator of variations."""

from __future__ import annotations

import random
from collections.abc import Iterable, MutableSequence, Sequence
from hashlib import blake2b
from math import ceil, log
from typing import Any, Protocol, TypeVar

from typing_extensions import override

_T_co = TypeVar("_T_co", covariant=True)
_SMALL = 21
_FEW = 5
"""Samples of more than `_FEW` values are drawn from a list if the population is not much larger, others if it has up
to `_SMALL` values. From a larger population, places are drawn until enough of them are different."""
_WIDEST = 1 << 32
"""Largest range in which a scaled random float gives equally likely integers."""


class _Indexed(Protocol[_T_co]):
    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> _T_co: ...


class FastRandom(random.Random):
    """A faster `random.Random`, because each variation takes hundreds of random numbers.

    Its draws differ from those of `random.Random` for the same seed, but have the same distribution.
    """

    @override
    def choice(self, seq: _Indexed[_T_co]) -> _T_co:
        return seq[int(self.random() * len(seq))]

    @override
    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        first, last = (0, start) if stop is None else (start, stop)
        width = last - first
        if step != 1 or not 0 < width < _WIDEST:
            return super().randrange(first, last, step)
        return first + int(self.random() * width)

    @override
    def sample(self, population: Sequence[Any], k: int, *, counts: Iterable[int] | None = None) -> list[Any]:
        size = len(population)
        if counts is not None or not 0 <= k <= size:
            return super().sample(population, k, counts=counts)
        # These are the draws of `random.Random`, without a call for each of them.
        bits, found = self.getrandbits, []
        if size <= _SMALL or (k > _FEW and size <= _SMALL + 4 ** ceil(log(3 * k, 4))):
            left = list(population)
            for number in range(size, size - k, -1):
                width = number.bit_length()
                place = bits(width)
                while place >= number:
                    place = bits(width)
                found.append(left[place])
                left[place] = left[number - 1]
            return found
        width, taken = size.bit_length(), set[int]()
        while len(found) < k:
            place = bits(width)
            if place < size and place not in taken:
                taken.add(place)
                found.append(population[place])
        return found

    @override
    def shuffle(self, x: MutableSequence[Any]) -> None:
        chance = self.random
        for place in range(len(x) - 1, 0, -1):
            other = int(chance() * (place + 1))
            x[place], x[other] = x[other], x[place]


def seeded_random(*parts: object) -> FastRandom:
    """Return a generator whose draws depend only on the texts of `parts`."""
    digest = blake2b("\n".join(map(str, parts)).encode(), digest_size=16).digest()
    return FastRandom(int.from_bytes(digest, "big"))
