"""Render a report as tables, Markdown or plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fhir_gym.evaluation.metrics import AggregateMetrics, Rate
from fhir_gym.evaluation.repeats import Attempts, pass_at_k, reliability, repeat_counts, without_variance
from fhir_gym.evaluation.report import Report

_HEADS = ("episodes", "success", "95 %", "light", "reward", "steps", "requests", "invalid", "tokens in", "tokens out")

_MAX_ROWS = 10
"""Maximum number of rows in a table of mistakes; the JSON output has all rows."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table with its title."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sections(report: Report) -> list[Section]:
    """Return the tables of a report in reading order."""
    runs = range(len(report.runs))
    totals = [(run.name, *_cells(report.total(place))) for place, run in enumerate(report.runs)]
    found = [_section("Runs", ("run", *_HEADS), totals)]
    found += [_by(report, place) for place in range(len(report.by)) if report.by[place] != "agent"]
    found += _compared(report)
    found += [
        _repeats(report),
        _counts(report, "How episodes ended", "reason", [report.stops(run) for run in runs]),
        _counts(report, "Model replies", "reply", [report.replies(run) for run in runs]),
        _counts(report, "Invalid actions", "reason", [report.invalid(run) for run in runs]),
        _counts(report, "Errors by label", "error", [report.labels(run) for run in runs]),
        _failed(report),
        _counts(report, "Infrastructure errors", "error", [report.infra_errors(run) for run in runs]),
    ]
    return [section for section in found if section.rows]


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    parts = ["# Rollout report"]
    if report.remarks():
        parts.append("\n".join(f"- {_escape(remark)}" for remark in report.remarks()))
    for section in sections(report):
        lines = [section.columns, tuple("---" for _ in section.columns), *section.rows]
        table = "\n".join("| " + " | ".join(_escape(cell) for cell in line) + " |" for line in lines)
        parts.append(f"## {section.title}\n\n{table}")
    return "\n\n".join(parts) + "\n"


def plain(report: Report) -> dict[str, Any]:
    """Return the report as plain data for JSON. Numbers have six digits; proportions are between 0 and 1."""
    return {
        "runs": [
            {
                "name": run.name,
                "source": run.source,
                "agent": run.agent,
                "settings": run.settings,
                "figures": report.total(place).plain(),
                "stop_reasons": dict(report.stops(place)),
                "replies": dict(report.replies(place)),
                "invalid": dict(report.invalid(place)),
                "labels": dict(report.labels(place)),
                "failed_checks": [
                    {"name": name, "failed": failed, "of": of} for name, failed, of in report.failed_checks(place)
                ],
                "infra_errors": dict(report.infra_errors(place)),
                "repeats": _plain_repeats(report.attempts(place)),
                "statistics": report.statistics[place].plain(),
            }
            for place, run in enumerate(report.runs)
        ],
        "by": {
            dimension: [
                {"value": value, "figures": [metrics and metrics.plain() for metrics in every]}
                for value, every in report.groups(dimension)
            ]
            for dimension in report.by
        },
        "differences": [
            {"first": report.runs[one.first].name, "second": report.runs[one.second].name, **one.plain()}
            for one in report.differences
        ],
        "remarks": report.remarks(),
    }


