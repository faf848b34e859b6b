"""Build the figures of FHIR-AgentEval's study from the statistics of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fhir_gym.evaluation.failure_modes import FAILURE_MODES
from fhir_gym.evaluation.figures.charts import Bar, Bars, Cell, Chart, Figure, HeatMap, Stacks, Violins
from fhir_gym.evaluation.metrics import Distribution, Rate
from fhir_gym.evaluation.report import Report
from fhir_gym.evaluation.runs import AgentRun
from fhir_gym.evaluation.statistics import ErrorRate, RunStatistics, TokenUse
from fhir_gym.evaluation.variance import VarianceParts

_MAX_ROWS = 25
_KEY = "Each run has the same letter, colour and pattern in all figures."
_VIOLIN = (
    "The width of a shape shows how frequent a value is. A shape reaches from the smallest to the largest value, the "
    "thick bar from the lower to the upper quartile, and the white line marks the median. Fewer than five values are "
    "drawn as points."
)
_NOTHING = Distribution()


def study_figures(report: Report, pooled: Report | None = None) -> tuple[Figure, ...]:
    """Return the figures of a report in reading order; a figure without data is `empty`.

    Args:
        report: The report, with the runs of each experiment.
        pooled: Its runs pooled over experiments, if they are known already.
    """
    pooled = pooled or report.pooled()
    names, runs = run_names(pooled), pooled.statistics
    merged = (
        _variance(runs, names),
        _error_rates(runs, names),
        _failure_modes(runs, names),
        _tool_calls(runs, names),
        _tokens(runs, names),
        _tokens_by_task(runs, names),
        _token_variation(runs, names),
    )
    remark = _merging(report, pooled)
    return (_success(report, pooled, names), *(replace(figure, caption=figure.caption + remark) for figure in merged))


def _merging(report: Report, pooled: Report) -> str:
    """Return the sentences about merged experiments that end a caption; empty if no runs are merged."""
    if len(pooled.runs) == len(report.runs):
        return ""
    experiments = len({run.experiment for run in report.runs})
    warnings = "".join(f" Caution: {remark}." for remark in pooled.remarks() if remark not in report.notes)
    return f" The runs of each configuration are merged over {experiments} experiments.{warnings}"


def run_names(pooled: Report) -> tuple[str, ...]:
    """Return the names of runs in figures: their configurations if these are unique, else the runs' full names."""
    configurations = tuple(run.configuration for run in pooled.runs)
    unique = len(set(configurations)) == len(configurations) and all(configurations)
    return configurations if unique else tuple(run.name for run in pooled.runs)


def _success(report: Report, pooled: Report, names: tuple[str, ...]) -> Figure:
    charts = (
        _rates("Success", "success (%)", report, pooled, names, lambda run: run.success),
        _rates("Light success", "light success (%)", report, pooled, names, lambda run: run.light),
    )
    explanations = (
        "Success: share of graded episodes that pass every check.",
        "Light success: share of graded episodes that pass light validation, which some tasks define and which "
        "requires only that the requested records exist.",
    )
    ending = (
        "A line on a bar is the 95 % interval; it takes into account that episodes of one task resemble each other. "
        f"{_KEY}"
    )
    return _explained("success", "Success by run and experiment", charts, explanations, ending)


def _explained(name: str, title: str, charts: Sequence[Chart], explanations: Sequence[str], ending: str = "") -> Figure:
    """Return a figure of the charts that have data; its caption explains only these."""
    kept = [(chart, text) for chart, text in zip(charts, explanations, strict=True) if not chart.empty]
    caption = " ".join([*(text for _, text in kept), *([ending] if ending else [])])
    return Figure(name, title, caption, tuple(chart for chart, _ in kept))


def _rates(
    title: str, axis: str, report: Report, pooled: Report, names: tuple[str, ...], rate: Callable[[RunStatistics], Rate]
) -> Bars:
    """Return one group of bars for each experiment."""
    experiments = tuple(dict.fromkeys(run.experiment for run in report.runs))
    places = {(run.experiment, _identity(run)): place for place, run in enumerate(report.runs)}
    if len(experiments) == 1 or len(places) < len(report.runs):
        bars = [(_bar(rate(run)),) for run in pooled.statistics]
        return Bars(title, axis, ("",), names, tuple(bars), "", "episodes", 100)
    groups = tuple(experiment or "no experiment" for experiment in experiments)
    rows = []
    for run in pooled.runs:
        run_places = [places.get((experiment, _identity(run))) for experiment in experiments]
        rows.append(tuple(None if place is None else _bar(rate(report.statistics[place])) for place in run_places))
    return Bars(title, axis, groups, names, tuple(rows), "experiment", "episodes", 100)


