"""Limits on the cost of a run."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fhir_gym.errors import FhirGymError


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run. When a limit is reached, no new episode starts, but running episodes continue to their end.

    Attributes:
        episodes: Maximum number of episodes.
        tokens: Maximum total of input and output tokens; it has no effect on agents that do not count tokens.
        seconds: Maximum wall-clock time.
    """

    episodes: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits that are not positive."""
        for name in ("episodes", "tokens", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:  # also refuses NaN
                raise FhirGymError(f"a budget's {name} must be positive, not {value}")


class BudgetTracker:
    """Compares the cost of a run with its budget. The time limit starts when the tracker is created."""

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget or Budget()
        self._start = time.monotonic()
        self._episodes = 0
        self._tokens = 0

    def try_begin(self) -> bool:
        """Return whether the budget allows a new episode; if so, count the episode."""
        elapsed, budget = time.monotonic() - self._start, self._budget
        pairs = ((self._episodes, budget.episodes), (self._tokens, budget.tokens), (elapsed, budget.seconds))
        if any(limit is not None and spent >= limit for spent, limit in pairs):
            return False
        self._episodes += 1
        return True

    def spend(self, tokens: int) -> None:
        """Add tokens to the cost of the run."""
        self._tokens += tokens
