from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fhir_gym.evaluation import Distribution, coefficients, decompose
from fhir_gym.evaluation.metrics import sample_variance

Given = Sequence[tuple[str, str, float]]
OBSERVATIONS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.sampled_from([0.0, 100.0])), min_size=1, max_size=40
)
BALANCED = [(task, prompt, value) for task in "ab" for prompt in "xy" for value in (0.0, 100.0, 100.0)]
"""The same outcomes with every prompt, so that only repeats vary."""


def by_prompt(observations: Given) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for task, prompt, value in observations:
        found[task][prompt].append(value)
    return found


@settings(max_examples=30)
@given(OBSERVATIONS)
def test_exact_parts_add_up_to_the_variance_of_all_observations(observations: Given) -> None:
    decomposition = decompose(observations)
    assert decomposition is not None
    assert decomposition.exact.total == pytest.approx(np.var([value for *_, value in observations]), abs=1e-9)
    assert min(decomposition.exact.same_prompt, decomposition.exact.within_task, decomposition.exact.between_tasks) >= 0
    if decomposition.exact.shares is not None:
        assert sum(decomposition.exact.shares) == pytest.approx(1.0, abs=1e-9)


@settings(max_examples=30)
@given(OBSERVATIONS)
def test_parts_agree_with_numpy(observations: Given) -> None:
    tasks = by_prompt(observations)
    values = [value for *_, value in observations]
    prompts = [own for task in tasks.values() for own in task.values()]
    task_means = {task: np.mean([v for own in tasks[task].values() for v in own]) for task in tasks}
    prompt_of = [(np.mean(tasks[task][prompt]), task_means[task]) for task, prompt, _ in observations]
    decomposition = decompose(observations)
    assert decomposition is not None
    assert decomposition.exact.same_prompt == pytest.approx(
        sum(len(own) * np.var(own) for own in prompts) / len(values)
    )
    assert decomposition.exact.within_task == pytest.approx(
        np.mean([(floating - task) ** 2 for floating, task in prompt_of])
    )
    assert decomposition.exact.between_tasks == pytest.approx(
        np.mean([(task - np.mean(values)) ** 2 for _, task in prompt_of])
    )


def test_parts_of_the_sample_are_means_of_sample_variances() -> None:
    chance = np.random.default_rng(5)
    given = [(task, prompt, 100.0 * chance.integers(2)) for task in "abcd" for prompt in "xyz" for _ in range(3)]
    tasks = by_prompt(given)
    means = {task: [np.mean(own) for own in prompts.values()] for task, prompts in tasks.items()}
    decomposition = decompose(given)
    assert decomposition is not None and decomposition.sample is not None
    assert decomposition.sample.same_prompt == pytest.approx(
        np.mean([np.var(own, ddof=1) for prompts in tasks.values() for own in prompts.values()]), abs=1e-9
    )
    assert decomposition.sample.within_task == pytest.approx(
        np.mean([np.var(own, ddof=1) for own in means.values()]), abs=1e-9
    )
    assert decomposition.sample.between_tasks == pytest.approx(
        np.var([np.mean(own) for own in means.values()], ddof=1), abs=1e-9
    )


def test_each_part_can_be_everything() -> None:
    repeats = decompose(BALANCED)
    prompts = decompose([(task, prompt, 100.0 * (prompt == "x")) for task, prompt, _ in BALANCED])
    tasks = decompose([(task, prompt, 100.0 * (task == "a")) for task, prompt, _ in BALANCED])
    assert repeats and prompts and tasks
    assert repeats.exact.shares == pytest.approx((1, 0, 0))
    assert prompts.exact.shares == pytest.approx((0, 1, 0))
    assert tasks.exact.shares == pytest.approx((0, 0, 1))
    assert tasks.exact.total == 2500


def test_levels_without_two_values_are_not_estimated() -> None:
    single = decompose([("a", "x", 100.0), ("b", "x", 0.0)])
    assert single and single.sample is None and single.exact.between_tasks == 2500
    constant = decompose([("a", "x", 100.0)] * 3)
    assert constant and constant.exact.shares is None
    assert decompose([]) is None


def test_coefficients_of_variation_agree_with_numpy() -> None:
    values = {("a", "x"): [10.0, 30.0], ("a", "y"): [20.0, 60.0], ("b", "x"): [5.0], ("b", "y"): [15.0]}
    variation = coefficients((*key, value) for key, own in values.items() for value in own)
    whole = [value for own in values.values() for value in own]

    def coefficient(own: list[float]) -> float:
        return float(np.std(own, ddof=1) / np.mean(own))

    assert variation.overall == pytest.approx(coefficient(whole), rel=1e-9)
    assert variation.same_prompt.values == pytest.approx(
        sorted([coefficient([10, 30]), coefficient([20, 60])]), rel=1e-9
    )
    assert variation.within_task.values == pytest.approx(
        sorted([coefficient([20, 40]), coefficient([5, 15])]), rel=1e-9
    )


def test_coefficients_need_two_values_and_a_mean() -> None:
    assert coefficients([]).overall is None
    assert coefficients([("a", "x", 3.0)]).overall is None
    assert coefficients([("a", "x", 0.0)] * 2).overall is None


@settings(max_examples=30)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_distributions_agree_with_numpy(values: list[float]) -> None:
    distribution = Distribution.of(values)
    expected = [np.min(values), *np.quantile(values, [0.25, 0.5, 0.75]), np.max(values), np.mean(values)]
    assert [
        distribution.min,
        distribution.q1,
        distribution.median,
        distribution.q3,
        distribution.max,
        distribution.mean,
    ] == pytest.approx(expected, abs=1e-6)
    if len(values) > 1:
        assert distribution.sd == pytest.approx(np.std(values, ddof=1), abs=1e-6)


def test_an_empty_distribution_has_no_summary() -> None:
    assert Distribution().plain() == {"n": 0} | dict.fromkeys(("mean", "sd", "min", "q1", "median", "q3", "max"))
    assert sample_variance([1.0]) is None
