"""Recipes of generated worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from fhir_gym.types import Resource


@dataclass(frozen=True)
class Recipe:
    """Specification of a generated world.

    Attributes:
        name: Name of the world.
        description: A one-line description of the content.
        version: Version of the generator; a new version invalidates cached files.
        now: Current time of the world.
        generate: Function from a seed to the resources.
        total: Number of resources, if it is known; the resources are then streamed to disk and not collected in memory.
    """

    name: str
    description: str
    version: int
    now: datetime
    generate: Callable[[int], Iterable[Resource]]
    total: int | None = None
