"""How much outcomes vary: estimates from repeated episodes, and the variance by prompt and task."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, fsum
from typing import Any, TypeAlias

from fhir_gym.arguments import require_whole
from fhir_gym.evaluation.metrics import Distribution, rounded, sample_variance

Observation: TypeAlias = tuple[Hashable, Hashable, float]
"""A task, a prompt of the task, and a value that was observed with the prompt."""
_Prompts: TypeAlias = Mapping[Hashable, Sequence[float]]


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """Three parts of a variance, in the square of the values' unit.

    Attributes:
        same_prompt: Variance between repeats of the same prompt.
        within_task: Variance between the prompts of a task.
    """

    same_prompt: float
    within_task: float
    between_tasks: float

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return math.fsum((self.same_prompt, self.within_task, self.between_tasks))

    @property
    def shares(self) -> tuple[float, float, float] | None:
        """The share of each part in the total, from 0 to 1; None if the total is 0."""
        total = self.total
        if total == 0:
            return None
        return self.same_prompt / total, self.within_task / total, self.between_tasks / total

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        parts = {
            "same_prompt": self.same_prompt,
            "within_task": self.within_task,
            "between_tasks": self.between_tasks,
            "total": self.total,
        }
        shares = None if self.shares is None else [rounded(share) for share in self.shares]
        return {name: rounded(value) for name, value in parts.items()} | {"shares": shares}


@dataclass(frozen=True, slots=True)
class VarianceDecomposition:
    """The variance of outcomes, decomposed in two ways.

    Attributes:
        exact: Decomposition of the variance over all observations (divisor n): the mean squared deviations of the
            observations from the mean of their prompt, of prompts' means from the mean of their task, and of tasks'
            means from the overall mean, each counted once for each observation. Their sum equals the variance.
        sample: Means of sample variances (divisor n - 1): of the observations of a prompt, of the means of the prompts
            of a task, and of the means of the tasks. Each prompt of a level has the same weight. As a mean of few
            observations varies too, the sum exceeds the variance. None unless there are repeats, several prompts of a
            task, and several tasks.
    """

    exact: VarianceParts
    sample: VarianceParts | None

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"exact": self.exact.plain(), "sample": self.sample and self.sample.plain()}


@dataclass(frozen=True, slots=True)
class VariationCoefficients:
    """Coefficients of variation (sample standard deviation divided by the mean) at three levels.

    Attributes:
        same_prompt: For each prompt with several observations, the coefficient of its observations.
        within_task: For each task with several prompts, the coefficient of the means of its prompts.
        overall: The coefficient of all observations; None with fewer than two, or with the mean 0.
    """

    same_prompt: Distribution
    within_task: Distribution
    overall: float | None

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "same_prompt": self.same_prompt.plain(),
            "within_task": self.within_task.plain(),
            "overall": rounded(self.overall),
        }


def decompose(observations: Iterable[Observation]) -> VarianceDecomposition | None:
    """Return the parts of the variance of observations; None without observations."""
    tasks = _grouped(observations)
    values = [value for prompts in tasks for own in prompts.values() for value in own]
    if not values:
        return None
    overall = _mean(values)
    same_prompt, within_task, between_tasks = [], [], []
    for prompts in tasks:
        task_mean = _mean([value for own in prompts.values() for value in own])
        for own in prompts.values():
            prompt_mean = _mean(own)
            same_prompt += [(value - prompt_mean) ** 2 for value in own]
            within_task.append(len(own) * (prompt_mean - task_mean) ** 2)
            between_tasks.append(len(own) * (task_mean - overall) ** 2)
    exact = VarianceParts(*(math.fsum(part) / len(values) for part in (same_prompt, within_task, between_tasks)))
    return VarianceDecomposition(exact, _sample_parts(tasks))


def coefficients(observations: Iterable[Observation]) -> VariationCoefficients:
    """Return the coefficients of variation of observations at three levels."""
    tasks = _grouped(observations)
    every = [own for prompts in tasks for own in prompts.values()]
    return VariationCoefficients(
        same_prompt=_coefficients(every),
        within_task=_coefficients([_mean(own) for own in prompts.values()] for prompts in tasks),
        overall=_coefficient([value for own in every for value in own]),
    )


def _grouped(observations: Iterable[Observation]) -> list[_Prompts]:
    tasks: dict[Hashable, dict[Hashable, list[float]]] = defaultdict(lambda: defaultdict(list))
    for task, prompt, value in observations:
        tasks[task][prompt].append(value)
    return list(tasks.values())


def _sample_parts(tasks: Sequence[_Prompts]) -> VarianceParts | None:
    same_prompt = _mean_variance(own for prompts in tasks for own in prompts.values())
    within_task = _mean_variance([_mean(own) for own in prompts.values()] for prompts in tasks)
    between_tasks = sample_variance(_mean([_mean(own) for own in prompts.values()]) for prompts in tasks)
    if same_prompt is None or within_task is None or between_tasks is None:
        return None
    return VarianceParts(same_prompt, within_task, between_tasks)


def _mean_variance(groups: Iterable[Sequence[float]]) -> float | None:
    variances = [variance for variance in map(sample_variance, groups) if variance is not None]
    return _mean(variances) if variances else None


def _coefficients(groups: Iterable[Sequence[float]]) -> Distribution:
    of_groups = map(_coefficient, groups)
    return Distribution.of(value for value in of_groups if value is not None)


def _coefficient(values: Sequence[float]) -> float | None:
    variance = sample_variance(values)
    mean = _mean(values) if values else 0.0
    return None if variance is None or mean == 0 else math.sqrt(variance) / mean


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


@dataclass(frozen=True, slots=True)
class Attempts:
    """The graded attempts at one variation of a task.

    Attributes:
        env_id: The pack.
        task: Key of the task.
        variation: Number of the variation.
        successes: Number of successful attempts.
        episodes: Number of attempts.
    """

    env_id: str
    task: str
    variation: int
    successes: int
    episodes: int


def pass_at_k(attempts: Iterable[Attempts], k: int) -> float | None:
    """Return pass@k: the probability that at least one of k attempts at a variation succeeds.

    For each variation with at least k attempts, pass@k is estimated without bias from all its attempts. The result is
    the mean of these estimates, or None if no variation has k attempts.

    Examples:
        >>> pass_at_k([Attempts("pack", "01", 0, successes=1, episodes=2)], 1)
        0.5
    """
    return _mean_estimate(
        attempts, k, lambda attempt: 1 - comb(attempt.episodes - attempt.successes, k) / comb(attempt.episodes, k)
    )


def reliability(attempts: Iterable[Attempts], k: int) -> float | None:
    """Return pass^k: the probability that all k attempts at a variation succeed. It is estimated as in `pass_at_k`.

    Examples:
        >>> reliability([Attempts("pack", "01", 0, successes=3, episodes=4)], 2)
        0.5
    """
    return _mean_estimate(attempts, k, lambda attempt: comb(attempt.successes, k) / comb(attempt.episodes, k))


def repeat_counts(attempts: Iterable[Attempts]) -> list[int]:
    """Return the values of k to report: 1 to 4, powers of two, and the most attempts at a variation.

    Without repeats there are none.
    """
    most = max((task_attempts.episodes for task_attempts in attempts), default=0)
    counts = {3, most, *(1 << n for n in range(most.bit_length()))}
    return sorted(k for k in counts if k <= most) if most > 1 else []


def without_variance(attempts: Iterable[Attempts]) -> float | None:
    """Return the share of variations with the same result in all attempts, among the variations with several attempts.

    A group-relative method such as GRPO learns nothing from such a variation. The result is None if no variation has
    several attempts.
    """
    repeated = [task_attempts for task_attempts in attempts if task_attempts.episodes > 1]
    constant = sum(task_attempts.successes in (0, task_attempts.episodes) for task_attempts in repeated)
    return constant / len(repeated) if repeated else None


def _mean_estimate(attempts: Iterable[Attempts], k: int, estimate: Callable[[Attempts], float]) -> float | None:
    require_whole("k", k, 1)
    values = [estimate(task_attempts) for task_attempts in attempts if task_attempts.episodes >= k]
    return fsum(values) / len(values) if values else None
