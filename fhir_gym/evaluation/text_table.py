"""A table as text cells, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fhir_gym.printable import markdown_text

LIGHT = "light: share of episodes whose requested records exist, whatever they contain, in tasks that request records"
"""What the column "light" of a table means."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table with its title. Cells are unescaped: they may contain any text of a record."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def compact(cls, title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Section:
        """Return a section with these rows; columns without any value are dropped, except the first."""
        kept = [at for at in range(len(columns)) if at == 0 or any(row[at] for row in rows)]
        return cls(title, tuple(columns[at] for at in kept), tuple(tuple(row[at] for at in kept) for row in rows))

    def markdown(self, max_chars: int = 200) -> str:
        """Return the table as Markdown without its title; longer cells are truncated."""
        rows = (self.columns, ("---",) * len(self.columns), *self.rows)
        return "\n".join(f"| {' | '.join(markdown_text(cell, max_chars) for cell in row)} |" for row in rows)


def percent(share: float | None) -> str:
    """Return a share as a percentage."""
    return "" if share is None else f"{share:.1%}"


def number(value: float | None, digits: int) -> str:
    """Return a number with a fixed number of digits after the point."""
    return "" if value is None else f"{value:.{digits}f}"


def points(low: float | None, high: float | None) -> str:
    """Return an interval of shares in percent."""
    return "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"


def p_value(value: float | None) -> str:
    """Return a p-value with three digits."""
    return "" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"
