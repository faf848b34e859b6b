"""Ids for resources a task adds: new to the world and like those a server gives out."""

from __future__ import annotations

import random

from fhir_gym.fhir.store.world import World

__all__ = ["Ids"]

_FARTHEST = 900_000
"""How far above the world's next id the numbers may start; below the range where ids would look odd."""
_GAP = 40


class Ids:
    """Ids from above the world's highest, in random order, so that the order of creation says nothing.

    Args:
        rng: Source of chance.
        world: The world they must be new to.
        count: How many are needed.
    """

    def __init__(self, rng: random.Random, world: World, count: int) -> None:
        number = world.manifest.next_id + rng.randrange(1_000, _FARTHEST)
        numbers = []
        for _ in range(count):
            number += rng.randrange(1, _GAP)
            numbers.append(str(number))
        rng.shuffle(numbers)
        self._numbers = numbers

    def new(self) -> str:
        """The next id."""
        return self._numbers.pop()
