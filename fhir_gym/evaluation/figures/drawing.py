"""Draw figures with matplotlib as SVG and PNG; equal data give equal bytes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib import import_module
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fhir_gym.errors import missing_extra, pip_install
from fhir_gym.evaluation.figures.charts import Bars, Chart, Figure, HeatMap, Stacks, Violins
from fhir_gym.evaluation.figures.style import (
    INK,
    PAPER,
    Style,
    letter,
    part_style,
    series_style,
    shown_name,
    slot_centre,
    slot_width,
    text_colour,
)
from fhir_gym.evaluation.metrics import Distribution

_FEWEST = 5
"""Smallest number of values for which a shape is drawn; fewer values are drawn as points."""
_POINTS = 60


def density(values: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Estimate a density at some points with Gaussian kernels and Scott's bandwidth; 1 is the highest density.

    Args:
        values: At least two values that are not all equal.
        points: Where to estimate.
    """
    distinct, counts = np.unique(values, return_counts=True)
    bandwidth = float(values.std(ddof=1)) * len(values) ** -0.2
    total = np.zeros_like(points)
    for start in range(0, len(distinct), 1000):
        part = slice(start, start + 1000)
        distances = (points[:, None] - distinct[None, part]) / bandwidth
        total += np.exp(-0.5 * distances**2) @ counts[part]
    highest = float(total.max())
    return total / highest if highest > 0 else total


def draw_violins(axes: Any, chart: Violins) -> None:
    """Draw all distributions of a chart."""
    width = slot_width(len(chart.series))
    highest = 0.0
    for number, samples in enumerate(chart.samples):
        for group, sample in enumerate(samples):
            at = slot_centre(group, number, len(chart.series))
            _draw_one(axes, at, 0.46 * width, sample, series_style(number))
            highest = max(highest, sample.max or 0.0)
    axes.set_ylim(-0.02 * highest, highest * 1.05 or 1.0)


def _draw_one(axes: Any, at: float, half: float, sample: Distribution, style: Style) -> None:
    if sample.n == 0 or sample.min is None or sample.max is None or sample.median is None:
        axes.text(at, 0, " no data", rotation=90, ha="center", va="bottom", fontsize=6)
        return
    if sample.n >= _FEWEST and sample.max > sample.min:
        values = np.asarray(sample.values, dtype=np.float64)
        heights = np.linspace(sample.min, sample.max, _POINTS)
        widths = half * density(values, heights)
        looks = {"facecolor": style.fill, "edgecolor": style.line, "hatch": style.hatch, "linewidth": 0.0}
        axes.fill_betweenx(heights, at - widths, at + widths, zorder=3, **looks)
        axes.fill_betweenx(heights, at - widths, at + widths, facecolor="none", edgecolor=INK, linewidth=0.8, zorder=3)
        axes.plot([at, at], [sample.q1, sample.q3], color=PAPER, linewidth=4.2, solid_capstyle="butt", zorder=4)
        axes.plot([at, at], [sample.q1, sample.q3], color=INK, linewidth=2.6, solid_capstyle="butt", zorder=4)
    elif sample.max > sample.min:
        looks = {"color": style.fill, "markeredgecolor": INK, "markersize": 4, "markeredgewidth": 0.6}
        axes.plot([at] * sample.n, sample.values, linestyle="none", marker="o", zorder=3, **looks)
    # The median: a white line with dark edges stands out on every fill.
    ends = [at - 0.8 * half, at + 0.8 * half]
    axes.plot(ends, [sample.median] * 2, color=INK, linewidth=3.4, solid_capstyle="butt", zorder=5)
    axes.plot(ends, [sample.median] * 2, color=PAPER, linewidth=1.4, solid_capstyle="butt", zorder=6)


