"""Limits on the cost of a run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from fhir_gym.agents import Usage
from fhir_gym.errors import ArgumentError

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a model's tokens.

    Attributes:
        per_million_in: Price of a million input tokens.
        per_million_out: Price of a million output tokens.

    Examples:
        >>> Prices(0.4, 1.6).cost(Usage(prompt=1_000_000, completion=500_000))
        1.2
    """

    per_million_in: float = 0.0
    per_million_out: float = 0.0

    def __post_init__(self) -> None:
        """Refuse negative prices."""
        for value in (self.per_million_in, self.per_million_out):
            if not 0 <= value < float("inf"):
                raise ArgumentError(f"a price must be a number from 0, not {value}")

    def cost(self, usage: Usage) -> float:
        """Return the price of these tokens."""
        return (usage.prompt * self.per_million_in + usage.completion * self.per_million_out) / _MILLION


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run. When a limit is reached, no new episode starts, but running episodes continue to their end.

    Attributes:
        episodes: Maximum number of episodes.
        tokens: Maximum total of input and output tokens; it has no effect on agents that do not count tokens.
        seconds: Maximum wall-clock time.
        cost: Maximum cost of all tokens; it needs `prices`.
        prices: Prices of the agent's model.
    """

    episodes: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        """Refuse limits that are not positive, and a cost limit without prices."""
        for name in ("episodes", "tokens", "seconds", "cost"):
            value = getattr(self, name)
            if value is not None and not value > 0:  # also refuses NaN
                raise ArgumentError(f"a budget's {name} must be positive, not {value}")
        if self.cost is not None and self.prices is None:
            raise ArgumentError("a budget with a maximum cost needs the prices of the model's tokens")


class BudgetTracker:
    """Compares the cost of one or more runs with a budget. The time limit starts when the tracker is created.

    Args:
        budget: The limits; None for no limit.
        within: A tracker of a larger budget, whose limits apply too, and which counts all that this tracker counts.
        spent: Tokens that were spent before, and that `within` has counted.

    Attributes:
        usage: The tokens so far.
    """

    def __init__(
        self, budget: Budget | None = None, within: BudgetTracker | None = None, spent: Usage | None = None
    ) -> None:
        self._budget, self._within = budget or Budget(), within
        self._start = time.monotonic()
        self._episodes = 0
        self.usage = spent or Usage()
        self._cost = 0.0
        self._lock = threading.Lock()

    @property
    def exhausted(self) -> bool:
        """Whether a limit is reached."""
        budget = self._budget
        pairs = (
            (self._episodes, budget.episodes),
            (self.usage.total, budget.tokens),
            (time.monotonic() - self._start, budget.seconds),
            (self._cost, budget.cost),
        )
        reached = any(limit is not None and spent >= limit for spent, limit in pairs)
        return reached or (self._within is not None and self._within.exhausted)

    def try_begin(self) -> bool:
        """Return whether the budget allows a new episode; if so, count the episode."""
        with self._lock:
            if self.exhausted or (self._within is not None and not self._within.try_begin()):
                return False
            self._episodes += 1
            return True

    def spend(self, usage: Usage, prices: Prices | None = None) -> None:
        """Add tokens to the cost of the run.

        Args:
            usage: The tokens.
            prices: Prices of another model than the agent's; None for the budget's prices.
        """
        prices = prices or self._budget.prices
        with self._lock:
            self.usage += usage
            self._cost += prices.cost(usage) if prices else 0.0
        if self._within is not None:
            self._within.spend(usage, prices)
