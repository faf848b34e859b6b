"""The statistics of a run: everything that tables and figures show about its episodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from fhir_gym.evaluation.failure_modes import FailureModes
from fhir_gym.evaluation.metrics import Distribution, EpisodeMetrics, Rate, rounded
from fhir_gym.evaluation.variance import (
    Observation,
    VarianceDecomposition,
    VariationCoefficients,
    coefficients,
    decompose,
)
from fhir_gym.rollouts import Prices

NO_TYPE = "no resource type"
"""Name of calls that touch no resource type: calls of the server itself, and invalid calls."""
Groups = tuple[tuple[str, Distribution], ...]
"""A distribution for each value of a property, such as ``easy``."""

_MOST_CALLS = 5
"""Expected numbers of calls from this one on are one group."""


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """The share of calls that failed.

    Attributes:
        name: The tool or resource type.
        errors: Number of failed calls.
        calls: Number of calls.
    """

    name: str
    errors: int
    calls: int

    @property
    def value(self) -> float:
        """The share."""
        return self.errors / self.calls

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"name": self.name, "errors": self.errors, "calls": self.calls, "share": rounded(self.value)}


@dataclass(frozen=True, slots=True)
class CallsByOutcome:
    """The number of tool calls in an episode, by the episode's outcome.

    Attributes:
        success: Calls in successful episodes.
        failure: Calls in failed episodes.
        errors_success: Failed calls in successful episodes.
        errors_failure: Failed calls in failed episodes.
        expected: For each successful episode, the number of calls of the reference solution.
        expected_unknown: Number of successful episodes for which this number is not known.
    """

    success: Distribution
    failure: Distribution
    errors_success: Distribution
    errors_failure: Distribution
    expected: Distribution
    expected_unknown: int

    @classmethod
    def of(cls, graded: Iterable[EpisodeMetrics]) -> Self:
        """Return the numbers of graded episodes."""
        by_success: dict[bool, list[EpisodeMetrics]] = {True: [], False: []}
        for episode in graded:
            by_success[episode.success is True].append(episode)
        expected = [episode.reference for episode in by_success[True]]
        return cls(
            success=Distribution.of(episode.calls for episode in by_success[True]),
            failure=Distribution.of(episode.calls for episode in by_success[False]),
            errors_success=Distribution.of(episode.errors for episode in by_success[True]),
            errors_failure=Distribution.of(episode.errors for episode in by_success[False]),
            expected=Distribution.of(calls for calls in expected if calls is not None),
            expected_unknown=expected.count(None),
        )

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class TokenUse:
    """The number of input and output tokens of an episode, in total and by a property of the episode.

    Attributes:
        total: All episodes that recorded tokens.
        by_difficulty: By ``easy``, ``medium`` and ``hard``.
        by_success: By ``success`` and ``failure``.
        by_light: By ``light success`` and ``light failure``.
        by_expected: By the number of calls of the reference solution: ``1`` to ``4``, ``5+`` and ``unknown``.
    """

    total: Distribution
    by_difficulty: Groups
    by_success: Groups
    by_light: Groups
    by_expected: Groups

    @classmethod
    def of(cls, graded: Iterable[EpisodeMetrics]) -> Self:
        """Return the tokens of graded episodes; episodes without token counts are left out."""
        episode_tokens = [(episode, episode.tokens) for episode in graded]
        counted = [(episode, tokens) for episode, tokens in episode_tokens if tokens is not None]

        def by(order: Sequence[str], value: Callable[[EpisodeMetrics], str | None]) -> Groups:
            groups: dict[str, list[int]] = defaultdict(list)
            for episode, tokens in counted:
                name = value(episode)
                if name is not None:
                    groups[name].append(tokens)
            names = [*order, *sorted(groups.keys() - set(order))]
            return tuple((name, Distribution.of(groups[name])) for name in names if name in groups)

        return cls(
            total=Distribution.of(tokens for _, tokens in counted),
            by_difficulty=by(("easy", "medium", "hard"), lambda episode: episode.difficulty),
            by_success=by(("success", "failure"), lambda episode: "success" if episode.success else "failure"),
            by_light=by(
                ("light success", "light failure"),
                lambda episode: (
                    None if episode.light is None else "light success" if episode.light else "light failure"
                ),
            ),
            by_expected=by((), lambda episode: _expected_group(episode.reference)),
        )

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        groups = ("by_difficulty", "by_success", "by_light", "by_expected")
        return {"total": self.total.plain()} | {
            group: {name: values.plain() for name, values in getattr(self, group)} for group in groups
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run's tokens.

    Attributes:
        total: Cost of all episodes, including episodes without a verdict.
        per_episode: Total cost divided by the number of episodes that recorded tokens.
        per_success: Total cost divided by the number of successful episodes; None without success.
        not_counted: Number of episodes that recorded no tokens.
    """

    total: float
    per_episode: float
    per_success: float | None
    not_counted: int

    @classmethod
    def of(cls, episodes: Sequence[EpisodeMetrics], prices: Prices) -> Self | None:
        """Return the cost of episodes; None if no episode recorded tokens."""
        usages = [episode.usage for episode in episodes if episode.usage is not None]
        if not usages:
            return None
        total = sum(map(prices.cost, usages))
        successes = sum(episode.success is True for episode in episodes)
        return cls(total, total / len(usages), total / successes if successes else None, len(episodes) - len(usages))

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """The statistics of a run. Except for `episodes` and `cost`, they count graded episodes only.

    Attributes:
        experiment: Name of the run's experiment; empty without one.
        configuration: Name of the run's configuration.
        episodes: Number of episodes.
        graded: Number of graded episodes.
        success: Share of successful episodes.
        light: Share of episodes that pass light validation, among those that have it.
        variance: Variance of success in squared percentage points; None without graded episodes.
        token_variation: Coefficients of variation of the number of tokens.
        failure_modes: Failure modes of the failed episodes.
        tool_errors: Share of failed calls of each FHIR tool, by name.
        resource_errors: Share of failed calls for each resource type, by name, and of calls without one (`NO_TYPE`).
        lookups: Share of failed calls of each tool beside the FHIR tools, by source and tool.
        tool_calls: Number of calls of FHIR tools by outcome.
        tokens: Number of tokens.
        cost: Cost; None without prices or tokens.
    """

    name: str
    experiment: str
    configuration: str
    episodes: int
    graded: int
    success: Rate
    light: Rate
    variance: VarianceDecomposition | None
    token_variation: VariationCoefficients
    failure_modes: FailureModes
    tool_errors: tuple[ErrorRate, ...]
    resource_errors: tuple[ErrorRate, ...]
    lookups: tuple[ErrorRate, ...]
    tool_calls: CallsByOutcome
    tokens: TokenUse
    cost: Cost | None

    @classmethod
    def of(
        cls,
        episodes: Sequence[EpisodeMetrics],
        *,
        name: str = "",
        experiment: str = "",
        configuration: str = "",
        prices: Prices | None = None,
    ) -> Self:
        """Return the statistics of episodes.

        Args:
            episodes: The episodes.
            name: Name of the run.
            experiment: Name of the run's experiment.
            configuration: Name of the run's configuration.
            prices: Prices of tokens; None if they are not known.
        """
        graded = [episode for episode in episodes if episode.graded]
        tokens = [(episode, episode.tokens) for episode in graded]
        used: list[Observation] = [
            (episode.cluster, episode.prompt, float(n)) for episode, n in tokens if n is not None
        ]
        failed = [episode for episode in graded if not episode.success]
        return cls(
            name=name,
            experiment=experiment,
            configuration=configuration,
            episodes=len(episodes),
            graded=len(graded),
            success=Rate.of_episodes(graded, lambda episode: episode.success),
            light=Rate.of_episodes(graded, lambda episode: episode.light),
            variance=decompose(
                (episode.cluster, episode.prompt, 100.0 if episode.success else 0.0) for episode in graded
            ),
            token_variation=coefficients(used),
            failure_modes=FailureModes.of((episode.failure_modes, episode.tools_known) for episode in failed),
            tool_errors=_error_rates(
                (tool.tool, tool.errors, tool.calls) for episode in graded for tool in episode.tools
            ),
            resource_errors=_error_rates(
                (tool.resource_type or NO_TYPE, tool.errors, tool.calls) for episode in graded for tool in episode.tools
            ),
            lookups=_error_rates(
                (tool.tool, tool.errors, tool.calls) for episode in graded for tool in episode.lookups
            ),
            tool_calls=CallsByOutcome.of(graded),
            tokens=TokenUse.of(graded),
            cost=None if prices is None else Cost.of(episodes, prices),
        )

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON; names and numbers of episodes are left out, because the run contains them."""
        left_out = ("name", "experiment", "configuration", "episodes", "graded", "success", "light")
        return {name: value for name, value in _plain(self).items() if name not in left_out}


def _error_rates(calls: Iterable[tuple[str, int, int]]) -> tuple[ErrorRate, ...]:
    failed: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    for name, errors, count in calls:
        failed[name] += errors
        requests[name] += count
    return tuple(ErrorRate(name, failed[name], requests[name]) for name in sorted(requests) if requests[name])


def _expected_group(calls: int | None) -> str:
    if calls is None:
        return "unknown"
    return str(calls) if calls < _MOST_CALLS else f"{_MOST_CALLS}+"


def _plain(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain data."""
    return {field.name: _plain_value(getattr(value, field.name)) for field in fields(value)}


def _plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain_value(element) for element in value]
    if hasattr(value, "plain"):
        return value.plain()
    return rounded(value) if isinstance(value, float) else value