_DPI = 150
_WIDEST = 60.0
"""Largest width of a figure in inches; matplotlib refuses images of more than 65,535 pixels."""
_LETTER = 0.09
"""Width of a letter in inches, estimated generously."""
_SETTINGS = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.facecolor": PAPER,
    "font.size": 9,
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",
    "svg.hashsalt": "fhir-gym",
    "text.color": INK,
    # A name of a run may contain dollar signs; matplotlib must not read them as formulas.
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
_SVG_TAG = re.compile(r"<svg ")
_PATH = re.compile(r'(?<= d=")[^"]*')
_DECIMALS = re.compile(r"(\.\d\d)\d+")


def draw_svg(figure: Figure) -> str:
    """Return a figure as SVG with an accessible title and description.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with _matplotlib() as figures:
        return _svg(_drawn(figure, figures), figure)


def draw(figure: Figure) -> tuple[str, bytes]:
    """Return a figure as SVG and as PNG; see `draw_svg`."""
    with _matplotlib() as figures:
        drawn = _drawn(figure, figures)
        svg = _svg(drawn, figure)
        drawn.set_layout_engine("none")  # keep the layout of the SVG
        png = io.BytesIO()
        drawn.savefig(png, format="png", dpi=_DPI, metadata={"Software": None})
    return svg, png.getvalue()


def _drawn(figure: Figure, figures: Any) -> Any:
    """Return a matplotlib figure with all charts and a legend below them."""
    sizes = [_size(chart) for chart in figure.charts]
    width = max(wide for wide, _ in sizes)
    legend = _legend(figure.charts[0])
    columns = _legend_columns([label for _, label in legend], width)
    height = sum(high for _, high in sizes) + 0.2 * -(-len(legend) // columns)
    drawn = figures.Figure(figsize=(width, height), layout="constrained")
    ratios = [high for _, high in sizes]
    axes = drawn.subplots(len(sizes), squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
    for place, chart in zip(axes, figure.charts, strict=True):
        _draw_chart(place, chart)
    handles, labels = [handle for handle, _ in legend], [label for _, label in legend]
    drawn.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False, handleheight=1.4)
    return drawn


@contextmanager
def _matplotlib() -> Iterator[Any]:
    """Load matplotlib with our settings, independent of the user's, and yield its module of figures."""
    with missing_extra(f"figures need matplotlib: {pip_install('report')}"):
        matplotlib, figures = import_module("matplotlib"), import_module("matplotlib.figure")
        import_module("matplotlib.backends.backend_agg")
    with matplotlib.rc_context(matplotlib.rcParamsDefault), matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A name in a script that the font does not contain is drawn as boxes in the PNG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield figures


def _size(chart: Chart) -> tuple[float, float]:
    """Return width and height of a chart in inches."""
    if isinstance(chart, HeatMap):
        return min(_WIDEST, max(5.0, 2.2 + 0.85 * len(chart.series))), 0.9 + 0.42 * len(chart.rows)
    if isinstance(chart, Stacks):
        return min(_WIDEST, max(6.4, 1.2 + 0.6 * len(chart.series))), 3.2
    marks = len(chart.groups) * (len(chart.series) + 1)
    return min(18.0, max(6.4, 1.0 + 0.24 * marks)), 3.2


def _draw_chart(axes: Any, chart: Chart) -> None:
    axes.set_title(chart.title, loc="left", fontweight="bold")
    if isinstance(chart, Bars):
        _draw_bars(axes, chart)
    elif isinstance(chart, Stacks):
        _draw_stacks(axes, chart)
    elif isinstance(chart, HeatMap):
        _draw_heat_map(axes, chart)
    else:
        draw_violins(axes, chart)
        _label_groups(axes, chart.groups, len(chart.series), chart.axis)


