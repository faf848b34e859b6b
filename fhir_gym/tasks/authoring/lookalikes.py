"""Draw groups of people with similar names and dates of birth."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from itertools import product
from math import prod
from typing import Any, TypeVar

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring.people import (
    Person,
    confusable_dates,
    is_new_name,
    longer_family,
    new_person,
    other_given,
    person_called,
)
from fhir_gym.tasks.grading.checks import Check
from fhir_gym.tasks.grading.comparison import differences
from fhir_gym.tasks.grading.end_state import FinishedEpisode
from fhir_gym.types import Resource


def new_resource(end: FinishedEpisode, resource_type: str, answer: str | None = None) -> Resource:
    """Return the created resource of a type; an empty object if the agent created none.

    If the agent created several, this is the resource with the id `answer`, or else the first resource. The check
    *nothing else changed* refuses the others.
    """
    new = end.created(resource_type)
    return next((resource for resource in new if resource["id"] == answer), new[0] if new else {})


def created_check(end: FinishedEpisode, resource_type: str) -> Check:
    """Return an ``exists`` check that the agent created a resource of a type."""
    new = [f"{resource_type}/{resource['id']}" for resource in end.created(resource_type)]
    name = f"{resource_type} created"
    return Check(name=name, passed=bool(new), expected=f"a new {resource_type}", actual=new, level="exists")


def update_checks(
    end: FinishedEpisode,
    resource_type: str,
    id: str,
    *,
    changing: Collection[str],
    may_add: Collection[str] = (),
    may_go: Collection[str] = (),
    called: str = "",
) -> Iterator[Check]:
    """Yield checks that a resource was updated and that only the given elements changed.

    The task itself must check the new values; see `FinishedEpisode.after_update`.

    Args:
        end: The end state.
        resource_type: Type of the resource.
        id: Id of the resource.
        changing: Elements that must change.
        may_add: Elements that may be added.
        may_go: Elements that may be removed.
        called: Name of the resource in the checks ("old slot"); None for its type.
    """
    changed, called = end.updated(resource_type, id), called or resource_type
    before, after = changed or ({}, {})
    target = f"{resource_type}/{id}"
    there = changed is not None
    yield Check(
        name=f"{called} updated", passed=there, expected=target, actual=target if there else None, level="exists"
    )
    rest = differences(before, after, changing=changing, may_add=may_add, may_go=may_go, base_url=end.base_url)
    yield Check(name=f"rest of {called} unchanged", passed=there and not rest, expected={}, actual=rest)


NAME = ("given", "family")
NAME_AND_BIRTH = ("given", "family", "birth_date")
"""Attributes by which a prompt identifies a person."""

_TRIES = 1_000
_BORN = {(0, 0): (0, 2, 3, 4, 5), (0, 1): (0, 1), (1, 0): (0, 1), (1, 1): (0, 1, 6, 7)}
_LINEUP = [(*name, day) for name, days in _BORN.items() for day in days]
"""The occupied grid cells of a line-up, as indices of given name, family name and date of birth."""
_DAYS = 8

Cell = TypeVar("Cell", bound=tuple[Any, ...])


def draw_lookalikes(
    rng: random.Random,
    world: World,
    new_id: Callable[[], str],
    size: int,
    *,
    by: Sequence[str] = NAME_AND_BIRTH,
    fewest: int = 0,
    resource_type: str = "Patient",
) -> tuple[Person, ...]:
    """Draw people with overlapping names and dates of birth; no two people share all of them.

    All full names are new in the world. The people are random cells of a grid of a few names and dates; the grid has
    slightly more cells than people. Most people therefore differ from one other person only in the given name, from
    another person only in the family name (sometimes a longer name with the same start), and from a third person only
    in the date of birth. All other attributes are drawn independently.

    Args:
        rng: Random number generator.
        world: World in which the names must be new.
        new_id: Allocates ids.
        size: Number of people, 4 to 16.
        by: Identifying attributes: `NAME_AND_BIRTH` or `NAME`.
        fewest: Minimum number of `confusable` people.
        resource_type: ``Patient`` or ``Practitioner``.

    Raises:
        TaskError: No unused name was found, or no group of this size has enough confusable people.
    """
    shape, cells = _cells(rng, size, len(by), fewest)
    seed, grid = new_names(rng, world, shape, resource_type)
    return _in_cells(rng, new_id, seed, grid, cells)


def draw_all_combinations(
    rng: random.Random,
    world: World,
    new_id: Callable[[], str],
    shape: tuple[int, ...],
    *,
    resource_type: str = "Patient",
) -> tuple[Person, ...]:
    """Draw the smallest group in which everyone is `confusable`: all combinations of a few names and dates.

    Args:
        rng: Random number generator.
        world: World in which the names must be new.
        new_id: Allocates ids.
        shape: Number of given names, family names and, optionally, dates of birth.
        resource_type: ``Patient`` or ``Practitioner``.

    Raises:
        TaskError: No unused name was found.
    """
    seed, grid = new_names(rng, world, shape, resource_type)
    return _in_cells(rng, new_id, seed, grid, [*product(*map(range, shape))])


def draw_lineup(rng: random.Random, world: World, new_id: Callable[[], str]) -> tuple[Person, ...]:
    """Draw thirteen confusable people, without one combination of name and birth date that would fit the group.

    Two given names and two family names make four full names. For each full name, there is a person for each of two
    dates of birth, except for one missing person. Two of the full names also occur with other dates of birth. A search
    that omits part of the name or the date of birth therefore usually returns another person first, often a person with
    the same name.

    Args:
        rng: Random number generator.
        world: World in which the names must be new.
        new_id: Allocates ids.

    Raises:
        TaskError: No unused name was found.
    """
    seed, (givens, families, _) = new_names(rng, world, (2, rng.choice((2, 3)), 1), "Patient")
    near = [seed.birth_date, *confusable_dates(seed.birth_date)]
    dates = dict.fromkeys(rng.sample(near, len(near)))
    while len(dates) < _DAYS:
        dates |= dict.fromkeys(_births(rng, seed, _DAYS - len(dates)))
    grid = [rng.sample(givens, 2), rng.sample((families[0], families[-1]), 2), [*dates]]
    return _in_cells(rng, new_id, seed, grid, _LINEUP)


def new_names(
    rng: random.Random, world: World, shape: tuple[int, ...], resource_type: str
) -> tuple[Person, list[list[str]]]:
    """Draw a person, and a grid of unused names and dates around them.

    Args:
        rng: Random number generator.
        world: World in which the names must be new.
        shape: Number of given names, family names and, optionally, dates of birth.
        resource_type: ``Patient`` or ``Practitioner``.

    Raises:
        TaskError: No unused name was found.
    """
    for _ in range(_TRIES):
        seed = new_person(rng, world, "", resource_type=resource_type)
        grid = _grid(rng, world, seed, shape, resource_type)
        if all(is_new_name(world, resource_type, *name) for name in product(*grid[:2])):
            return seed, grid
    raise TaskError(f"no unused name in the world {world.manifest.name} after {_TRIES} attempts")


def _in_cells(
    rng: random.Random, new_id: Callable[[], str], seed: Person, grid: list[list[str]], cells: Sequence[tuple[int, ...]]
) -> tuple[Person, ...]:
    """Draw a person for each cell of a grid."""
    rows = [[values[n] for values, n in zip(grid, cell, strict=True)] for cell in cells]
    if len(grid) == 2:
        rows = [[*row, birth] for row, birth in zip(rows, _births(rng, seed, len(rows)), strict=True)]
    return tuple(
        person_called(rng, new_id(), given, family, seed.gender, birth_date) for given, family, birth_date in rows
    )


def _cells(
    rng: random.Random, size: int, dimensions: int, fewest: int
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Choose the shape of a grid and its occupied cells."""
    for _ in range(_TRIES):
        shape = rng.choice(_shapes(size, dimensions))
        cells = rng.sample([*product(*map(range, shape))], size)
        if fewest == 0 or len(_near_others(cells)) >= fewest:
            return shape, cells
    raise TaskError(f"found no group of {size} people with at least {fewest} confusable members")


