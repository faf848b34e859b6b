"""Choose a sample of policies for long tasks, so that a check of a task ends in reasonable time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from fhir_gym.soundness.policy_groups import Group
from fhir_gym.soundness.policy_runner import Policy

MOST_ACTIONS = 1_000
"""Maximum number of actions that the sampled policies of one group send in one variation."""
_FEWEST = 8
"""Minimum number of policies of a group that are played in one variation."""
T = TypeVar("T")


def sampled(policies: Iterable[Policy], steps: int, seed: str) -> Iterator[Policy]:
    """Yield the policies of each group, or a random sample of them if they would send too many actions together.

    A sample contains policies of as many kinds as possible: for example, wrong values of all elements. Samples differ
    between seeds, so that many variations together try everything.

    Args:
        policies: Policies of any groups.
        steps: Number of actions of a policy.
        seed: The sample depends on this text and on the names of the policies.
    """
    most = max(_FEWEST, MOST_ACTIONS // max(1, steps))
    groups: dict[Group, list[Policy]] = {}
    for policy in policies:
        groups.setdefault(policy.group, []).append(policy)
    for group, found in groups.items():
        rng = random.Random(f"{seed} {group}")
        for policy in _sample(found, [one.name for one in found], most, rng):
            answers = _sample(policy.answers, [name for name, _ in policy.answers], most, rng)
            yield replace(policy, answers=tuple(answers))


def _sample(items: Sequence[T], names: Sequence[str], most: int, rng: random.Random) -> list[T]:
    """Choose at most so many items, in their order: in turn one of each kind, which is the name before `` = ``."""
    if len(items) <= most:
        return list(items)
    kinds: dict[str, list[int]] = {}
    for place in rng.sample(range(len(items)), len(items)):
        kinds.setdefault(names[place].partition(" = ")[0], []).append(place)
    in_turn = sorted(
        (turn, number, place) for number, kind in enumerate(kinds.values()) for turn, place in enumerate(kind)
    )
    return [items[place] for place in sorted(place for _, _, place in in_turn[:most])]
