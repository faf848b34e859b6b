"""Draw names of organizations that are new in a world."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import orjson

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World

_INSURER_WORDS = (
    (
        *("Acadia", "Blue Heron", "Canyon", "Cornerstone", "Evergrove", "First Prairie", "Granite State", "Keystone"),
        *("Lakeland", "Meridian", "New Dominion", "Old Harbor", "Pinnacle", "Redwood", "Silver Birch", "Summit"),
        "Tidewater",
    ),
    ("Assurance", "Benefit", "Family", "Mutual", "National", "People's", "Regional", "United"),
    ("Health Insurance", "Health Plan", "Health Partners", "Medical Insurance", "Healthcare"),
)
_TRIES = 1_000
_known: WeakKeyDictionary[World, list[str]] = WeakKeyDictionary()


def insurer_name(rng: random.Random, world: World) -> str:
    """Draw an insurer's name; no organization in the world has a name that starts with it.

    Raises:
        TaskError: No unused name was found.
    """
    return organization_name(rng, world, _INSURER_WORDS)


def organization_name(rng: random.Random, world: World, words: Sequence[Sequence[str]]) -> str:
    """Draw a name that has one word of each group; no organization in the world has a name that starts with it.

    Args:
        rng: Random number generator.
        world: World in which the name must be new.
        words: The groups of words.

    Raises:
        TaskError: No unused name was found.
    """
    known = _organizations(world)
    for _ in range(_TRIES):
        name = " ".join(rng.choice(group) for group in words)
        place = bisect_left(known, name.casefold())
        if not any(other.startswith(name.casefold()) for other in known[place : place + 1]):
            return name
    raise TaskError(f"the world {world.manifest.name} has no unused organization name after {_TRIES} attempts")


def _organizations(world: World) -> list[str]:
    """Return the sorted and casefolded names of a world's organizations; the result is cached for each world."""
    if world not in _known:
        bodies = (orjson.loads(body) for body in world.resources("Organization"))
        _known[world] = sorted(str(body.get("name", "")).casefold() for body in bodies)
    return _known[world]
