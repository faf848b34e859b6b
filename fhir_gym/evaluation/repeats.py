"""Measures for repeated attempts at the same variation: pass@k and reliability."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import comb, fsum

from fhir_gym.arguments import require_whole


@dataclass(frozen=True, slots=True)
class Attempts:
    """The graded attempts at one variation of a task.

    Attributes:
        env_id: The pack.
        task: Key of the task.
        variation: Number of the variation.
        successes: Number of successful attempts.
        episodes: Number of attempts.
    """

    env_id: str
    task: str
    variation: int
    successes: int
    episodes: int


def pass_at_k(attempts: Iterable[Attempts], k: int) -> float | None:
    """Return pass@k: the probability that at least one of k attempts at a variation succeeds.

    For each variation with at least k attempts, pass@k is estimated without bias from all its attempts. The result is
    the mean of these estimates, or None if no variation has k attempts.

    Examples:
        >>> pass_at_k([Attempts("pack", "01", 0, successes=1, episodes=2)], 1)
        0.5
    """
    return _mean(attempts, k, lambda one: 1 - comb(one.episodes - one.successes, k) / comb(one.episodes, k))


def reliability(attempts: Iterable[Attempts], k: int) -> float | None:
    """Return pass^k: the probability that all k attempts at a variation succeed. It is estimated as in `pass_at_k`.

    Examples:
        >>> reliability([Attempts("pack", "01", 0, successes=3, episodes=4)], 2)
        0.5
    """
    return _mean(attempts, k, lambda one: comb(one.successes, k) / comb(one.episodes, k))


def repeat_counts(attempts: Iterable[Attempts]) -> list[int]:
    """Return the values of k to report, 1, 2, 4 … up to the most attempts at a variation; none without repeats."""
    most = max((one.episodes for one in attempts), default=0)
    return [1 << n for n in range(most.bit_length())] if most > 1 else []


def without_variance(attempts: Iterable[Attempts]) -> float | None:
    """Return the share of variations with the same result in all attempts, among the variations with several attempts.

    A group-relative method such as GRPO learns nothing from such a variation. The result is None if no variation has
    several attempts.
    """
    repeated = [one for one in attempts if one.episodes > 1]
    constant = sum(one.successes in (0, one.episodes) for one in repeated)
    return constant / len(repeated) if repeated else None


def _mean(attempts: Iterable[Attempts], k: int, estimate: Callable[[Attempts], float]) -> float | None:
    require_whole("k", k, 1)
    values = [estimate(one) for one in attempts if one.episodes >= k]
    return fsum(values) / len(values) if values else None
