"""What commands print: Rich on a terminal, plain text elsewhere, JSON on request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = ["err", "fields", "note", "out", "print_json", "print_text", "progress", "table"]

out = Console(highlight=False, emoji=False)
"""Results."""

err = Console(stderr=True, highlight=False, emoji=False)
"""Everything else: progress, hints, errors."""

_SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), 127) if chr(code) not in "\n\t"}
"""Data and agents' texts may hold control characters; a terminal would obey them."""


def print_json(value: Any) -> None:
    """Print plain data as indented JSON, the same on a terminal and elsewhere."""
    out.file.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def print_text(text: str = "", *, style: str | None = None) -> None:
    """Print text as it is: square brackets are no markup, long lines are not cut, control characters are shown."""
    out.print(text.translate(_SHOWN), style=style, markup=False, soft_wrap=True)


def note(text: str, *, style: str | None = None) -> None:
    """Print text on the error stream, as `print_text` does."""
    err.print(text.translate(_SHOWN), style=style, markup=False, soft_wrap=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table; a column whose cells are all numbers is set right."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    numeric = [all(_is_number(row[at]) for row in cells) and bool(cells) for at in range(len(columns))]
    if out.is_terminal:
        grid = Table(title=title, title_justify="left", header_style="bold")
        for name, right in zip(columns, numeric, strict=True):
            grid.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in cells:
            grid.add_row(*[_escape(cell) for cell in row])
        out.print(grid)
        return
    widths = [max(len(line[at]) for line in [list(columns), *cells]) for at in range(len(columns))]
    if title:
        print_text(title)
    for line in [list(columns), *cells]:
        pairs = zip(line, widths, numeric, strict=True)
        print_text("  ".join(cell.rjust(wide) if right else cell.ljust(wide) for cell, wide, right in pairs).rstrip())


def fields(pairs: Sequence[tuple[str, object]]) -> None:
    """Print names and values below each other."""
    wide = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print_text(f"{name.ljust(wide)}  {value}")


@contextmanager
def progress(label: str) -> Iterator[Callable[..., None]]:
    """A progress bar on the error stream, shown from the first call on and cleared at the end; silent elsewhere.

    Yields:
        A function to call with how many are done, how many there are (0 if unknown), and a text to show behind them.
    """
    told = TextColumn("{task.fields[told]}", markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), told)
    bars = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
    bar = bars.add_task(label, total=None, told="")

    def update(done: int, total: int, told: str = "") -> None:
        bars.start()
        bars.update(bar, completed=done, total=total or None, told=told)

    try:
        yield update
    finally:
        bars.stop()


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace(",", "").rstrip(" %").lstrip("-").isdigit() or text in ("", "-")


def _escape(text: str) -> str:
    """Text for Rich, its square brackets taken literally."""
    return text.replace("[", "\\[")