def _section(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Section:
    """Return a section with these rows; columns without any value are dropped."""
    kept = [at for at in range(len(columns)) if at == 0 or any(row[at] for row in rows)]
    return Section(title, tuple(columns[at] for at in kept), tuple(tuple(row[at] for at in kept) for row in rows))


def _by(report: Report, place: int) -> Section:
    dimension = report.by[place]
    several = len(report.runs) > 1
    rows = []
    for value, every in report.groups(dimension):
        for run, metrics in zip(report.runs, every, strict=True):
            if metrics is not None:
                rows.append((value, run.name if several else "", *_cells(metrics)))
    return _section(f"By {dimension}", (dimension, "run", *_HEADS), rows)


def _cells(metrics: AggregateMetrics) -> tuple[str, ...]:
    lost = metrics.episodes - metrics.graded
    return (
        f"{metrics.graded} + {lost} not graded" if lost else str(metrics.graded),
        _percent(metrics.success.value),
        _interval(metrics.success),
        _percent(metrics.light.value),
        _number(metrics.reward, 2),
        _number(metrics.steps, 1),
        _number(metrics.requests, 1),
        _number(metrics.invalid, 1),
        _number(metrics.prompt_tokens, 0),
        _number(metrics.completion_tokens, 0),
    )


def _compared(report: Report) -> list[Section]:
    """Return the tables that compare two runs by group and by episode."""
    if len(report.runs) != 2:
        return []
    (compared,) = report.differences
    names = [run.name for run in report.runs]
    rows = []
    dimensions = [dimension for dimension in report.by if dimension != "agent"]
    groups: list[tuple[str, list[AggregateMetrics | None]]] = [("all", [report.total(0), report.total(1)])]
    groups += [group for dimension in dimensions for group in report.groups(dimension)]
    for value, (one, other) in groups:
        if one is None or other is None or one.success.value is None or other.success.value is None:
            continue
        points = 100 * (other.success.value - one.success.value)
        rows.append((value, _percent(one.success.value), _percent(other.success.value), f"{points:+.1f}"))
    found = [_section("Success of both runs", ("", *names, "points"), rows)]
    if compared.common:
        counts = (compared.common, compared.both, compared.only_first, compared.only_second, compared.neither)
        heads = ("episodes in both", "both succeed", f"only {names[0]}", f"only {names[1]}", "neither")
        found.append(Section("Episode by episode", heads, (tuple(map(str, counts)),)))
    return found


def _repeats(report: Report) -> Section:
    """Return a table of pass@k and reliability for runs that repeated variations."""
    rows = []
    for place, run in enumerate(report.runs):
        attempts = report.attempts(place)
        for k in repeat_counts(attempts):
            shares = (pass_at_k(attempts, k), reliability(attempts, k), without_variance(attempts))
            rows.append((run.name, str(k), *(_percent(share) for share in shares)))
    columns = ("run", "k", "pass@k", "reliability (pass^k)", "variations without variance")
    return Section("Repeated attempts", columns, tuple(rows))


def _plain_repeats(attempts: Sequence[Attempts]) -> dict[str, Any]:
    """Return pass@k, reliability and the share of variations without variance as plain data."""
    return {
        "k": [
            {"k": k, "pass_at_k": pass_at_k(attempts, k), "reliability": reliability(attempts, k)}
            for k in repeat_counts(attempts)
        ],
        "without_variance": without_variance(attempts),
    }


def _counts(report: Report, title: str, head: str, every: Sequence[Sequence[tuple[str, int]]]) -> Section:
    """Return a table of the most frequent values, with one column for each run."""
    found = [dict(counts) for counts in every]
    names = sorted({name for counts in found for name in counts}, key=lambda n: (-sum(c.get(n, 0) for c in found), n))
    rows = [(name, *(str(counts.get(name, 0)) for counts in found)) for name in names[:_MAX_ROWS]]
    heads = ["count"] if len(found) == 1 else [run.name for run in report.runs]
    return Section(title, (head, *heads), tuple(rows))


def _failed(report: Report) -> Section:
    every = [{name: (failed, of) for name, failed, of in report.failed_checks(n)} for n in range(len(report.runs))]
    totals = Counter[str]()
    for found in every:
        totals.update({name: failed for name, (failed, _) in found.items() if failed})
    names = sorted(totals, key=lambda name: (-totals[name], name))[:_MAX_ROWS]
    rows = [(name, *(_of(found.get(name)) for found in every)) for name in names]
    heads = ["failed"] if len(every) == 1 else [run.name for run in report.runs]
    return Section("Most failed checks", ("check", *heads), tuple(rows))


def _of(counts: tuple[int, int] | None) -> str:
    return "" if counts is None else f"{counts[0]} of {counts[1]}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _interval(rate: Rate) -> str:
    return f"{100 * rate.low:.1f} to {100 * rate.high:.1f}" if rate.of else ""


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _escape(text: str) -> str:
    """Escape bars, line ends and markup in the text of a table cell."""
    escaped = "".join(f"\\{letter}" if letter in "\\|`*_<>[]" else letter for letter in text)
    return escaped.replace("\r", " ").replace("\n", " ")
