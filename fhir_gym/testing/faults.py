"""Faults that a scripted chat server can simulate."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Literal, get_args

Fault = Literal["429", "500", "503", "timeout", "half", "garbled", "no_message"]
"""Name of a fault: an error status, no response, a lost connection, truncated JSON, or a reply without a message."""

FAULTS: tuple[Fault, ...] = get_args(Fault)
"""All faults that a chat server can simulate."""


def random_faults(share: float, *, kinds: Sequence[Fault] = FAULTS, seed: int = 0) -> Callable[[int], Fault | None]:
    """Return a function that chooses a fault, or none, for a request; the request number and the seed determine it.

    On average, this share of the requests fails.
    """

    def fault(number: int) -> Fault | None:
        rng = random.Random(f"{seed}/{number}")
        return rng.choice(kinds) if rng.random() < share else None

    return fault
