"""Ids for resources a task adds: new to the world and like those an electronic health record gives out."""

from __future__ import annotations

import random
import re

from fhir_gym.fhir.store.world import World

__all__ = ["Ids", "id_number"]

_LETTER = "e"
"""Leads every id: a server refuses a client's ids that are made of digits only (HAPI-0960)."""
_FORM = re.compile(rf"{_LETTER}?([0-9]{{1,15}})")
_FARTHEST = 900_000
"""How far above the world's next id the numbers may start; below the range where ids would look odd."""
_GAP = 40


class Ids:
    """Ids with numbers above the world's highest, in random order, so that the order of drawing says nothing.

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
            numbers.append(f"{_LETTER}{number}")
        rng.shuffle(numbers)
        self._numbers = numbers

    def new(self) -> str:
        """The next id (``"e905513"``)."""
        return self._numbers.pop()


def id_number(id: object) -> int | None:
    """The number in an id from a counter, a task's or a server's; None for ids of another form."""
    match = _FORM.fullmatch(str(id))
    return int(match[1]) if match else None
