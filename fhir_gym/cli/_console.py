"""Output of the commands: formatted by Rich on a terminal, plain text elsewhere, or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fhir_gym.printable import JSON_ESCAPES, visible

out = Console(highlight=False, emoji=False)
"""Standard output, for results."""

err = Console(stderr=True, highlight=False, emoji=False)
"""Standard error, for progress, notes and errors."""


def print_json(value: Any) -> None:
    """Print JSON data, indented but without colours or line wrapping."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    out.file.write(text.translate(JSON_ESCAPES) + "\n")  # in JSON, control characters occur only in strings


def print_raw(text: str) -> None:
    """Print multi-line text in which control characters, except line ends, are escaped."""
    out.file.write(visible(text, keep="\n\t"))


def print_text(text: str = "", *, style: str | None = None) -> None:
    """Print text without markup or line wrapping, and escape its control characters."""
    out.print(visible(text, keep="\n\t"), style=style, markup=False, soft_wrap=True)


def note(text: str, *, style: str | None = None) -> None:
    """Print text to standard error, like `print_text`."""
    err.print(visible(text, keep="\n\t"), style=style, markup=False, soft_wrap=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table in which columns of numbers are right-aligned.

    On a terminal, a table that is too wide continues below with its further columns.
    """
    columns = [visible(name) for name in columns]
    cells = [["" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    numeric = [all(_is_number(row[at]) for row in cells) and bool(cells) for at in range(len(columns))]
    widths = [max(cell_len(line[at]) for line in [columns, *cells]) for at in range(len(columns))]
    if out.is_terminal:
        for part, chosen in enumerate(_parts(widths, numeric, out.width)):
            text = title and Text(visible(f"{title} (further columns)" if part else title))
            grid = Table(title=text, title_justify="left", header_style="bold")
            for at in chosen:
                grid.add_column(Text(columns[at]), justify="right" if numeric[at] else "left", overflow="fold")
            for row in cells:
                grid.add_row(*(Text(row[at]) for at in chosen))
            out.print(grid)
        return
    if title:
        print_text(title)
    for line in [columns, *cells]:
        pairs = zip(line, widths, numeric, strict=True)
        print_text("  ".join(cell.rjust(wide) if right else cell.ljust(wide) for cell, wide, right in pairs).rstrip())


_BORDER = 3
"""Width of the border and the space around a cell."""
_FOLDED = 24
"""Width of a column of texts that is still readable if the texts are folded."""


def _parts(widths: Sequence[int], numeric: Sequence[bool], width: int) -> list[list[int]]:
    """Return the columns of each part of a table that is printed in parts which fit into a width.

    There is one part if it fits with folded texts. All parts have the first column, and the second one if it has short
    texts.
    """
    narrow = [wide if number else min(wide, _FOLDED) for wide, number in zip(widths, numeric, strict=True)]
    if sum(narrow) + _BORDER * len(narrow) < width:
        return [[*range(len(widths))]]
    heads = [0]
    if len(widths) > 1 and not any(numeric[:2]) and widths[1] == narrow[1]:
        heads.append(1)
    free = width - 1 - sum(widths[at] + _BORDER for at in heads)
    parts, left = [[*heads]], free
    for at in range(len(heads), len(widths)):
        if widths[at] + _BORDER > left and len(parts[-1]) > len(heads):
            parts.append([*heads])
            left = free
        parts[-1].append(at)
        left -= widths[at] + _BORDER
    return parts


def fields(pairs: Sequence[tuple[str, object]]) -> None:
    """Print pairs of a name and a value, one pair per line."""
    wide = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print_text(f"{name.ljust(wide)}  {visible(str(value))}")


@contextmanager
def progress(label: str, *, lines: bool = False) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error if it is a terminal.

    The progress bar appears with the first update and disappears at the end of the context.

    Args:
        label: What is in progress.
        lines: Whether to print lines where standard error is no terminal, such as a log file: one whenever another
            hundredth is done or the words of the text change.

    Yields:
        A function that updates the progress bar. Its arguments are the number of finished items, the total number (0 if
        the total is unknown) and an optional text.
    """
    told = TextColumn("{task.fields[told]}", markup=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        told,
    )
    bars = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
    bar = bars.add_task(visible(label), total=None, told="")
    printed: tuple[int, str] | None = None

    def update(done: int, total: int, told: str = "") -> None:
        nonlocal printed
        reached = (100 * done // max(1, total), re.sub(r"[\d.,%]+", "", told))
        if lines and not err.is_terminal and reached != printed:
            note(f"{label}: {done:,} of {total:,}{told and ', '}{told}")
            printed = reached
        bars.start()
        bars.update(bar, completed=done, total=total or None, told=visible(told))

    try:
        yield update
    finally:
        if not bars.disable:  # some versions of rich print an empty line
            bars.stop()


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace(",", "").rstrip(" %").lstrip("-").isdigit() or text in ("", "-")
