"""The size of a live shift."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveSize:
    """How large a live shift is.

    Attributes:
        level: The level, 3 or 4.
        kinds: Maximum number of kinds of requests that are no sweeps.
        sweeps: Maximum number of sweeps, each of another kind.
        minutes: Minutes in which requests arrive.
        waiting: Number of requests that wait at the start.
        bookings: Number of bookings by colleagues at each place with slots.
        documents: Number of policy documents.
        amendments: Number of amendments of policies that come into force during the shift.
        events: Factor of the probability that a request is withdrawn, becomes more urgent or gets another description.
        asking: Factor of the probability that a request needs a question.
    """

    level: int
    requests: int
    kinds: int
    sweeps: int
    minutes: int
    waiting: int
    bookings: int
    documents: int
    amendments: int = 0
    events: float = 1.0
    asking: float = 1.0
