"""The random number generator of variations."""

from __future__ import annotations

import random

import pytest

from fhir_gym.tasks.core.fast_random import FastRandom


def test_samples_are_those_of_the_standard_library() -> None:
    for size in [*range(40), 63, 64, 65, 80, 84, 85, 86, 200, 277, 278, 1000, 5000]:
        for k in {*range(min(size, 25) + 1), size // 4, size // 3, size // 2, size}:
            fast, standard = FastRandom(size), random.Random(size)
            assert fast.sample(range(size), k) == standard.sample(range(size), k), (size, k)
            assert fast.random() == standard.random()


def test_a_sample_has_values_of_the_population() -> None:
    assert sorted(FastRandom(1).sample("abc", 3)) == ["a", "b", "c"]
    assert len(FastRandom(1).sample(["a", "b"], 3, counts=[2, 2])) == 3
    with pytest.raises(ValueError, match="larger than population"):
        FastRandom(1).sample("abc", 4)
