"""The tables of a report that show statistics: differences, variance, failure modes, tool calls, tokens and cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fhir_gym.evaluation.distributions import Distribution
from fhir_gym.evaluation.failure_modes import FAILURE_MODES
from fhir_gym.evaluation.report import Report
from fhir_gym.evaluation.statistics import ErrorRate, RunStatistics
from fhir_gym.evaluation.text_table import Section, number, p_value, percent, points
from fhir_gym.evaluation.variance import VarianceParts

_MAX_RESOURCE_TYPES = 10
"""Maximum number of resource types in a table; the JSON and CSV outputs have all."""
_MAX_RUN_COLUMNS = 6
"""Maximum number of runs that have a column each."""
_SUMMARY = ("episodes", "mean", "median", "quartiles", "least", "most")


def statistics_sections(report: Report) -> list[Section]:
    """Return the tables in reading order; some may have no rows."""
    statistics = report.statistics
    return [
        _differences(report),
        _variance(statistics),
        _failure_modes(statistics),
        _error_rates("Failed calls by tool", "tool", [one.tool_errors for one in statistics], statistics),
        _error_rates(
            "Failed calls by resource type",
            "resource type",
            [one.resource_errors for one in statistics],
            statistics,
            _MAX_RESOURCE_TYPES,
        ),
        _error_rates("Failed calls of other tools", "tool", [one.lookups for one in statistics], statistics),
        _tool_calls(statistics),
        _tokens(statistics),
        _token_variation(statistics),
        _cost(statistics),
    ]


def _differences(report: Report) -> Section:
    rows = []
    for one in report.differences:
        if one.difference is None:
            continue
        names = (report.runs[one.second].name, report.runs[one.first].name)
        counts = (one.both, one.only_second, one.only_first, one.neither)
        rows.append(
            (
                *names,
                str(one.common),
                f"{100 * one.difference:+.1f}",
                points(one.low, one.high),
                p_value(one.p_clustered),
                p_value(one.p_mcnemar),
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
    for one in statistics:
        if one.variance is not None and one.variance.exact.total > 0:
            rows.append((one.name, "all episodes", *_parts(one.variance.exact)))
            if one.variance.sample is not None:
                rows.append((one.name, "sample variances", *_parts(one.variance.sample)))
    columns = ("run", "variance of", "same prompt", "within task", "between tasks", "total")
    return Section("Variance of success (squared percentage points)", columns, tuple(rows))


def _parts(parts: VarianceParts) -> tuple[str, ...]:
    values = (parts.same_prompt, parts.within_task, parts.between_tasks)
    shares = parts.shares or (0.0, 0.0, 0.0)
    return *(f"{value:.0f} ({share:.1%})" for value, share in zip(values, shares, strict=True)), f"{parts.total:.0f}"


def _failure_modes(statistics: Sequence[RunStatistics]) -> Section:
    every = [one.failure_modes for one in statistics]
    if not any(one.failed for one in every):
        return Section("Failure modes of failed episodes", (), ())
    rows = [("failed episodes", *(str(one.failed) for one in every))]
    for mode in FAILURE_MODES:
        rows.append(
            (
                mode,
                *(f"{one.counts[mode]} ({one.counts[mode] / one.failed:.1%})" if one.failed else "" for one in every),
            )
        )
    if any(one.unknown for one in every):
        rows.append(("tool selection and order unknown", *(str(one.unknown) for one in every)))
    return _by_run("Failure modes of failed episodes", "failure mode", "episodes", rows, statistics)


def _error_rates(
    title: str,
    head: str,
    every: Sequence[Sequence[ErrorRate]],
    statistics: Sequence[RunStatistics],
    most: int | None = None,
) -> Section:
    found = [{rate.name: rate for rate in rates} for rates in every]
    calls: Counter[str] = Counter()
    for rates in found:
        calls.update({name: rate.calls for name, rate in rates.items()})
    names = sorted(calls, key=lambda name: (-calls[name], name))[:most]
    rows = [(name, *(_error_rate(rates.get(name)) for rates in found)) for name in names]
    return _by_run(title, head, "failed", rows, statistics)


def _error_rate(rate: ErrorRate | None) -> str:
    return "" if rate is None else f"{rate.value:.1%} of {rate.calls}"


def _tool_calls(statistics: Sequence[RunStatistics]) -> Section:
    rows: list[tuple[str, ...]] = []
    for one in statistics:
        calls = one.tool_calls
        groups = {
            "in successful episodes": calls.success,
            "in failed episodes": calls.failure,
            "failed, in successful episodes": calls.errors_success,
            "failed, in failed episodes": calls.errors_failure,
            "of the reference solution, for the successes": calls.expected,
        }
        if calls.success.max or calls.failure.max:
            rows += [(one.name, name, *_summary(values, 1)) for name, values in groups.items() if values.n]
    return Section("Tool calls in an episode", ("run", "calls", *_SUMMARY), tuple(rows))


def _tokens(statistics: Sequence[RunStatistics]) -> Section:
    rows: list[tuple[str, ...]] = []
    for one in statistics:
        tokens = one.tokens
        groups = [("all", tokens.total), *tokens.by_difficulty, *tokens.by_success, *tokens.by_light]
        groups += [(f"expected calls: {name}", values) for name, values in tokens.by_expected]
        rows += [(one.name, name, *_summary(values, 0)) for name, values in groups if values.n]
    return Section("Tokens in an episode", ("run", "group", *_SUMMARY), tuple(rows))


def _token_variation(statistics: Sequence[RunStatistics]) -> Section:
    rows = []
    for one in statistics:
        found = one.token_variation
        shares = (found.same_prompt.median, found.within_task.median, found.overall)
        if any(share is not None for share in shares):
            rows.append((one.name, *map(percent, shares)))
    columns = ("run", "same prompt (median)", "within task (median)", "overall")
    return Section.compact("Coefficient of variation of tokens", columns, rows)


def _cost(statistics: Sequence[RunStatistics]) -> Section:
    rows = [
        (
            one.name,
            number(one.cost.total, 4),
            number(one.cost.per_episode, 6),
            number(one.cost.per_success, 6),
            str(one.cost.not_counted or ""),
        )
        for one in statistics
        if one.cost is not None
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
    names = [one.name for one in statistics]
    if len(names) <= _MAX_RUN_COLUMNS:
        return Section(title, (head, *([value] if len(names) == 1 else names)), tuple(rows))
    cells = zip(*(row[1:] for row in rows), strict=True)
    columns = ("run", *(row[0] for row in rows))
    return Section(title, columns, tuple((name, *own) for name, own in zip(names, cells, strict=False)))
