from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fhir_gym.evaluation import clustered_mean, mcnemar, rate_interval, wilson
from fhir_gym.evaluation.intervals import t_quantile, t_two_sided

Clusters = list[list[bool]]


def clusters(seed: int, count: int) -> Clusters:
    """Outcomes of tasks that differ in their difficulty and in their number of episodes."""
    chance = random.Random(seed)
    return [
        [chance.random() < share for _ in range(chance.randint(1, 9))]
        for share in [chance.random() for _ in range(count)]
    ]


def fitted(given: Sequence[Sequence[float]]) -> tuple[float, float, float, float, float]:
    """Mean, standard error, interval and p-value of statsmodels' cluster-robust fit of a constant."""
    from statsmodels.regression.linear_model import OLS

    values = [float(value) for own in given for value in own]
    groups = [number for number, own in enumerate(given) for _ in own]
    fit = OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
    low, high = fit.conf_int()[0]
    return float(fit.params[0]), float(fit.bse[0]), float(low), float(high), float(fit.pvalues[0])


@pytest.mark.parametrize("seed", range(6))
def test_clustered_intervals_agree_with_statsmodels(seed: int) -> None:
    given = clusters(seed, 3 + 5 * seed)
    mean, error, low, high, p = fitted([[float(value) for value in own] for own in given])
    found = clustered_mean([float(value) for value in own] for own in given)
    assert found is not None
    assert (found.mean, found.error) == pytest.approx((mean, error), rel=1e-9)
    assert found.interval() == pytest.approx((low, high), rel=1e-9)
    assert found.p_value() == pytest.approx(p, abs=1e-9)
    interval = rate_interval(given)
    assert (interval.low, interval.high) == pytest.approx((max(0, low), min(1, high)), abs=1e-9)
    assert interval.method == "clustered"


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 42, 399, 9999])
def test_students_t_agrees_with_scipy(freedom: int) -> None:
    from scipy import stats

    assert t_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
    for t in (0.0, 1e-5, 0.1, 0.5, 1.0, 2.0, 10.0, 40.0):
        assert t_two_sided(-t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), abs=1e-9)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 1), (5, 5), (3, 12), (40, 21), (700, 601)])
def test_mcnemar_agrees_with_statsmodels_and_scipy(first: int, second: int) -> None:
    from scipy.stats import binomtest
    from statsmodels.stats.contingency_tables import mcnemar as other

    table = [[7, first], [second, 4]]
    assert mcnemar(first, second) == mcnemar(second, first)
    if first + second:
        assert mcnemar(first, second) == pytest.approx(other(table, exact=True).pvalue, abs=1e-9)
        assert mcnemar(first, second) == pytest.approx(binomtest(first, first + second).pvalue, abs=1e-9)
    else:
        assert mcnemar(0, 0) == 1.0


def test_mcnemar_counts_many_pairs_exactly() -> None:
    assert 0.0 < mcnemar(4_900, 5_100) < 0.05
    assert mcnemar(0, 2_000) == 0.0


def test_one_cluster_has_wilsons_interval() -> None:
    interval = rate_interval([[True, False, True]])
    assert (interval.low, interval.high, interval.method) == (*wilson(2, 3), "wilson")
    assert rate_interval([]) == rate_interval([[]]) and rate_interval([]).high == 1.0


def test_equal_clusters_count_as_one_trial_each() -> None:
    everywhere = rate_interval([[True] * 10] * 4)
    assert (everywhere.low, everywhere.high, everywhere.method) == (*wilson(4, 4), "wilson")
    same = rate_interval([[True, False, False]] * 3)
    assert same.method == "wilson" and same.low < 1 / 3 < same.high
    mean = clustered_mean([[1.0, 0.0, 0.0]] * 3)
    assert mean is not None
    assert (mean.error, mean.interval(), mean.p_value()) == (None, None, None)
    assert clustered_mean([]) is None


OUTCOMES = st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=8)


@settings(max_examples=30)
@given(OUTCOMES)
def test_intervals_contain_the_rate_whatever_the_order(given: Clusters) -> None:
    values = [value for own in given for value in own]
    interval = rate_interval(given)
    assert 0 <= interval.low <= sum(values) / len(values) <= interval.high <= 1
    assert rate_interval([own[::-1] for own in given[::-1]]) == interval


@settings(max_examples=30)
@given(OUTCOMES)
def test_a_cluster_of_its_own_for_each_outcome_is_the_ordinary_standard_error(given: Clusters) -> None:
    values = [float(value) for own in given for value in own]
    mean = clustered_mean([value] for value in values)
    assert mean is not None
    if mean.error is not None:
        assert mean.error == pytest.approx(np.std(values, ddof=1) / len(values) ** 0.5, rel=1e-9)
