"""The report of training runs: curves on the test variations, results by task, references and costs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fhir_gym.errors import MissingExtraError, TrainingError, missing_extra, pip_install
from fhir_gym.evaluation import (
    Attempts,
    ClusteredMean,
    Section,
    pass_at_k,
    reliability,
    repeat_counts,
    without_variance,
)
from fhir_gym.evaluation.metrics import rounded
from fhir_gym.evaluation.text_table import number, p_value, percent, points
from fhir_gym.files import write_file
from fhir_gym.training.evaluation import Evaluation, TaskSuccess
from fhir_gym.training.run_folder import RunRecord, read_run

Curve = Sequence[tuple[float, Evaluation]]
"""Evaluations with their steps or CPU minutes."""
_SHARES = (-3, 103)
"""Range of axes in per cent; marks at 0 and at 100 are whole."""
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b")


def draw_curves(
    curves: Mapping[str, tuple[Curve, Sequence[Curve]]],
    references: Mapping[str, float],
    path: Path,
    unit: str = "training steps",
) -> None:
    """Draw success on the test variations against training steps or CPU minutes.

    Args:
        curves: For each name, the pooled curve and the curves of its seeds. The pooled one has its 95 % interval.
        references: Success rates to show as horizontal lines.
        path: The PNG file.
        unit: What the curves count.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    columns = 1 if len(curves) > 1 else 3
    lines = math.ceil((len(curves) + len(references)) / columns)
    figure, axes = _figure(6.4, 3.8 + 0.16 * lines)
    for index, (name, (pooled, seeds)) in enumerate(curves.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        if len(seeds) > 1:
            for curve in seeds:
                axes.plot(*_points(curve), color=colour, linewidth=0.6, alpha=0.6)
        steps, shares = _points(pooled)
        whiskers = _whiskers(evaluation for _, evaluation in pooled)
        axes.errorbar(steps, shares, whiskers, color=colour, marker="o", markersize=3, capsize=2, label=name)
    for index, (name, share) in enumerate(references.items()):
        axes.axhline(100 * share, color="grey", linewidth=0.8, linestyle=("--", ":", "-.")[index % 3], label=name)
    last = max((step for pooled, _ in curves.values() for step, _ in pooled), default=0) or 1
    axes.set(xlabel=unit, ylabel="success (%)", title="Success on the test variations (95 % intervals)")
    axes.set(xlim=(-0.03 * last, 1.03 * last), ylim=_SHARES)
    axes.grid(alpha=0.3)
    if curves or references:
        figure.legend(loc="outside lower center", ncols=columns, fontsize=7)
    _save(figure, path)


def draw_tasks(evaluations: Mapping[str, Evaluation], path: Path) -> None:
    """Draw the success rate of each task as bars, one colour per name; see `draw_curves`."""
    tasks = sorted({(task.env_id, task.task) for evaluation in evaluations.values() for task in evaluation.tasks})
    width = 0.8 / max(1, len(evaluations))
    figure, axes = _figure(max(4.0, min(12.0, 1.5 + 0.25 * len(tasks) * max(1, len(evaluations)))), 3.4)
    for index, (name, evaluation) in enumerate(evaluations.items()):
        place = {(task.env_id, task.task): task for task in evaluation.tasks}
        shown = [(at, place[task]) for at, task in enumerate(tasks) if task in place]
        places = [at + width * (index - (len(evaluations) - 1) / 2) for at, _ in shown]
        heights = [100 * task.success for _, task in shown]
        whiskers = _whiskers(task for _, task in shown)
        colour = _COLOURS[index % len(_COLOURS)]
        axes.bar(places, heights, width, color=colour, alpha=0.7, label=name)
        axes.errorbar(places, heights, whiskers, fmt="none", ecolor="black", capsize=1)
    axes.set(xlabel="task", ylabel="success (%)", title="Last evaluation by task (95 % intervals)", ylim=_SHARES)
    axes.set_xticks(range(len(tasks)), [task for _, task in tasks], rotation=90, fontsize=7)
    if evaluations:
        figure.legend(loc="outside lower center", fontsize=7)
    _save(figure, path)


def _whiskers(results: Iterable[Evaluation | TaskSuccess]) -> list[list[float]]:
    """Return how far the 95 % interval reaches below and above each success rate, in per cent."""
    reaches = [
        (100 * max(0.0, result.success - low), 100 * max(0.0, high - result.success))
        for result in results
        for low, high in [result.interval]
    ]
    return [[below for below, _ in reaches], [above for _, above in reaches]]


def _points(curve: Curve) -> tuple[list[float], list[float]]:
    return [step for step, _ in curve], [100 * evaluation.success for _, evaluation in curve]


def _figure(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure that needs no screen and does not depend on the user's matplotlib settings."""
    with missing_extra(f"plots need matplotlib: {pip_install('train')}"):
        matplotlib, figures = import_module("matplotlib"), import_module("matplotlib.figure")
        import_module("matplotlib.backends.backend_agg")
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        figure = figures.Figure(figsize=(width, height), dpi=100, layout="constrained")
        return figure, figure.add_subplot()


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, format="png", metadata={"Software": None})


_SHARE = 0.6
"""Success rate from which a task counts as learned in the report."""


@dataclass(frozen=True)
class Variant:
    """Training runs that differ in their seed only.

    Attributes:
        name: The recipe, with the fields in which the variants of the report differ.
        runs: The runs by seed.
    """

    name: str
    runs: tuple[RunRecord, ...]

    def curve(self, name: str = "test") -> list[tuple[int, Evaluation]]:
        """Return the evaluations of one name by step, with the episodes of all runs that evaluated at this step."""
        by_step: dict[int, list[Evaluation]] = {}
        for run in self.runs:
            for step, evaluation in run.evaluations(name):
                by_step.setdefault(step, []).append(evaluation)
        return [(step, Evaluation.pooled(by_step[step])) for step in sorted(by_step)]

    def cpu_minutes(self, step: int) -> float:
        """Return the CPU minutes of a run until its evaluation at a step, the mean of the runs that have one."""
        rows = [row for run in self.runs for row in run.rows if row.get("evaluation") == "test" and row["step"] == step]
        return sum(float(row.get("cpu_seconds", 0.0)) for row in rows) / max(1, len(rows)) / 60

    def last(self, name: str = "test") -> Evaluation | None:
        """Return the last evaluation of each run, pooled; None if no run has one."""
        evaluations = [run.evaluations(name)[-1][1] for run in self.runs if run.evaluations(name)]
        return Evaluation.pooled(evaluations) if evaluations else None

    def names(self) -> list[str]:
        """Return the names of the evaluations."""
        return list(dict.fromkeys(name for run in self.runs for name in run.evaluation_names()))


def write_report(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write ``report.md``, ``report.json`` and, with matplotlib, ``curves.png`` and ``tasks.png``.

    Args:
        folders: Run folders; runs that differ in their seed only are pooled, others are compared. A folder that is
            given twice counts once.
        out: Folder for the report; by default the first run folder.

    Returns:
        The path of ``report.md``.

    Raises:
        TrainingError: A folder holds no training run.
    """
    if not folders:
        raise TrainingError("a report needs at least one run folder")
    different = {Path(folder).resolve(): folder for folder in folders}
    variants = group_runs([read_run(folder) for folder in different.values()])
    target = Path(folders[0] if out is None else out)
    target.mkdir(parents=True, exist_ok=True)
    plots, remark = _draw(variants, target)
    write_file(target / "report.json", json.dumps(plain(variants), indent=1) + "\n", TrainingError)
    write_file(target / "report.md", markdown(variants, plots, remark), TrainingError)
    return target / "report.md"


def group_runs(records: Iterable[RunRecord]) -> list[Variant]:
    """Group runs that differ in their seed only."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        settings = {name: value for name, value in record.config.items() if name not in ("seed", "threads")}
        groups.setdefault(json.dumps([record.recipe, settings], sort_keys=True), []).append(record)
    runs = [tuple(sorted(group, key=lambda run: run.config.get("seed", 0))) for group in groups.values()]
    return [Variant(name, group) for name, group in zip(_names([group[0] for group in runs]), runs, strict=True)]


def plain(variants: Sequence[Variant]) -> dict[str, Any]:
    """Return the report as plain data for JSON."""
    return {
        "variants": [
            {
                "name": variant.name,
                "evaluations": {name: _plain_curve(variant.curve(name)) for name in variant.names()},
                "runs": [_plain_run(run) for run in variant.runs],
            }
            for variant in variants
        ],
        "differences": [
            {"run": name, "compared_with": reference, "variations": mean.clusters, **_plain_difference(mean)}
            for name, reference, mean in _differences(variants)
        ],
    }


def markdown(variants: Sequence[Variant], plots: Sequence[str] = (), remark: str = "") -> str:
    """Return the report as Markdown."""
    parts = ["# Training report", *(f"![{name.removesuffix('.png')}]({name})" for name in plots)]
    if remark:
        parts.append(remark)
    heads = ("run", "evaluation", "success", "95 %", "episodes", f"tasks at {_SHARE:.0%}", "invalid actions", "steps")
    names = ("run", "evaluation", "k", "pass@k", "reliability (pass^k)", "variations without variance")
    columns = ("run", "step", "success", "95 %", "episodes", "invalid actions", "CPU minutes")
    differences = ("run", "compared with", "variations", "points", "95 %", "p")
    sections = (
        Section("Last evaluations", heads, tuple(_summary(variants))),
        Section("Differences on the test variations", differences, tuple(_difference_rows(variants))),
        Section("Curve on the test variations", columns, tuple(_curve_rows(variants))),
        Section("Tasks", ("task", *(variant.name for variant in variants)), tuple(_task_rows(variants))),
        Section("Repeated attempts", names, tuple(_repeat_rows(variants))),
        Section("Costs", ("run", "CPU minutes", "totals"), tuple(_cost_rows(variants))),
    )
    parts += [f"## {section.title}\n\n{section.markdown()}" for section in sections if section.rows]
    return "\n\n".join(parts) + "\n"


def _draw(variants: Sequence[Variant], target: Path) -> tuple[list[str], str]:
    """Draw the plots; return their names, and a remark if they are missing."""
    recipes = {run.recipe for variant in variants for run in variant.runs}
    unit = "training steps" if len(recipes) == 1 else "CPU minutes"  # the steps of recipes differ in their cost

    def placed(variant: Variant, curve: Sequence[tuple[int, Evaluation]]) -> Curve:
        return curve if len(recipes) == 1 else [(variant.cpu_minutes(step), result) for step, result in curve]

    curves = {
        variant.name: (placed(variant, variant.curve()), [placed(variant, run.evaluations()) for run in variant.runs])
        for variant in variants
    }
    references = {
        f"{name} ({variant.name})" if len(variants) > 1 else name: evaluation.success
        for variant in variants
        for name in variant.names()
        if name not in ("test", "train", "mirrored", "blind") and (evaluation := variant.last(name)) is not None
    }
    last = {variant.name: evaluation for variant in variants if (evaluation := variant.last()) is not None}
    try:
        draw_curves(curves, references, target / "curves.png", unit)
        draw_tasks(last, target / "tasks.png")
    except MissingExtraError as error:
        return [], f"There are no plots: {error}."
    return ["curves.png", "tasks.png"], ""


def _names(runs: Sequence[RunRecord]) -> list[str]:
    """Return short unique names: the recipe, and the fields in which runs of the same recipe differ."""
    names = []
    for run in runs:
        peers = [other for other in runs if other.recipe == run.recipe]
        differing = [
            name
            for name in run.config
            if name not in ("seed", "threads") and any(other.config.get(name) != run.config[name] for other in peers)
        ]
        shown = [f"{name}={_short(run.config[name])}" for name in differing[:3]]
        names.append(" ".join([run.recipe, *shown]))
    return [name if names.count(name) == 1 else f"{name} #{at}" for at, name in enumerate(names, start=1)]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return Path(text).name if "/" in text else text[:30]


def _plain_curve(curve: Iterable[tuple[int, Evaluation]]) -> list[dict[str, Any]]:
    return [{"step": step, **_figures(evaluation)} for step, evaluation in curve]


def _figures(evaluation: Evaluation) -> dict[str, Any]:
    low, high = evaluation.interval
    return {
        "successes": evaluation.successes,
        "episodes": evaluation.episodes,
        "not_graded": evaluation.not_graded,
        "success": round(evaluation.success, 6),
        "low": round(low, 6),
        "high": round(high, 6),
        "metrics": dict(evaluation.metrics),
        "tasks": [[task.env_id, task.task, task.successes, task.episodes] for task in evaluation.tasks],
        "repeats": [
            {"k": k, "pass_at_k": at_least_one, "reliability": every}
            for k, at_least_one, every in _repeats(evaluation.attempts)
        ],
        "without_variance": without_variance(evaluation.attempts),
    }


def _plain_difference(mean: ClusteredMean) -> dict[str, float | None]:
    low, high = mean.interval() or (None, None)
    figures = {"difference": mean.mean, "low": low, "high": high, "p": mean.p_value()}
    return {name: rounded(value) for name, value in figures.items()}


def _plain_run(run: RunRecord) -> dict[str, Any]:
    return {
        "folder": run.path.name,
        "recipe": run.recipe,
        "fhir_gym": run.version,
        "config": run.config,
        "cpu_seconds": _cpu_seconds(run),
        "evaluations": {name: _plain_curve(run.evaluations(name)) for name in run.evaluation_names()},
        "metrics": run.metrics(),
    }


def _summary(variants: Sequence[Variant]) -> Iterator[tuple[str, ...]]:
    for variant in variants:
        for name in (name for name in variant.names() if name != "train"):
            if len(variant.runs) > 1:
                for run in variant.runs:
                    if run.evaluations(name):
                        yield _row(f"{variant.name}, seed {run.config.get('seed')}", name, run.evaluations(name)[-1][1])
            evaluation = variant.last(name)
            if evaluation is not None:
                label = f"{variant.name}, {len(variant.runs)} seeds" if len(variant.runs) > 1 else variant.name
                yield _row(label, name, evaluation)


def _row(label: str, name: str, evaluation: Evaluation) -> tuple[str, ...]:
    return (
        label,
        name,
        _success(evaluation),
        points(*evaluation.interval),
        _episodes(evaluation),
        f"{evaluation.tasks_at(_SHARE)} of {len(evaluation.tasks)}",
        percent(evaluation.metrics.get("invalid_rate")),
        number(evaluation.metrics.get("steps"), 1),
    )


def _difference_rows(variants: Sequence[Variant]) -> Iterator[tuple[str, ...]]:
    for name, reference, mean in _differences(variants):
        low, high = mean.interval() or (None, None)
        shown = (f"{100 * mean.mean:+.1f}", points(low, high), p_value(mean.p_value()))
        yield (name, reference, str(mean.clusters), *shown)


def _differences(variants: Sequence[Variant]) -> Iterator[tuple[str, str, ClusteredMean]]:
    """Compare the last evaluation of each variant with its first, and with those of the variants before it."""
    for place, variant in enumerate(variants):
        curve, last = variant.curve(), variant.last()
        references = [(f"{variant.name}, step {step}", first) for step, first in curve[: len(curve) > 1]]
        references += [(other.name, result) for other in variants[:place] if (result := other.last()) is not None]
        for name, reference in references:
            if last is not None and (mean := last.difference(reference)) is not None:
                yield variant.name, name, mean


def _curve_rows(variants: Sequence[Variant]) -> Iterator[tuple[str, ...]]:
    for variant in variants:
        for step, evaluation in variant.curve():
            yield (
                variant.name,
                str(step),
                _success(evaluation),
                points(*evaluation.interval),
                _episodes(evaluation),
                percent(evaluation.metrics.get("invalid_rate")),
                f"{variant.cpu_minutes(step):.1f}",
            )


def _task_rows(variants: Sequence[Variant]) -> Iterator[tuple[str, ...]]:
    tables: list[Mapping[tuple[str, str], str]] = []
    for variant in variants:
        cells: dict[tuple[str, str], str] = {}
        for name in ("held_out", "test"):
            evaluation = variant.last(name)
            for success in evaluation.tasks if evaluation else ():
                mark = " (held out)" if name == "held_out" else ""
                cells[success.env_id, success.task] = f"{success.successes} of {success.episodes}{mark}"
        tables.append(cells)
    keys = sorted({key for table in tables for key in table})
    several = len({env_id for env_id, _ in keys}) > 1
    for env_id, task in keys:
        yield (f"{env_id} {task}" if several else task, *(table.get((env_id, task), "") for table in tables))


def _repeat_rows(variants: Sequence[Variant]) -> Iterator[tuple[str, ...]]:
    for variant in variants:
        for name in variant.names():
            for step, evaluation in variant.curve(name):
                constant = without_variance(evaluation.attempts)
                for k, at_least_one, every in _repeats(evaluation.attempts):
                    shares = (percent(at_least_one), percent(every), percent(constant))
                    yield (variant.name, f"{name}, step {step}", str(k), *shares)


def _repeats(attempts: Sequence[Attempts]) -> Iterator[tuple[int, float, float]]:
    """Yield k, pass@k and reliability if variations were repeated."""
    for k in repeat_counts(attempts):
        at_least_one, every = pass_at_k(attempts, k), reliability(attempts, k)
        if at_least_one is not None and every is not None:
            yield k, at_least_one, every


def _cost_rows(variants: Sequence[Variant]) -> Iterator[tuple[str, ...]]:
    for variant in variants:
        for run in variant.runs:
            totals = {name: sum(float(row.get(name, 0)) for row in run.metrics()) for name in ("tokens", "updates")}
            last = max((int(row["step"]) for row in run.rows), default=0)
            shown = [f"{last:,} steps", *(f"{value:,.0f} {name}" for name, value in totals.items() if value)]
            yield f"{variant.name}, seed {run.config.get('seed')}", f"{_cpu_seconds(run) / 60:.1f}", ", ".join(shown)


def _cpu_seconds(run: RunRecord) -> float:
    return max((float(row.get("cpu_seconds", 0.0)) for row in run.rows), default=0.0)


def _success(evaluation: Evaluation) -> str:
    return percent(evaluation.success if evaluation.episodes else None)


def _episodes(evaluation: Evaluation) -> str:
    lost = evaluation.not_graded
    return f"{evaluation.episodes} + {lost} not graded" if lost else str(evaluation.episodes)
