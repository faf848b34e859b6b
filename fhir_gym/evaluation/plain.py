"""A report as plain data for JSON, and as a table in long form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fhir_gym.evaluation.metrics import rounded
from fhir_gym.evaluation.report import Report
from fhir_gym.evaluation.variance import Attempts, pass_at_k, reliability, repeat_counts, without_variance

FORMAT_VERSION = 1
"""Version of the plain data. It changes when a value is renamed or removed, not when one is added."""


class LongRow(NamedTuple):
    """One number of a report.

    Attributes:
        run: Name of the run.
        experiment: Name of the run's experiment.
        configuration: Name of the run's configuration.
        dimension: What the number is limited to: ``task``, ``failure mode``, ``tool`` …; empty for the whole run.
        group: The value of the dimension.
        measure: Name of the number, as in the plain data.
        value: The number.
    """

    run: str
    experiment: str
    configuration: str
    dimension: str
    group: str
    measure: str
    value: float | int | str


def plain(report: Report) -> dict[str, Any]:
    """Return the report as plain data for JSON.

    Numbers have six digits after the point, p-values six significant digits; proportions are between 0 and 1.
    """
    return {
        "format": FORMAT_VERSION,
        "runs": [
            {
                "name": run.name,
                "source": run.source,
                "experiment": run.experiment,
                "configuration": run.configuration,
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
                "repeats": _repeats(report.attempts(place)),
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
            {
                "first": report.runs[difference.first].name,
                "second": report.runs[difference.second].name,
                **difference.plain(),
            }
            for difference in report.differences
        ],
        "remarks": report.remarks(),
    }


def long_rows(report: Report) -> Iterator[LongRow]:
    """Yield every number of the plain data as a row of its own; numbers that are not known have no row."""
    data = plain(report)
    for place, run in enumerate(data["runs"]):
        who = (run["name"], run["experiment"], run["configuration"])
        for dimension, group, values in _parts(data, place):
            for measure, value in _numbers(values):
                yield LongRow(*who, dimension, group, measure, value)


def _parts(data: Mapping[str, Any], place: int) -> Iterator[tuple[str, str, Any]]:
    """Yield dimension, group and values of one run."""
    run = data["runs"][place]
    statistics = run["statistics"]
    yield "", "", run["figures"]
    for dimension, groups in data["by"].items():
        for group in groups:
            yield dimension, group["value"], group["figures"][place] or {}
    for difference in data["differences"]:
        if difference["second"] == run["name"]:
            yield (
                "compared with",
                difference["first"],
                {name: difference[name] for name in difference if name not in ("first", "second")},
            )
    for k in run["repeats"]["k"]:
        yield "k", str(k["k"]), {name: k[name] for name in k if name != "k"}
    yield "", "", {"without_variance": run["repeats"]["without_variance"]}
    yield "", "", {name: statistics[name] for name in ("variance", "token_variation", "tool_calls", "cost")}
    yield "", "", {"tokens": statistics["tokens"]["total"]}
    for dimension, groups in statistics["tokens"].items():
        if dimension != "total":
            for group, values in groups.items():
                yield dimension.removeprefix("by_"), group, {"tokens": values}
    modes = statistics["failure_modes"]
    yield "", "", {"failed": modes["failed"], "failure_modes_unknown": modes["unknown"]}
    yield from (("failure mode", mode, {"episodes": count}) for mode, count in modes["counts"].items())
    for dimension, name in (("tool", "tool_errors"), ("resource type", "resource_errors"), ("other tool", "lookups")):
        for rate in statistics[name]:
            yield dimension, rate["name"], {measure: rate[measure] for measure in ("errors", "calls", "share")}
    yield from (
        ("check", check["name"], {name: check[name] for name in ("failed", "of")}) for check in run["failed_checks"]
    )
    for name in ("stop_reasons", "replies", "invalid", "labels", "infra_errors"):
        yield from ((name.rstrip("s").replace("_", " "), value, {"count": count}) for value, count in run[name].items())


def _numbers(values: Any, name: str = "") -> Iterator[tuple[str, float | int | str]]:
    """Yield the numbers in nested plain data, named by their path (``success.share``)."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _numbers(value, f"{name}.{key}" if name else key)
    elif isinstance(values, Sequence) and not isinstance(values, str):
        for number, value in enumerate(values, 1):
            yield from _numbers(value, f"{name}.{number}")
    elif values is not None:
        yield name, values


def _repeats(attempts: Sequence[Attempts]) -> dict[str, Any]:
    """Return pass@k, reliability and the share of variations without variance as plain data."""
    return {
        "k": [
            {"k": k, "pass_at_k": rounded(pass_at_k(attempts, k)), "reliability": rounded(reliability(attempts, k))}
            for k in repeat_counts(attempts)
        ],
        "without_variance": rounded(without_variance(attempts)),
    }
