"""Confidence intervals and tests: Wilson, cluster-robust intervals of a mean, Student's t, and McNemar's exact test."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

IntervalMethod = Literal["clustered", "wilson"]
"""How an interval was computed: see `rate_interval`."""

_Z = 1.959963984540054
"""Quantile of the normal distribution for a two-sided 95 % interval."""
_ROUNDING = 1e-12
"""Standard errors below this value are rounding errors."""
_TINY = 1e-300
_MAX_TERMS = 10_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval.

    Attributes:
        low: Lower bound.
        high: Upper bound.
        method: The method of computation.
    """

    low: float
    high: float
    method: IntervalMethod


@dataclass(frozen=True, slots=True)
class ClusteredMean:
    """The mean of values that belong to clusters, with its cluster-robust standard error.

    The variance is the sandwich estimator with the correction G / (G - 1) for G clusters; it equals an ordinary
    least-squares fit of a constant with cluster-robust covariance. Intervals and tests use Student's t with G - 1
    degrees of freedom.

    Attributes:
        mean: The mean of all values.
        error: The standard error; None if it cannot be estimated: with fewer than two clusters, or if no cluster
            deviates from the mean.
        values: Number of values.
        clusters: Number of clusters.
    """

    mean: float
    error: float | None
    values: int
    clusters: int

    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the mean; None without a standard error."""
        if self.error is None:
            return None
        half = t_quantile(0.975, self.clusters - 1) * self.error
        return self.mean - half, self.mean + half

    def p_value(self) -> float | None:
        """Return the two-sided p-value of the hypothesis that the mean is 0; None without a standard error."""
        return None if self.error is None else t_two_sided(self.mean / self.error, self.clusters - 1)


def clustered_mean(clusters: Iterable[Sequence[float]]) -> ClusteredMean | None:
    """Return the mean of all values with a cluster-robust standard error; None without values."""
    sums = [(math.fsum(values), len(values)) for values in clusters if values]
    count = sum(size for _, size in sums)
    if not count:
        return None
    mean = math.fsum(total for total, _ in sums) / count
    groups = len(sums)
    if groups < 2:
        return ClusteredMean(mean, None, count, groups)
    squares = math.fsum((total - size * mean) ** 2 for total, size in sums)
    error = math.sqrt(groups / (groups - 1) * squares) / count
    return ClusteredMean(mean, error if error > _ROUNDING else None, count, groups)


def rate_interval(clusters: Iterable[Sequence[bool]]) -> Interval:
    """Return the 95 % interval of a success rate whose outcomes belong to clusters.

    The interval is cluster-robust (see `ClusteredMean`) and limited to 0 to 1. With one cluster, it is Wilson's
    interval of all outcomes, which treats them as independent. If no cluster deviates from the mean, as when every
    outcome is a success, it is Wilson's interval with one trial for each cluster. Without outcomes, it is (0, 1).

    Args:
        clusters: The outcomes of each cluster, such as the episodes of each task.
    """
    mean = clustered_mean([float(value) for value in values] for values in clusters)
    if mean is None:
        return Interval(0.0, 1.0, "wilson")
    bounds = mean.interval()
    if bounds is None:
        return Interval(*_wilson(mean.mean, mean.clusters if mean.clusters > 1 else mean.values), "wilson")
    return Interval(max(0.0, bounds[0]), min(1.0, bounds[1]), "clustered")


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a proportion; it is also valid for few trials and near 0 and 1.

    Args:
        successes: Number of successes.
        trials: Number of trials; for 0 trials, the interval is (0, 1).
    """
    return _wilson(successes / trials, trials) if trials else (0.0, 1.0)


def _wilson(share: float, trials: int) -> tuple[float, float]:
    z2 = _Z * _Z
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    # Where the formula gives exactly 0 or 1, rounding errors must not move the bound.
    low = 0.0 if share == 0 else max(0.0, centre - half)
    return low, 1.0 if share == 1 else min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Proportion:
    """A proportion of independent trials, with Wilson's 95 % interval."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        """The proportion; None if there were no trials."""
        return self.count / self.of if self.of else None

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        low, high = wilson(self.count, self.of)
        share = None if self.value is None else round(self.value, 6)
        return {"count": self.count, "of": self.of, "share": share, "low": round(low, 6), "high": round(high, 6)}


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    The test treats pairs as independent. If several pairs belong to one cluster, it is too optimistic.

    Args:
        only_first: Number of pairs in which only the first run succeeds.
        only_second: Number of pairs in which only the second run succeeds.
    """
    trials = only_first + only_second
    term = tail = 1
    for n in range(min(only_first, only_second)):
        term = term * (trials - n) // (n + 1)
        tail += term
    # Whole numbers are exact however many pairs there are; their quotient is rounded once.
    return min(1.0, 2 * tail / (1 << trials)) if trials else 1.0


def t_two_sided(t: float, freedom: float) -> float:
    """Return the probability that Student's t exceeds `abs(t)` in absolute value."""
    if math.isinf(t):
        return 0.0
    whole = freedom + t * t
    return _incomplete_beta(freedom / 2, 0.5, freedom / whole, t * t / whole)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution.

    Args:
        probability: Between 0.5 and 1, both excluded.
        freedom: Degrees of freedom.
    """
    both_tails = 2 * (1 - probability)
    low, high = 0.0, 2.0
    while t_two_sided(high, freedom) > both_tails:
        low, high = high, 2 * high
    for _ in range(200):  # each step halves the interval; the loop ends when it can be halved no more
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_two_sided(middle, freedom) > both_tails else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularized incomplete beta function of x, by its continued fraction (Lentz's method).

    Args:
        a: First parameter.
        b: Second parameter.
        x: From 0 to 1.
        rest: 1 - x, without the rounding error of the subtraction.
    """
    if x <= 0 or rest <= 0:
        return float(rest <= 0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, use the symmetry of the function
        return 1 - _incomplete_beta(b, a, rest, x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MAX_TERMS):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _nonzero(1 + step * d)
            c = _nonzero(1 + step / c)
            change = c * d
            value *= change
        if abs(change - 1) < 1e-15:
            break
    return front * value / a


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
