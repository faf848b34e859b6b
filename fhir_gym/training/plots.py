"""Draw the plots of a training report; equal data give equal files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fhir_gym.errors import MissingExtraError
from fhir_gym.training.evaluation import Evaluation

Curve = Sequence[tuple[int, Evaluation]]
"""Evaluations with their steps."""
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b")


def draw_curves(
    curves: Mapping[str, tuple[Curve, Sequence[Curve]]], references: Mapping[str, float], path: Path
) -> None:
    """Draw success on the test variations against training steps.

    Args:
        curves: For each name, the pooled curve and the curves of its seeds. The pooled one has its 95 % interval.
        references: Success rates to show as horizontal lines.
        path: The PNG file.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    columns = 1 if len(curves) > 1 else 3
    lines = math.ceil((len(curves) + len(references)) / columns)
    figure, axes = _figure(6.4, 3.6 + 0.16 * lines)
    for number, (name, (pooled, seeds)) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        if len(seeds) > 1:
            for curve in seeds:
                axes.plot(*_points(curve), color=colour, linewidth=0.6, alpha=0.6)
        steps, shares = _points(pooled)
        axes.plot(steps, shares, color=colour, marker="o", markersize=3, label=name)
        intervals = [evaluation.interval for _, evaluation in pooled]
        low, high = [100 * one for one, _ in intervals], [100 * one for _, one in intervals]
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    for number, (name, share) in enumerate(references.items()):
        axes.axhline(100 * share, color="grey", linewidth=0.8, linestyle=("--", ":", "-.")[number % 3], label=name)
    axes.set(xlabel="training steps", ylabel="success on test variations (%)", ylim=(0, 100))
    axes.grid(alpha=0.3)
    if curves or references:
        figure.legend(loc="outside lower center", ncols=columns, fontsize=7)
    _save(figure, path)


def draw_tasks(evaluations: Mapping[str, Evaluation], path: Path) -> None:
    """Draw the success rate of each task as bars, one colour per name; see `draw_curves`."""
    tasks = sorted({(one.env_id, one.task) for evaluation in evaluations.values() for one in evaluation.tasks})
    width = 0.8 / max(1, len(evaluations))
    figure, axes = _figure(max(4.0, min(12.0, 1.5 + 0.25 * len(tasks) * max(1, len(evaluations)))), 3.2)
    for number, (name, evaluation) in enumerate(evaluations.items()):
        share = {(one.env_id, one.task): one.success for one in evaluation.tasks}
        places = [at + width * (number - (len(evaluations) - 1) / 2) for at in range(len(tasks))]
        heights = [100 * share.get(task, 0.0) for task in tasks]
        axes.bar(places, heights, width, color=_COLOURS[number % len(_COLOURS)], label=name)
    axes.set(ylabel="success (%)", ylim=(0, 100))
    axes.set_xticks(range(len(tasks)), [task for _, task in tasks], rotation=90, fontsize=7)
    if len(evaluations) > 1:
        figure.legend(loc="outside lower center", fontsize=7)
    _save(figure, path)


def _points(curve: Curve) -> tuple[list[int], list[float]]:
    return [step for step, _ in curve], [100 * evaluation.success for _, evaluation in curve]


def _figure(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure that needs no screen and does not depend on the user's matplotlib settings."""
    try:
        matplotlib, figures = import_module("matplotlib"), import_module("matplotlib.figure")
        import_module("matplotlib.backends.backend_agg")
    except ImportError as error:
        raise MissingExtraError("plots need matplotlib: pip install 'fhir-gym[train]'") from error
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        figure = figures.Figure(figsize=(width, height), dpi=100, layout="constrained")
        return figure, figure.add_subplot()


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, format="png", metadata={"Software": None})
