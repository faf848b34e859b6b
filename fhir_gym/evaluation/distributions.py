"""A distribution of values: its quartiles, mean and standard deviation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values in ascending order, and their summary. A summary is None if it needs more values than there are.

    Attributes:
        values: The values in ascending order.
    """

    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Return the distribution of values in any order."""
        return cls(tuple(sorted(values)))

    @property
    def n(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """The mean."""
        return math.fsum(self.values) / self.n if self.values else None

    @property
    def sd(self) -> float | None:
        """The sample standard deviation, with divisor n - 1; None with fewer than two values."""
        variance = sample_variance(self.values)
        return None if variance is None else math.sqrt(variance)

    @property
    def min(self) -> float | None:
        """The smallest value."""
        return self.values[0] if self.values else None

    @property
    def q1(self) -> float | None:
        """The first quartile."""
        return self.quantile(0.25)

    @property
    def median(self) -> float | None:
        """The median."""
        return self.quantile(0.5)

    @property
    def q3(self) -> float | None:
        """The third quartile."""
        return self.quantile(0.75)

    @property
    def max(self) -> float | None:
        """The largest value."""
        return self.values[-1] if self.values else None

    def quantile(self, share: float) -> float | None:
        """Return a quantile, interpolated linearly between neighbouring values (NumPy's default).

        Args:
            share: From 0 to 1.
        """
        if not self.values:
            return None
        place = share * (self.n - 1)
        low = math.floor(place)
        high = min(low + 1, self.n - 1)
        return self.values[low] + (place - low) * (self.values[high] - self.values[low])

    def plain(self) -> dict[str, Any]:
        """Return the summary as plain data for JSON."""
        names = ("mean", "sd", "min", "q1", "median", "q3", "max")
        return {"n": self.n} | {name: rounded(getattr(self, name)) for name in names}


def sample_variance(values: Iterable[float]) -> float | None:
    """Return the variance with divisor n - 1; None with fewer than two values."""
    found = list(values)
    if len(found) < 2:
        return None
    mean = math.fsum(found) / len(found)
    return math.fsum((value - mean) ** 2 for value in found) / (len(found) - 1)


def rounded(value: float | None) -> float | None:
    """Return a number with six digits after the point, as reports print numbers in JSON."""
    return None if value is None else round(value, 6)
