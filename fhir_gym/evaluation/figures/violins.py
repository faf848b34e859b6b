"""Draw distributions as violins with median and quartiles; few or equal values are drawn as points and lines."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fhir_gym.evaluation.distributions import Distribution
from fhir_gym.evaluation.figures.charts import Violins
from fhir_gym.evaluation.figures.style import INK, PAPER, Style, series_style, slot_centre, slot_width

_FEWEST = 5
"""Smallest number of values for which a shape is drawn; fewer values are drawn as points."""
_POINTS = 60


def density(values: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Estimate a density at some points with Gaussian kernels and Scott's bandwidth; 1 is the highest density.

    Args:
        values: At least two values that are not all equal.
        points: Where to estimate.
    """
    found, counts = np.unique(values, return_counts=True)
    bandwidth = float(values.std(ddof=1)) * len(values) ** -0.2
    total = np.zeros_like(points)
    for start in range(0, len(found), 1000):
        part = slice(start, start + 1000)
        distances = (points[:, None] - found[None, part]) / bandwidth
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
