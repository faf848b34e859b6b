"""Compute the shapes of sparklines: small line charts without axes, drawn as SVG by the templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 220, 44
"""Size of a sparkline in CSS pixels."""
_MARGIN = 5
_MOST_DOTS = 60
"""Maximum number of values that get a dot each; a longer line gets one only at its end."""


@dataclass(frozen=True, slots=True)
class Dot:
    """The position of a value."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The shapes of a sparkline.

    Attributes:
        line: The points of the line, as the attribute `points` of an SVG polyline.
        dots: The positions of the values that get a dot; the last one is the latest value.
        band_top: Upper edge of the reference range; None without a range.
        band_height: Height of the reference range.
    """

    line: str
    dots: tuple[Dot, ...]
    band_top: float | None
    band_height: float


def sparkline(values: Sequence[float], low: float | None = None, high: float | None = None) -> Sparkline:
    """Return the shapes of the values of one measurement, which are drawn at equal distances.

    Args:
        values: The values in the order of time; at least one.
        low: Lower limit of the reference range.
        high: Upper limit of the reference range.
    """
    shown = [*values, *(one for one in (low, high) if one is not None)]
    bottom, half = min(shown), max(shown) / 2 - min(shown) / 2  # a whole difference may be too large for a float

    def x(place: int) -> float:
        share = place / (len(values) - 1) if len(values) > 1 else 0.5
        return round(_MARGIN + share * (WIDTH - 2 * _MARGIN), 1)

    def y(value: float) -> float:
        share = (value / 2 - bottom / 2) / half if half > 0 else 0.5
        return round(HEIGHT - _MARGIN - share * (HEIGHT - 2 * _MARGIN), 1)

    dots = tuple(Dot(x(place), y(value)) for place, value in enumerate(values))
    line = " ".join(f"{dot.x},{dot.y}" for dot in dots)
    band_top, band_height = None, 0.0
    if low is not None or high is not None:
        band_top = 0.0 if high is None else y(high)
        band_height = max(1.0, round((HEIGHT if low is None else y(low)) - band_top, 1))
    return Sparkline(line, dots if len(dots) <= _MOST_DOTS else dots[-1:], band_top, band_height)
