"""Evaluation: success rates and other metrics of rollouts, grouped and compared."""

from fhir_gym.evaluation.metrics import AggregateMetrics, EpisodeMetrics, wilson
from fhir_gym.evaluation.render import markdown, plain, sections
from fhir_gym.evaluation.repeats import Attempts, pass_at_k, reliability, repeat_counts, without_variance
from fhir_gym.evaluation.report import DIMENSIONS, AgentRun, Dimension, Report, dimensions, read_runs

__all__ = [
    "DIMENSIONS",
    "AgentRun",
    "AggregateMetrics",
    "Attempts",
    "Dimension",
    "EpisodeMetrics",
    "Report",
    "dimensions",
    "markdown",
    "pass_at_k",
    "plain",
    "read_runs",
    "reliability",
    "repeat_counts",
    "sections",
    "wilson",
    "without_variance",
]