def _identity(run: AgentRun) -> tuple[str, str]:
    """Return the properties that pooled runs share."""
    return run.configuration, str(run.settings.get("model"))


def _bar(rate: Rate) -> Bar | None:
    if rate.value is None:
        return None
    sd = None if rate.sd is None else 100 * rate.sd
    return Bar(100 * rate.value, 100 * rate.low, 100 * rate.high, sd, f"{rate.count} of {rate.of}")


def _variance(runs: Sequence[RunStatistics], names: tuple[str, ...]) -> Figure:
    parts = [None if run.variance is None else run.variance.exact for run in runs]
    levels = ("same prompt", "within task", "between tasks")
    shares = tuple(_shares(part) for part in parts)
    sizes = tuple(None if part is None else (part.same_prompt, part.within_task, part.between_tasks) for part in parts)
    charts = (
        Stacks("Shares", "share of variance (%)", names, levels, shares, 100),
        Stacks("Sizes", "variance (squared percentage points)", names, levels, sizes, None, 0),
    )
    explanations = ("Shares: the share of each part.", "Sizes: each part in squared percentage points.")
    ending = (
        "Same prompt: repeats of the same prompt differ. Within task: the average results of different prompts of one "
        "task differ. Between tasks: the average results of different tasks differ. The parts add up to the variance "
        "over all episodes."
    )
    return _explained("variance", "Variance of success", charts, explanations, ending)


def _shares(parts: VarianceParts | None) -> tuple[float, ...] | None:
    if parts is None or parts.shares is None:
        return None
    return tuple(100 * share for share in parts.shares)


def _error_rates(runs: Sequence[RunStatistics], names: tuple[str, ...]) -> Figure:
    caption = (
        "Share of tool calls that return an error, by tool and by resource type. Each cell gives the error rate and "
        "the number of calls n; darker cells have higher rates. Successful episodes are included, "
        "because an agent may correct an error later. Calls without a resource type are calls of the server itself and "
        "invalid calls. Hatched cells have no calls."
    )
    charts = (
        _heat_map("By tool", "tool", [run.tool_errors for run in runs], names),
        _heat_map("By resource type", "resource type", [run.resource_errors for run in runs], names),
        _heat_map("Other tools, such as specification and memory", "tool", [run.lookups for run in runs], names),
    )
    return Figure("error_rates", "Error rates of tool calls", caption, tuple(c for c in charts if not c.empty))


def _heat_map(title: str, head: str, every: Sequence[Sequence[ErrorRate]], names: tuple[str, ...]) -> HeatMap:
    rates_by_name = [{rate.name: rate for rate in rates if rate.calls} for rates in every]
    calls: dict[str, int] = {}
    for rates in rates_by_name:
        for name, rate in rates.items():
            calls[name] = calls.get(name, 0) + rate.calls
    rows = tuple(sorted(calls, key=lambda name: (-calls[name], name)))
    if len(rows) > _MAX_ROWS:
        title = f"{title} ({_MAX_ROWS} of {len(rows)}, with the most calls)"
        rows = rows[:_MAX_ROWS]
    cells = tuple(
        tuple(Cell(rates[row].errors, rates[row].calls) if row in rates else None for rates in rates_by_name)
        for row in rows
    )
    return HeatMap(title, "error rate (%)", head, rows, names, cells)


