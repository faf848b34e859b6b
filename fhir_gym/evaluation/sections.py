"""The tables of a report, which all text formats show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fhir_gym.evaluation.failure_modes import FAILURE_MODES
from fhir_gym.evaluation.metrics import AggregateMetrics, Distribution, Rate
from fhir_gym.evaluation.report import Dimension, Report
from fhir_gym.evaluation.statistics import ErrorRate, RunStatistics
from fhir_gym.evaluation.text_table import Section, number, p_value, percent, points
from fhir_gym.evaluation.variance import VarianceParts, pass_at_k, reliability, repeat_counts, without_variance

_MAX_RESOURCE_TYPES = 10
"""Maximum number of resource types in a table; the JSON and CSV outputs have all."""
_MAX_RUN_COLUMNS = 6
"""Maximum number of runs that have a column each."""
_SUMMARY = ("episodes", "mean", "median", "quartiles", "least", "most")


def statistics_sections(report: Report) -> list[Section]:
    """Return the tables of statistics in reading order; some may have no rows."""
    statistics = report.statistics
    return [
        _variance(statistics),
        _failure_modes(statistics),
        _error_rates("Failed calls by tool", "tool", [statistic.tool_errors for statistic in statistics], statistics),
        _error_rates(
            "Failed calls by resource type",
            "resource type",
            [statistic.resource_errors for statistic in statistics],
            statistics,
            _MAX_RESOURCE_TYPES,
        ),
        _error_rates(
            "Failed calls of other tools", "tool", [statistic.lookups for statistic in statistics], statistics
        ),
        _tool_calls(statistics),
        _tokens(statistics),
        _token_variation(statistics),
        _cost(statistics),
    ]


def _differences(report: Report) -> Section:
    rows = []
    for difference in report.differences:
        if difference.difference is None:
            continue
        names = (report.runs[difference.second].name, report.runs[difference.first].name)
        counts = (difference.both, difference.only_second, difference.only_first, difference.neither)
        rows.append(
            (
                *names,
                str(difference.common),
                f"{100 * difference.difference:+.1f}",
                points(difference.low, difference.high),
                p_value(difference.p_clustered),
                p_value(difference.p_mcnemar),
                *map(str, counts),
            )
        )
    columns = (
        *("run", "compared with", "episodes", "points", "95 %", "p", "p (McNemar)"),
        *("both succeed", "only the run", "only the other", "neither"),
    )
    return Section.compact("Paired differences", columns, rows)


def _variance(statistics: Sequence[RunStatistics]) -> Section:
    rows: list[tuple[str, ...]] = []
    for statistic in statistics:
        if statistic.variance is not None and statistic.variance.exact.total > 0:
            rows.append((statistic.name, "all episodes", *_parts(statistic.variance.exact)))
            if statistic.variance.sample is not None:
                rows.append((statistic.name, "sample variances", *_parts(statistic.variance.sample)))
    columns = ("run", "variance of", "same prompt", "within task", "between tasks", "total")
    return Section("Variance of success (squared percentage points)", columns, tuple(rows))


def _parts(parts: VarianceParts) -> tuple[str, ...]:
    values = (parts.same_prompt, parts.within_task, parts.between_tasks)
    shares = parts.shares or (0.0, 0.0, 0.0)
    return *(f"{value:.0f} ({share:.1%})" for value, share in zip(values, shares, strict=True)), f"{parts.total:.0f}"


def _failure_modes(statistics: Sequence[RunStatistics]) -> Section:
    every = [statistic.failure_modes for statistic in statistics]
    if not any(failure_modes.failed for failure_modes in every):
        return Section("Failure modes of failed episodes", (), ())
    rows = [("failed episodes", *(str(failure_modes.failed) for failure_modes in every))]
    for mode in FAILURE_MODES:
        rows.append(
            (
                mode,
                *(
                    f"{failure_modes.counts[mode]} ({failure_modes.counts[mode] / failure_modes.failed:.1%})"
                    if failure_modes.failed
                    else ""
                    for failure_modes in every
                ),
            )
        )
    if any(failure_modes.unknown for failure_modes in every):
        rows.append(("tool selection and order unknown", *(str(failure_modes.unknown) for failure_modes in every)))
    return _by_run("Failure modes of failed episodes", "failure mode", "episodes", rows, statistics)


def _error_rates(
    title: str,
    head: str,
    every: Sequence[Sequence[ErrorRate]],
    statistics: Sequence[RunStatistics],
    most: int | None = None,
) -> Section:
    rates_by_name = [{rate.name: rate for rate in rates} for rates in every]
    calls: Counter[str] = Counter()
    for rates in rates_by_name:
        calls.update({name: rate.calls for name, rate in rates.items()})
    names = sorted(calls, key=lambda name: (-calls[name], name))[:most]
    rows = [(name, *(_error_rate(rates.get(name)) for rates in rates_by_name)) for name in names]
    return _by_run(title, head, "failed", rows, statistics)


def _error_rate(rate: ErrorRate | None) -> str:
    return "" if rate is None else f"{rate.value:.1%} of {rate.calls}"


def _tool_calls(statistics: Sequence[RunStatistics]) -> Section:
    rows: list[tuple[str, ...]] = []
    for statistic in statistics:
        calls = statistic.tool_calls
        groups = {
            "in successful episodes": calls.success,
            "in failed episodes": calls.failure,
            "failed, in successful episodes": calls.errors_success,
            "failed, in failed episodes": calls.errors_failure,
            "of the reference solution, for the successes": calls.expected,
        }
        if calls.success.max or calls.failure.max:
            rows += [(statistic.name, name, *_summary(values, 1)) for name, values in groups.items() if values.n]
    return Section("Tool calls in an episode", ("run", "calls", *_SUMMARY), tuple(rows))


def _tokens(statistics: Sequence[RunStatistics]) -> Section:
    rows: list[tuple[str, ...]] = []
    for statistic in statistics:
        tokens = statistic.tokens
        groups = [("all", tokens.total), *tokens.by_difficulty, *tokens.by_success, *tokens.by_light]
        groups += [(f"expected calls: {name}", values) for name, values in tokens.by_expected]
        rows += [(statistic.name, name, *_summary(values, 0)) for name, values in groups if values.n]
    return Section("Tokens in an episode", ("run", "group", *_SUMMARY), tuple(rows))


def _token_variation(statistics: Sequence[RunStatistics]) -> Section:
    rows = []
    for statistic in statistics:
        coefficients = statistic.token_variation
        shares = (coefficients.same_prompt.median, coefficients.within_task.median, coefficients.overall)
        if any(share is not None for share in shares):
            rows.append((statistic.name, *map(percent, shares)))
    columns = ("run", "same prompt (median)", "within task (median)", "overall")
    return Section.compact("Coefficient of variation of tokens", columns, rows)


def _cost(statistics: Sequence[RunStatistics]) -> Section:
    rows = [
        (
            statistic.name,
            number(statistic.cost.total, 4),
            number(statistic.cost.per_episode, 6),
            number(statistic.cost.per_success, 6),
            str(statistic.cost.not_counted or ""),
        )
        for statistic in statistics
        if statistic.cost is not None
    ]
    return Section.compact("Cost", ("run", "total", "an episode", "a success", "episodes not counted"), rows)


def _summary(values: Distribution, digits: int) -> tuple[str, ...]:
    quartiles = f"{number(values.q1, digits)} to {number(values.q3, digits)}" if values.n else ""
    ends = (number(values.min, 0), number(values.max, 0))
    return str(values.n), number(values.mean, digits), number(values.median, digits), quartiles, *ends


def _by_run(
    title: str, head: str, value: str, rows: Sequence[tuple[str, ...]], statistics: Sequence[RunStatistics]
) -> Section:
    """Return a table with a column for each run, or with a row for each run if there are many.

    Args:
        title: Title of the table.
        head: What the rows are.
        value: What the cells are; it is the head of the only column if there is one run.
        rows: For each row its name and a cell for each run.
        statistics: The runs.
    """
    names = [statistic.name for statistic in statistics]
    if len(names) <= _MAX_RUN_COLUMNS:
        return Section(title, (head, *([value] if len(names) == 1 else names)), tuple(rows))
    cells = zip(*(row[1:] for row in rows), strict=True)
    columns = ("run", *(row[0] for row in rows))
    return Section(title, columns, tuple((name, *own) for name, own in zip(names, cells, strict=False)))


_RATES = ("success", "95 %", "SD", "light", "light 95 %", "light SD")
_MEANS = ("reward", "steps", "requests", "of reference", "invalid", "tokens in", "tokens out")
_HEADS = ("episodes", *_RATES, *_MEANS)
_BRIEF_HEADS = frozenset(("episodes", "success", "95 %", "SD", "steps", "invalid"))

_MAX_ROWS = 10
"""Maximum number of rows in a table of mistakes; the JSON output has all rows."""


def headline(report: Report, by: Sequence[Dimension], *, brief: bool = False) -> list[Section]:
    """Return the first tables of a report: totals, differences of runs, what failed, and groups.

    Args:
        report: The report.
        by: Dimensions of the groups. A dimension of which all episodes have the same value has no table.
        brief: Whether the groups have only the columns that fit on a terminal.
    """
    runs = range(len(report.runs))
    totals = [(run.name, *_cells(report.total(place))) for place, run in enumerate(report.runs)]
    shown = [
        Section.compact("Runs", ("run", *_HEADS), totals),
        _differences(report),
        _repeats(report),
        _counts(report, "Errors by label", "error", [report.labels(run) for run in runs]),
        _failed(report),
        _counts(report, "Infrastructure errors", "error", [report.infra_errors(run) for run in runs]),
        *(_by(report, name, brief=brief) for name in by if name != "agent" and len(report.groups(name)) > 1),
    ]
    return [section for section in shown if section.rows]


def sections(report: Report) -> list[Section]:
    """Return the tables of a report in reading order."""
    runs = range(len(report.runs))
    shown = [
        *headline(report, report.by),
        _compared(report),
        *statistics_sections(report),
        _counts(report, "How episodes ended", "reason", [report.stops(run) for run in runs]),
        _counts(report, "Model replies", "reply", [report.replies(run) for run in runs]),
        _counts(report, "Invalid actions", "reason", [report.invalid(run) for run in runs]),
    ]
    return [section for section in shown if section.rows]


def _by(report: Report, dimension: Dimension, *, brief: bool) -> Section:
    several = len(report.runs) > 1
    heads = [head for head in _HEADS if not brief or head in _BRIEF_HEADS]
    rows = []
    for value, every in report.groups(dimension):
        for run, metrics in zip(report.runs, every, strict=True):
            if metrics is not None:
                cells = dict(zip(_HEADS, _cells(metrics), strict=True))
                if brief and metrics.graded < 2:
                    cells["95 %"] = ""  # the interval of a single episode says nothing
                rows.append((value, run.name if several else "", *(cells[head] for head in heads)))
    return Section.compact(f"By {dimension}", (dimension, "run", *heads), rows)


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
        dimensions = [name for name in report.by if name != "agent" and len(report.groups(name)) > 1]
        groups: list[tuple[str, list[AggregateMetrics | None]]] = [("all", [report.total(0), report.total(1)])]
        groups += [group for dimension in dimensions for group in report.groups(dimension)]
        for value, (group, other) in groups:
            if group is None or other is None or group.success.value is None or other.success.value is None:
                continue
            gained = 100 * (other.success.value - group.success.value)
            rows.append((value, percent(group.success.value), percent(other.success.value), f"{gained:+.1f}"))
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
    counts_of_runs = [dict(counts) for counts in every]
    names = sorted(
        {name for counts in counts_of_runs for name in counts},
        key=lambda n: (-sum(c.get(n, 0) for c in counts_of_runs), n),
    )
    rows = [(name, *(str(counts.get(name, 0)) for counts in counts_of_runs)) for name in names[:_MAX_ROWS]]
    heads = ["count"] if len(counts_of_runs) == 1 else [run.name for run in report.runs]
    return Section(title, (head, *heads), tuple(rows))


def _failed(report: Report) -> Section:
    every = [{name: (failed, of) for name, failed, of in report.failed_checks(n)} for n in range(len(report.runs))]
    totals = Counter[str]()
    for failures in every:
        totals.update({name: failed for name, (failed, _) in failures.items() if failed})
    names = sorted(totals, key=lambda name: (-totals[name], name))[:_MAX_ROWS]
    rows = [(name, *(_of(failures.get(name)) for failures in every)) for name in names]
    heads = ["failed"] if len(every) == 1 else [run.name for run in report.runs]
    return Section("Most failed checks", ("check", *heads), tuple(rows))


def _of(counts: tuple[int, int] | None) -> str:
    return "" if counts is None else f"{counts[0]} of {counts[1]}"
