"""Seeded choices keep the values in this file."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.worlds.hospital.seeded_random import IdSequence, SeededRandom, decimal


def test_pinned() -> None:
    chance = SeededRandom(0, "pin")
    drawn = [chance.between(0, 999), chance.bell(100, 15), chance.one("abcdef"), chance.shuffled(range(6))]
    assert drawn == PINNED


PINNED = [743, 119, "c", [3, 2, 1, 4, 5, 0]]


def test_streams_are_independent() -> None:
    assert SeededRandom(0, "a").between(0, 10**9) != SeededRandom(0, "b").between(0, 10**9)
    assert SeededRandom(0, "a").between(0, 10**9) == SeededRandom(0, "a").between(0, 10**9)


def test_bell_is_normal_enough() -> None:
    chance = SeededRandom(1)
    drawn = [chance.bell(1000, 100) for _ in range(4000)]
    assert abs(statistics.mean(drawn) - 1000) < 8
    assert abs(statistics.stdev(drawn) - 100) < 5


def test_weights() -> None:
    chance = SeededRandom(2)
    drawn = [chance.weighted([("a", 3), ("b", 0), ("c", 1)]) for _ in range(2000)]
    assert "b" not in drawn
    assert 0.70 < drawn.count("a") / len(drawn) < 0.80
    with pytest.raises(ValueError, match="empty range"):
        chance.weighted([("a", 0)])


def test_ids_count_up_by_prefix_and_leave_gaps() -> None:
    ids, again = IdSequence(), IdSequence()
    drawn = [ids.new("A") for _ in range(1_000)]
    assert ids.new("B").startswith("B")
    assert drawn == [again.new("A") for _ in range(1_000)]
    numbers = [int(id.removeprefix("A")) for id in drawn]
    steps = [later - earlier for earlier, later in pairwise(numbers)]
    assert min(steps) >= 1 and max(steps) <= 15 and 7 < statistics.mean(steps) < 9


@given(st.integers(0, 10**6), st.integers(0, 3))
def test_decimals_print_as_written(scaled: int, digits: int) -> None:
    whole, rest = divmod(scaled, 10**digits)
    wanted = f"{whole}.{rest:0{digits}d}" if digits else str(whole)
    printed = str(decimal(scaled, digits))
    assert printed == (wanted.rstrip("0") if "." in wanted and not wanted.endswith(".0") else wanted) or float(
        wanted
    ) == float(printed)
