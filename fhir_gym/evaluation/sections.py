"""The tables of a report, which all text formats show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fhir_gym.evaluation.metrics import AggregateMetrics, Rate
from fhir_gym.evaluation.repeats import pass_at_k, reliability, repeat_counts, without_variance
from fhir_gym.evaluation.report import Report
from fhir_gym.evaluation.statistics_sections import statistics_sections
from fhir_gym.evaluation.text_table import Section, number, percent, points

_RATES = ("success", "95 %", "SD", "light", "light 95 %", "light SD")
_MEANS = ("reward", "steps", "requests", "of reference", "invalid", "tokens in", "tokens out")
_HEADS = ("episodes", *_RATES, *_MEANS)

_MAX_ROWS = 10
"""Maximum number of rows in a table of mistakes; the JSON output has all rows."""


def sections(report: Report) -> list[Section]:
    """Return the tables of a report in reading order."""
    runs = range(len(report.runs))
    totals = [(run.name, *_cells(report.total(place))) for place, run in enumerate(report.runs)]
    found = [Section.compact("Runs", ("run", *_HEADS), totals)]
    found += [_by(report, place) for place in range(len(report.by)) if report.by[place] != "agent"]
    found += [
        _compared(report),
        _repeats(report),
        *statistics_sections(report),
        _counts(report, "How episodes ended", "reason", [report.stops(run) for run in runs]),
        _counts(report, "Model replies", "reply", [report.replies(run) for run in runs]),
        _counts(report, "Invalid actions", "reason", [report.invalid(run) for run in runs]),
        _counts(report, "Errors by label", "error", [report.labels(run) for run in runs]),
        _failed(report),
        _counts(report, "Infrastructure errors", "error", [report.infra_errors(run) for run in runs]),
    ]
    return [section for section in found if section.rows]


def _by(report: Report, place: int) -> Section:
    dimension = report.by[place]
    several = len(report.runs) > 1
    rows = []
    for value, every in report.groups(dimension):
        for run, metrics in zip(report.runs, every, strict=True):
            if metrics is not None:
                rows.append((value, run.name if several else "", *_cells(metrics)))
    return Section.compact(f"By {dimension}", (dimension, "run", *_HEADS), rows)


def _cells(metrics: AggregateMetrics) -> tuple[str, ...]:
    lost = metrics.episodes - metrics.graded
    return (
        f"{metrics.graded} + {lost} not graded" if lost else str(metrics.graded),
        *_rate(metrics.success),
        *_rate(metrics.light),
        number(metrics.reward, 2),
        number(metrics.steps, 1),
        number(metrics.requests, 1),
        number(metrics.of_reference, 2),
        number(metrics.invalid, 1),
        number(metrics.prompt_tokens, 0),
        number(metrics.completion_tokens, 0),
    )


def _rate(rate: Rate) -> tuple[str, str, str]:
    """Return the share, its interval, and its standard deviation over repeats in percentage points."""
    if not rate.of:
        return "", "", ""
    return percent(rate.value), points(rate.low, rate.high), "" if rate.sd is None else f"{100 * rate.sd:.1f}"


def _compared(report: Report) -> Section:
    """Return a table of the success rates of two runs by group."""
    names = [run.name for run in report.runs]
    rows = []
    if len(names) == 2:
        dimensions = [dimension for dimension in report.by if dimension != "agent"]
        groups: list[tuple[str, list[AggregateMetrics | None]]] = [("all", [report.total(0), report.total(1)])]
        groups += [group for dimension in dimensions for group in report.groups(dimension)]
        for value, (one, other) in groups:
            if one is None or other is None or one.success.value is None or other.success.value is None:
                continue
            gained = 100 * (other.success.value - one.success.value)
            rows.append((value, percent(one.success.value), percent(other.success.value), f"{gained:+.1f}"))
    return Section("Success of both runs", ("group", *names, "points"), tuple(rows))


def _repeats(report: Report) -> Section:
    """Return a table of pass@k and reliability for runs that repeated variations."""
    rows = []
    for place, run in enumerate(report.runs):
        attempts = report.attempts(place)
        for k in repeat_counts(attempts):
            shares = (pass_at_k(attempts, k), reliability(attempts, k), without_variance(attempts))
            rows.append((run.name, str(k), *(percent(share) for share in shares)))
    columns = ("run", "k", "pass@k", "reliability (pass^k)", "variations without variance")
    return Section("Repeated attempts", columns, tuple(rows))


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
