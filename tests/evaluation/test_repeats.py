from __future__ import annotations

from itertools import combinations

import pytest

from fhir_gym.errors import FhirGymError
from fhir_gym.evaluation import Attempts, pass_at_k, reliability, repeat_counts, without_variance


def attempts(*counts: tuple[int, int]) -> list[Attempts]:
    return [Attempts("pack", "01", number, successes, episodes) for number, (successes, episodes) in enumerate(counts)]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_estimates_equal_an_enumeration_of_all_choices(k: int) -> None:
    results = [True, True, False, False, False]
    chosen = list(combinations(results, k))
    given = attempts((2, 5))
    assert pass_at_k(given, k) == pytest.approx(sum(any(result) for result in chosen) / len(chosen))
    assert reliability(given, k) == pytest.approx(sum(all(result) for result in chosen) / len(chosen))


def test_variations_with_fewer_attempts_are_left_out() -> None:
    given = attempts((1, 1), (1, 2), (2, 2))
    assert pass_at_k(given, 2) == 1.0 and reliability(given, 2) == 0.5
    assert pass_at_k(given, 3) is None and reliability([], 1) is None
    assert without_variance(given) == 0.5 and without_variance(attempts((1, 1))) is None


@pytest.mark.parametrize(
    ("most", "counts"), [(1, []), (2, [1, 2]), (3, [1, 2, 3]), (5, [1, 2, 3, 4, 5]), (9, [1, 2, 3, 4, 8, 9])]
)
def test_k_reaches_the_number_of_attempts(most: int, counts: list[int]) -> None:
    assert repeat_counts(attempts((0, 1), (1, most))) == counts


def test_k_must_be_positive() -> None:
    with pytest.raises(FhirGymError, match="k must be a whole number of at least 1"):
        pass_at_k([], 0)