def _draw_bars(axes: Any, chart: Bars) -> None:
    width = slot_width(len(chart.series))
    few = len(chart.groups) * len(chart.series) <= 30
    for number, bars in enumerate(chart.bars):
        for group, bar in enumerate(bars):
            at = slot_centre(group, number, len(chart.series))
            if bar is None:
                axes.text(at, 0, " no data", rotation=90, ha="center", va="bottom", fontsize=6)
                continue
            _box(axes, at, 0.0, bar.value, width * 0.92, series_style(number))
            if bar.low is not None and bar.high is not None:
                below, above = max(0.0, bar.value - bar.low), max(0.0, bar.high - bar.value)
                axes.errorbar(at, bar.value, [[below], [above]], color=PAPER, linewidth=2.6, zorder=4)
                axes.errorbar(at, bar.value, [[below], [above]], color=INK, linewidth=1.1, capsize=2.2, zorder=5)
            if few:
                text = f"{bar.value:.{chart.digits}f}"
                box = {"boxstyle": "square,pad=0.15", "facecolor": PAPER, "edgecolor": "none"}
                looks = {"ha": "center", "fontsize": 6, "bbox": box, "zorder": 6}
                axes.annotate(text, (at, bar.value), (0, 3), textcoords="offset points", **looks)
    _label_groups(axes, chart.groups, len(chart.series), chart.axis)
    axes.yaxis.get_major_locator().set_params(integer=chart.digits == 0)
    highest = max((bar.high or bar.value for bars in chart.bars for bar in bars if bar is not None), default=0.0)
    axes.set_ylim(0, chart.top * 1.04 if chart.top else highest * 1.12 or 1.0)


def _draw_stacks(axes: Any, chart: Stacks) -> None:
    highest = 0.0
    for at, values in enumerate(chart.values):
        if values is None:
            axes.text(at, 0, " no data", ha="center", va="bottom", fontsize=7)
            continue
        bottom, total = 0.0, sum(values)
        for number, value in enumerate(values):
            style = part_style(number)
            _box(axes, at, bottom, value, 0.7, style)
            if total and value / total >= 0.08:
                box = {"boxstyle": "round,pad=0.15", "facecolor": style.fill, "edgecolor": "none"}
                middle, text = bottom + value / 2, f"{value:,.{chart.digits}f}"
                axes.text(at, middle, text, color=style.line, ha="center", va="center", fontsize=7, bbox=box, zorder=6)
            bottom += value
        if chart.top is None:
            text = f"{total:,.{chart.digits}f}"
            axes.annotate(text, (at, total), (0, 2), textcoords="offset points", ha="center", fontsize=7)
        highest = max(highest, bottom)
    axes.set_xticks(range(len(chart.series)), [letter(number) for number in range(len(chart.series))])
    margin = max(0.6, 2 - len(chart.series) / 2)
    axes.set_xlim(-margin, len(chart.series) - 1 + margin)
    axes.set_ylim(0, (chart.top or highest) * 1.08 or 1.0)
    _finish_value_axis(axes, chart.axis)


def _draw_heat_map(axes: Any, chart: HeatMap) -> None:
    rows, columns = len(chart.rows), len(chart.series)
    for row, cells in enumerate(chart.cells):
        for column, cell in enumerate(cells):
            shaded, text, hatch = PAPER, "no calls", "///"
            if cell is not None:
                # One colour from light to dark: the order survives every kind of colour vision and grey-scale print.
                shaded, text, hatch = shade(cell.percent), f"{cell.percent:.1f} %\nn = {cell.of:,}", ""
            box = {"boxstyle": "square,pad=0.1", "facecolor": shaded, "edgecolor": "none"}
            place = (column - 0.5, row - 0.5)
            axes.add_patch(
                _rectangle(place, 1.0, 1.0, facecolor=shaded, edgecolor="#b0b0b0", hatch=hatch, linewidth=0.8)
            )
            looks = {"color": text_colour(shaded), "ha": "center", "va": "center", "fontsize": 7.5}
            axes.text(column, row, text, bbox=box, **looks)
    axes.set_xticks(range(columns), [letter(number) for number in range(columns)])
    axes.set_yticks(range(rows), [shown_name(row) for row in chart.rows])
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_xlabel(chart.axis)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


_SHADES = ((0, (247, 251, 255)), (50, (107, 174, 214)), (100, (8, 48, 107)))
"""Red, green and blue at some percentages; between them, colours are interpolated."""


