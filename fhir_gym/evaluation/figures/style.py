"""Colours, hatches and letters that tell runs apart, also for colour-blind readers and in grey-scale print."""

from __future__ import annotations

from dataclasses import dataclass

from fhir_gym.printable import one_line

INK = "#1a1a1a"
"""Colour of texts, outlines and axes."""
PAPER = "#ffffff"
"""Colour of the background."""

# Every two colours differ by at least 20 in CIELAB, for normal, protan, deutan and tritan vision. Neighbours differ
# by at least 14 in lightness. tests/evaluation/test_figure_style.py computes both.
_COLOURS = (
    "#0077bb",
    "#e69f00",
    "#332288",
    "#eedd88",
    "#aa3377",
    "#bbbbbb",
    "#661100",
    "#56b4e9",
    "#cc3311",
    "#ee6677",
)
# No dots and circles: matplotlib writes them to SVG as thousands of curves.
_HATCHES = ("", "///", "\\\\\\", "---", "xx", "|||", "++", "/", "--", "x")
_PARTS = (("#e0e0e0", ""), ("#a0a0a0", "///"), ("#404040", ""))
_MAX_NAME = 70


@dataclass(frozen=True)
class Style:
    """The looks of one series: fill colour, hatch, and a hatch colour that is visible on the fill."""

    fill: str
    hatch: str
    line: str


def series_style(number: int) -> Style:
    """Return the style of a series by its index; styles repeat after ten series."""
    place = number % len(_COLOURS)
    fill = _COLOURS[place]
    return Style(fill, _HATCHES[place], text_colour(fill))


def part_style(number: int) -> Style:
    """Return the style of a part of a stacked bar; parts are grey, because colours stand for runs."""
    fill, hatch = _PARTS[number % len(_PARTS)]
    return Style(fill, hatch, text_colour(fill))


def slot_width(series: int) -> float:
    """Return the width of the place of one mark in a group that has the width 1."""
    return 0.84 / max(series, 3)


def slot_centre(group: int, number: int, series: int) -> float:
    """Return where the mark of a series stands in a group, in the coordinates of the axis of groups."""
    return group + slot_width(series) * (number - (series - 1) / 2)


def letter(number: int) -> str:
    """Return the letter of a series by its index: A to Z, then A1, B1 and so on."""
    again, place = divmod(number, 26)
    return chr(ord("A") + place) + (str(again) if again else "")


def shown_name(name: str) -> str:
    """Return a name for a figure: one line, shortened, without control characters."""
    return one_line(name, _MAX_NAME)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour as WCAG defines it."""
    red, green, blue = (_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def text_colour(fill: str) -> str:
    """Return black or white, whichever has the higher contrast on a fill colour."""
    # Contrast with black equals contrast with white at this luminance.
    return "#000000" if luminance(fill) > 0.179 else "#ffffff"


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else float(((channel + 0.055) / 1.055) ** 2.4)