def confusable(people: Sequence[Person], by: Sequence[str] = NAME_AND_BIRTH) -> list[Person]:
    """Return the people who can be identified only by all attributes in `by` together.

    For such a person and for each attribute, the group has another person who differs only in this attribute.

    Args:
        people: The group.
        by: Names of the identifying attributes.
    """
    cells = [tuple(str(getattr(person, name)) for name in by) for person in people]
    near = _near_others(cells)
    return [person for person, cell in zip(people, cells, strict=True) if cell in near]


@dataclass(frozen=True, slots=True)
class PersonCandidate:
    """A person that a prompt could identify by name and date of birth.

    Attributes:
        given: Given name.
        family: Family name.
        id: Id of the record; empty for a person without a record.
    """

    given: str
    family: str
    birth_date: str
    id: str = ""

    @property
    def target(self) -> str:
        """The reference to the person's record; empty for a person without a record."""
        return f"Patient/{self.id}" if self.id else ""


def person_candidates(people: Sequence[Person]) -> list[PersonCandidate]:
    """Return a candidate for each person who can be identified only by both names and the date of birth together."""
    return [PersonCandidate(person.given, person.family, person.birth_date, person.id) for person in confusable(people)]


def absent_combinations(people: Sequence[Person]) -> list[tuple[str, str, str]]:
    """Return unused combinations of given name, family name and date of birth that fit the group.

    For each attribute, the group has a person who differs from the combination only in this attribute.
    """
    there = {(person.given, person.family, person.birth_date) for person in people}
    given, family, birth_date = (sorted({cell[n] for cell in there}) for n in range(3))
    partly = _all_but_one(there)
    return [
        cell
        for cell in product(given, family, birth_date)
        if cell not in there and all(partly[n, *cell[:n], *cell[n + 1 :]] for n in range(3))
    ]


