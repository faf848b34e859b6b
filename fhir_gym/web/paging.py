"""Pages of long tables."""

from __future__ import annotations

PAGE_SIZE = 100
"""Number of rows on a page."""
_MAX_DIGITS = 9


def number_of_pages(rows: int) -> int:
    """Return the number of pages of a table; an empty table has one page."""
    return max(1, -(-rows // PAGE_SIZE))


def page_number(text: str) -> int:
    """Return the number of a page in a URL; 1 if the text is not a positive number."""
    return max(1, number_of(text) or 1)


def number_of(text: str) -> int | None:
    """Return the number in a URL; None if the text is not a number that a page can have."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None