def shade(percent: float) -> str:
    """Return the colour of a percentage."""
    (start, light), (end, deep) = _SHADES[:2] if percent <= 50 else _SHADES[1:]
    part = (percent - start) / (end - start)
    return "#" + "".join(f"{round(low + (high - low) * part):02x}" for low, high in zip(light, deep, strict=True))


def _box(axes: Any, at: float, bottom: float, height: float, width: float, style: Style) -> None:
    """Draw a bar: the hatch in its own colour, and a dark outline that makes light fills visible on white."""
    for colours in ({"facecolor": style.fill, "edgecolor": style.line, "hatch": style.hatch, "linewidth": 0.0}, {}):
        outline = colours or {"facecolor": "none", "edgecolor": INK, "linewidth": 0.8}
        axes.add_patch(_rectangle((at - width / 2, bottom), width, height, zorder=3, **outline))


def _rectangle(place: tuple[float, float], width: float, height: float, **looks: Any) -> Any:
    return import_module("matplotlib.patches").Rectangle(place, width, height, **looks)


def _label_groups(axes: Any, groups: Sequence[str], series: int, axis: str) -> None:
    """Put the letter of each series below its mark and the name of each group below the letters."""
    width = slot_width(series)
    letters = series > 1
    if letters:
        places = [
            group + width * (number - (series - 1) / 2) for group in range(len(groups)) for number in range(series)
        ]
        axes.xaxis.remove_overlapping_locs = False  # else the middle letter disappears, as the group's label is there
        axes.set_xticks(places, [letter(number) for _ in groups for number in range(series)], minor=True)
        axes.tick_params(axis="x", which="minor", length=0, labelsize=7)
    inches = axes.figure.get_figwidth() - 1.0
    letters_of_line = max(8, int(inches / len(groups) / _LETTER))
    axes.set_xticks(range(len(groups)), [fill(shown_name(group), letters_of_line) for group in groups])
    axes.tick_params(axis="x", which="major", length=0, pad=14 if letters else 4)
    for edge in range(1, len(groups)):
        axes.axvline(edge - 0.5, color="#b0b0b0", linewidth=0.6, zorder=1)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    _finish_value_axis(axes, axis)


def _finish_value_axis(axes: Any, label: str) -> None:
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.grid(axis="y", alpha=0.3, zorder=0)


def _legend(chart: Chart) -> list[tuple[Any, str]]:
    """Return the handles and labels of the legend."""
    entries: list[tuple[Any, str]] = []
    if isinstance(chart, Stacks):
        entries = [(_swatch(part_style(number)), part) for number, part in enumerate(chart.parts)]
    plain = Style(PAPER, "", INK)
    swatches = isinstance(chart, Bars | Violins)
    for number, name in enumerate(chart.series):
        style = series_style(number) if swatches else plain
        entries.append((_swatch(style, visible=swatches), f"{letter(number)}  {shown_name(name)}"))
    return entries


def _swatch(style: Style, visible: bool = True) -> Any:
    patch = import_module("matplotlib.patches").Patch
    if not visible:
        return patch(facecolor="none", edgecolor="none")
    return patch(facecolor=style.fill, edgecolor=style.line, hatch=style.hatch, linewidth=0.5)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Return the number of legend columns that fit into a width in inches."""
    longest = max((len(label) for label in labels), default=1)
    return max(1, min(len(labels), int(width / (0.6 + _LETTER * longest))))


def _svg(drawn: Any, figure: Figure) -> str:
    """Return a drawn figure as SVG, with the title and the description that screen readers announce."""
    file = io.StringIO()
    drawn.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    # Two decimals of a point are enough for an outline, and halve the file.
    short = _PATH.sub(lambda path: _DECIMALS.sub(r"\1", path[0]), file.getvalue())
    head = '<svg role="img" aria-labelledby="title" aria-describedby="description" '
    texts = f'<title id="title">{escape(figure.title)}</title>\n <desc id="description">{escape(figure.caption)}</desc>'
    tagged = _SVG_TAG.sub(head, short, count=1)
    end = tagged.index(">", tagged.index("<svg ")) + 1
    return f"{tagged[:end]}\n {texts}{tagged[end:]}"
