"""What a run may cost."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fhir_gym.errors import FhirGymError

__all__ = ["Budget", "Meter"]


@dataclass(frozen=True, slots=True)
class Budget:
    """Caps of a run. When one is reached no further episode is begun; those under way are done to their end.

    Attributes:
        episodes: Most episodes.
        tokens: Most tokens, read and written; of agents that count them.
        seconds: Most wall-clock seconds.
    """

    episodes: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse caps that make no sense."""
        for name in ("episodes", "tokens", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:  # NaN is neither
                raise FhirGymError(f"a budget's {name} must be positive, not {value}")


class Meter:
    """Counts what a run costs, from now on."""

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget or Budget()
        self._start = time.monotonic()
        self._episodes = 0
        self._tokens = 0

    def begin(self) -> bool:
        """Whether one more episode may begin; if so it counts."""
        budget = self._budget
        if budget.episodes is not None and self._episodes >= budget.episodes:
            return False
        if budget.tokens is not None and self._tokens >= budget.tokens:
            return False
        if budget.seconds is not None and time.monotonic() - self._start >= budget.seconds:
            return False
        self._episodes += 1
        return True

    def spend(self, tokens: int) -> None:
        """Count tokens."""
        self._tokens += tokens