def _failure_modes(runs: Sequence[RunStatistics], names: tuple[str, ...]) -> Figure:
    caption = (
        "Number of failed episodes that show each failure mode; one episode may show several. Incorrect tool "
        "selection: the agent never made all calls that the task requires. Incorrect tool order: it made them in an "
        "order that cannot solve the task. Incorrect resource type: its calls never touched a type that the task "
        "requires. Prohibited tool used: it called a tool that the task forbids. Tool errors: at least one call "
        "returned an error. Other: none of these."
    )
    bars = []
    for run in runs:
        modes = run.failure_modes
        notes = [f"{modes.counts.get(mode, 0)} of {modes.failed} failed" for mode in FAILURE_MODES]
        counts = [modes.counts.get(mode, 0) for mode in FAILURE_MODES]
        bars.append(tuple(Bar(count, note=note) for count, note in zip(counts, notes, strict=True)))
    unknown = sum(run.failure_modes.unknown for run in runs)
    if unknown:
        caption += f" For {unknown} failed episodes, the required tools are unknown; selection and order do not count."
    chart = Bars("", "failed episodes", FAILURE_MODES, names, tuple(bars), "failure mode", "episodes", None, 0)
    failed = any(run.failure_modes.failed for run in runs)
    return Figure("failure_modes", "Failure modes", caption, (chart,) if failed else ())


def _tool_calls(runs: Sequence[RunStatistics], names: tuple[str, ...]) -> Figure:
    caption = (
        "Calls to the FHIR server in each episode: all calls of successful and of failed episodes, the calls that "
        "returned an error, and, for comparison, the smallest number of calls that solves the task (of the successful "
        f"episodes). {_VIOLIN}"
    )
    groups = ("successes", "failures", "errors in successes", "errors in failures", "expected minimum")
    samples = tuple(
        (calls.success, calls.failure, calls.errors_success, calls.errors_failure, calls.expected)
        for calls in (run.tool_calls for run in runs)
    )
    return _violins(
        "tool_calls", "Tool calls by outcome", caption, [Violins("", "calls", groups, names, samples, "calls of", 1)]
    )


def _tokens(runs: Sequence[RunStatistics], names: tuple[str, ...]) -> Figure:
    caption = f"Tokens of each episode, read and written together. {_VIOLIN}"
    samples = tuple((run.tokens.total,) for run in runs)
    return _violins("tokens", "Tokens per episode", caption, [Violins("", "tokens", ("",), names, samples, "")])


def _tokens_by_task(runs: Sequence[RunStatistics], names: tuple[str, ...]) -> Figure:
    caption = (
        "Tokens of each episode by the difficulty of its task, by its outcome and by the smallest number of calls that "
        f"solves its task. {_VIOLIN}"
    )
    charts = [
        _grouped("By difficulty", "difficulty", runs, names, lambda tokens: tokens.by_difficulty),
        _grouped("By outcome", "outcome", runs, names, lambda tokens: (*tokens.by_success, *tokens.by_light)),
        _grouped("By smallest number of calls", "calls", runs, names, lambda tokens: tokens.by_expected),
    ]
    return _violins("tokens_by_task", "Tokens by difficulty, outcome and expected calls", caption, charts)


def _grouped(
    title: str,
    head: str,
    runs: Sequence[RunStatistics],
    names: tuple[str, ...],
    of: Callable[[TokenUse], Sequence[tuple[str, Distribution]]],
) -> Violins:
    token_groups = [dict(of(run.tokens)) for run in runs]
    labels = dict.fromkeys(label for run in runs for label, sample in of(run.tokens) if sample.n)
    order = tuple(dict.fromkeys(label for run in runs for label, _ in of(run.tokens)))
    groups = tuple(label for label in order if label in labels)
    samples = tuple(tuple(distributions.get(group, _NOTHING) for group in groups) for distributions in token_groups)
    return Violins(title, "tokens", groups, names, samples, head)


def _token_variation(runs: Sequence[RunStatistics], names: tuple[str, ...]) -> Figure:
    caption = (
        "Coefficient of variation of the tokens per episode: the standard deviation divided by the mean; lower means "
        "more predictable. Same prompt: over the repeats of each prompt. Within task: over the prompts of each task. "
        f"Overall: over all episodes, one value for each run. {_VIOLIN}"
    )
    samples = []
    for run in runs:
        variation = run.token_variation
        overall = Distribution(() if variation.overall is None else (variation.overall,))
        samples.append((variation.same_prompt, variation.within_task, overall))
    groups = ("same prompt", "within task", "overall")
    chart = Violins("", "coefficient of variation", groups, names, tuple(samples), "level", 3)
    return _violins("token_variation", "Variation of tokens", caption, [chart])


def _violins(name: str, title: str, caption: str, charts: Sequence[Violins]) -> Figure:
    return Figure(name, title, caption, tuple(chart for chart in charts if not chart.empty))
