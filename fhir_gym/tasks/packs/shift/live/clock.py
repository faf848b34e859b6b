"""The time that requests take."""

from __future__ import annotations

from datetime import timedelta

from fhir_gym.fhir.messages import Response

READ = timedelta(seconds=20)
WRITE = timedelta(seconds=60)
READ_ENTRY = timedelta(seconds=5)
WRITE_ENTRY = timedelta(seconds=20)

RULE = (
    f"Time passes with each of your actions: a read or a search takes {READ.seconds} seconds, a write "
    f"{WRITE.seconds} seconds. In a batch or transaction, the first entry takes as long, and each further entry "
    f"{READ_ENTRY.seconds} seconds, or {WRITE_ENTRY.seconds} seconds if the Bundle writes. A refused request takes "
    f"{READ.seconds} seconds. The status line of each response shows the time."
)
"""The rule in words, for prompts."""


def duration(response: Response) -> timedelta:
    """Return the time that a request took, judged by what the server did."""
    writes = any(one.effect for one in response.done)
    further = max(len(response.done) - 1, 0)
    return (WRITE if writes else READ) + further * (WRITE_ENTRY if writes else READ_ENTRY)
