from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from fhir_gym import Episode
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.outcomes import BY_NAME
from tests.tasks.packs.shift.playing import ENV, params_of
from tests.tasks.packs.shift.rule_variations import RULES, dependent_checks, results

_MOST_STEPS = 5_000
QUEUES = ("Q1", "Q2", "Q3", "Q4", "P1", "P2", "P3")
LEVELS = (1, 2)


def episodes(world: World, key: str, count: int) -> Iterator[Episode]:
    """Yield an episode for each of some variations, half of them for tests."""
    for number in range(count):
        variation = number // 2 + 1_000 * (number % 2)
        with Episode(ENV, task=key, variation=variation, world=world, max_steps=_MOST_STEPS) as episode:
            episode.start()
            yield episode


def deciding(world: World, key: str, count: int) -> Counter[str]:
    """Return the number of episodes in which each rule decides at least one request."""
    rules = RULES[key[:2]]
    found = Counter(dict.fromkeys(rules, 0))
    for episode in episodes(world, key, count):
        requests = params_of(episode).requests
        right = results(episode, requests)
        found.update(name for name, rule in rules.items() if results(episode, requests, rule) != right)
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", RULES)
def test_each_rule_with_a_number_decides_in_one_of_five_episodes(hospital: World, kind: str, level: int) -> None:
    count = 80  # with 40, the share of a rule at 21 % is often below 20 %
    found = deciding(hospital, f"{kind}-{level}", count)
    print(f"\n{kind}-{level}", ", ".join(f"{name} {number / count:.0%}" for name, number in found.items()))
    assert {name: number for name, number in found.items() if number < count / 5} == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", QUEUES)
def test_some_request_depends_on_an_earlier_one(hospital: World, kind: str, level: int) -> None:
    chained = [bool(dependent_checks(episode)) for episode in episodes(hospital, f"{kind}-{level}", 20)]
    print(f"\n{kind}-{level} {sum(chained)} of {len(chained)}")
    assert all(chained)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_name_alone_settles_at_most_one_request(hospital: World, count: int, kind: str, level: int) -> None:
    for episode in episodes(hospital, f"{kind}-{level}", count):
        assert sum(request.outcome in BY_NAME for request in params_of(episode).requests) <= 1
