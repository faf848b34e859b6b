"""Options that several commands share, and how their text is read."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["EnvArgument", "JsonOption", "WorldOption", "names", "numbers"]

EnvArgument = Annotated[str, typer.Argument(metavar="ENV_ID", help="Environment, e.g. FHIRAgent/Appointment-v0.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WorldOption = Annotated[str, typer.Option(help="Name of a world (see `worlds list`) or path of a world file.")]

_MOST = 100_000


def numbers(text: str) -> tuple[int, ...]:
    """Variation numbers: ``3``, ``0-9``, ``0-4,1000-1004``.

    Raises:
        typer.BadParameter: The text is something else.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise typer.BadParameter(f"{part.strip()!r} is no number and no range; write 3, 0-9 or 0-4,1000-1004")
        low, high = int(first), int(last or first)
        if high < low:
            raise typer.BadParameter(f"the range {part.strip()} ends before it starts")
        if high - low >= _MOST:
            raise typer.BadParameter(f"the range {part.strip()} has more than {_MOST:,} numbers")
        found.update(dict.fromkeys(range(low, high + 1)))
    return tuple(found)


def names(text: str | None) -> tuple[str, ...] | None:
    """Names separated by commas; None if there are none, which means all."""
    found = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    return found or None
