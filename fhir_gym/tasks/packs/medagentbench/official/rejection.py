"""The exceptions with which the verdict rejects an episode."""

from __future__ import annotations

READ_ERRORS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that an unexpected payload or record may cause; the benchmark treats each of them as a rejection."""


class RejectedError(Exception):
    """A requirement of the benchmark is not met; the verdict catches this exception."""


def require(condition: bool, otherwise: str) -> None:
    """Raise `RejectedError` with the reason `otherwise` if the condition is false."""
    if not condition:
        raise RejectedError(otherwise)