def _near_others(cells: Collection[Cell]) -> set[Cell]:
    """Return the cells for which, in each dimension, another cell differs only in this dimension."""
    partly = _all_but_one(cells)
    return {cell for cell in cells if all(partly[n, *cell[:n], *cell[n + 1 :]] > 1 for n in range(len(cell)))}


def _all_but_one(cells: Iterable[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """For each coordinate, count the cells that agree in all other coordinates."""
    return Counter((n, *cell[:n], *cell[n + 1 :]) for cell in cells for n in range(len(cell)))


def _births(rng: random.Random, seed: Person, size: int) -> list[str]:
    """Draw dates of birth within twenty years."""
    first = date.fromisoformat(seed.birth_date)
    return [(first + timedelta(days=rng.randrange(-3_650, 3_650))).isoformat() for _ in range(size)]


@cache
def _shapes(size: int, dimensions: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of grids that are slightly larger than a group."""
    sides = ((2, 3, 4), (2, 3, 4), (2, 3)) if dimensions == 3 else ((2, 3, 4, 5),) * 2
    return tuple(shape for shape in product(*sides) if size < prod(shape) <= size + 2 + size // 2)


def _grid(
    rng: random.Random, world: World, seed: Person, shape: tuple[int, ...], resource_type: str
) -> list[list[str]]:
    """Draw given names of one gender, family names and, in three dimensions, dates of birth."""
    givens, families = [seed.given], [seed.family]
    while len(givens) < shape[0]:
        _add_unless_alike(givens, other_given(rng, seed))
    if "-" not in seed.family:
        families.append(longer_family(rng, seed))
    while len(families) < shape[1]:
        _add_unless_alike(families, new_person(rng, world, "", resource_type=resource_type).family)
    grid = [givens, families]
    if len(shape) == 3:
        grid.append([seed.birth_date, *rng.sample(confusable_dates(seed.birth_date), shape[2] - 1)])
    return grid


def _add_unless_alike(names: list[str], name: str) -> None:
    """Add a name to the list if no listed name starts with the name, and the name starts with no listed name."""
    if not any(name.startswith(other) or other.startswith(name) for other in names):
        names.append(name)
