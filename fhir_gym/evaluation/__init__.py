"""Evaluation: success rates and other statistics of rollouts, grouped and compared."""

from fhir_gym.evaluation.failure_modes import FAILURE_MODES, FailureModes
from fhir_gym.evaluation.figures import write_figures
from fhir_gym.evaluation.formats import FORMATS, TextFormat, as_json, latex, long_csv, markdown, write_report
from fhir_gym.evaluation.intervals import (
    ClusteredMean,
    Interval,
    Proportion,
    clustered_mean,
    mcnemar,
    rate_interval,
    wilson,
)
from fhir_gym.evaluation.metrics import AggregateMetrics, Distribution, EpisodeMetrics, Rate, ToolCalls
from fhir_gym.evaluation.page import html, write_page
from fhir_gym.evaluation.plain import FORMAT_VERSION, LongRow, long_rows, plain
from fhir_gym.evaluation.report import DIMENSIONS, Dimension, PairedDifference, Report, dimensions, paired_difference
from fhir_gym.evaluation.runs import AgentRun, read_runs
from fhir_gym.evaluation.sections import headline, sections
from fhir_gym.evaluation.statistics import CallsByOutcome, Cost, ErrorRate, RunStatistics, TokenUse
from fhir_gym.evaluation.text_table import Section
from fhir_gym.evaluation.variance import (
    Attempts,
    VarianceDecomposition,
    VarianceParts,
    VariationCoefficients,
    coefficients,
    decompose,
    pass_at_k,
    reliability,
    repeat_counts,
    without_variance,
)

__all__ = [
    "DIMENSIONS",
    "FAILURE_MODES",
    "FORMATS",
    "FORMAT_VERSION",
    "AgentRun",
    "AggregateMetrics",
    "Attempts",
    "CallsByOutcome",
    "ClusteredMean",
    "Cost",
    "Dimension",
    "Distribution",
    "EpisodeMetrics",
    "ErrorRate",
    "FailureModes",
    "Interval",
    "LongRow",
    "PairedDifference",
    "Proportion",
    "Rate",
    "Report",
    "RunStatistics",
    "Section",
    "TextFormat",
    "TokenUse",
    "ToolCalls",
    "VarianceDecomposition",
    "VarianceParts",
    "VariationCoefficients",
    "as_json",
    "clustered_mean",
    "coefficients",
    "decompose",
    "dimensions",
    "headline",
    "html",
    "latex",
    "long_csv",
    "long_rows",
    "markdown",
    "mcnemar",
    "paired_difference",
    "pass_at_k",
    "plain",
    "rate_interval",
    "read_runs",
    "reliability",
    "repeat_counts",
    "sections",
    "wilson",
    "without_variance",
    "write_figures",
    "write_page",
    "write_report",
]
