from __future__ import annotations

import random
from datetime import date
from typing import cast

import pytest

from fhir_gym.errors import TaskError
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.compare import same_telephone
from fhir_gym.tasks.people import (
    Person,
    longer_family,
    namesake,
    new_person,
    other_given,
    relative_with,
    swapped,
)
from fhir_gym.types import Resource

from .fakes import FakeWorld, fake_world


def people(count: int = 300) -> list[Person]:
    rng = random.Random(7)
    return [new_person(rng, fake_world(), str(n)) for n in range(count)]


def test_people_are_adults_with_a_reachable_number() -> None:
    for person in people():
        assert date(1928, 1, 1) < date.fromisoformat(person.birth_date) < date(2006, 1, 1)
        assert same_telephone(person.phone, person.phone)


def test_a_namesake_is_someone_else() -> None:
    rng = random.Random(1)
    for person in people():
        other = namesake(rng, person, "x")
        assert (other.given, other.family) == (person.given, person.family)
        assert other.birth_date != person.birth_date
        assert not same_telephone(other.phone, person.phone)
        assert other.line != person.line and other.city != person.city


def test_other_decoys_differ_where_they_say() -> None:
    rng = random.Random(1)
    for person in people(100):
        twin = relative_with(rng, person, "x", given=other_given(rng, person))
        assert (twin.family, twin.birth_date) == (person.family, person.birth_date)
        assert not twin.given.startswith(person.given) and not person.given.startswith(twin.given)
        assert longer_family(rng, person).startswith(f"{person.family}-")
        mirror = swapped(rng, person, "x")
        assert (mirror.given, mirror.family) == (person.family, person.given)


class Crowded(FakeWorld):
    """A world in which some name, or every name, is taken."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self.taken = taken

    def search(self, resource_type: str, **params: object) -> list[Resource]:
        self.taken -= 1
        return [{"resourceType": resource_type, "id": "1"}] if self.taken >= 0 else []


def test_taken_names_are_passed_over() -> None:
    rng = random.Random(3)
    first = new_person(random.Random(3), fake_world(), "1")
    assert new_person(rng, cast(World, Crowded(1)), "1") != first
    with pytest.raises(TaskError, match="names"):
        new_person(rng, cast(World, Crowded(10**9)), "1")
