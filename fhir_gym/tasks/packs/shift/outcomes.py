"""The outcomes of requests, and their letters."""

from __future__ import annotations

from string import ascii_uppercase

DONE = "done"
NOTHING_TO_DO = "nothing to do"
NO_SUCH_PATIENT = "no such patient"
SEVERAL_PATIENTS = "more than one such patient"
NO_FREE_TIME = "no free time"
NO_RESULT = "no result"
NOT_ALLOWED = "not allowed"
NO_CONTACT = "no contact"
NOT_TAKEN = "not taken"
NOTHING_WRONG = "nothing wrong"
ALREADY_DONE = "already done"
BY_NAME = frozenset({NO_SUCH_PATIENT, SEVERAL_PATIENTS})
"""The outcomes that the search for the patient alone settles."""
WITHDRAWN = "withdrawn"
"""The outcome of a request that its requester withdraws while the agent works on it; only in live shifts."""


def letters(count: int) -> str:
    """Return the letters of a number of requests."""
    return ascii_uppercase[:count]
