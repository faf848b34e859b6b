"""What one request may cost: an agent is an adversary, and a server that serves thousands of them stays bounded."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one session.

    Attributes:
        url_chars: Longest path plus query.
        body_bytes: Largest request body.
        page_entries: Most matches on one page (`_count` above it is served in pages of this size).
        answer_bytes: Largest answer.
        bundle_entries: Most entries in a batch or transaction.
        searches: Search results remembered for paging; the oldest is forgotten first.
        remembered: Most matches in all of them together (8 bytes each).
        sql_steps: SQLite virtual-machine steps one request may take. Steps, not seconds: the same request is refused
            on every machine or on none, unless it comes within a hundredth of the limit (`Store.budget` says why).
    """

    url_chars: int = 32_768
    body_bytes: int = 4 * 1024 * 1024
    page_entries: int = 10_000
    answer_bytes: int = 64 * 1024 * 1024
    bundle_entries: int = 2_000
    searches: int = 100
    remembered: int = 4_000_000
    sql_steps: int = 20_000_000
