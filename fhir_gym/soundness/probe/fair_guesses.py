"""Statistics of fair guesses: uniformly random choices among the qualifying records."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

RARE = 1e-3
"""Maximum probability that fair guesses exceed the bound by chance."""


def max_lucky_hits(chances: Iterable[float], rare: float = RARE) -> int:
    """Return the number of hits that fair guesses exceed with a probability of at most `rare`.

    The number of hits follows a Poisson binomial distribution, because each trial has its own probability.

    Args:
        chances: Probability of a hit in each trial.
        rare: Maximum probability of exceeding the returned number.
    """
    distribution = np.ones(1)
    for chance in chances:
        distribution = np.append(distribution * (1 - chance), 0.0) + np.append(0.0, distribution * chance)
    return int(np.searchsorted(np.cumsum(distribution), 1 - rare))
