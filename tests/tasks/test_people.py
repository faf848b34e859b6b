from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from datetime import date
from typing import cast

import pytest

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring.people import (
    Person,
    is_new_name,
    longer_family,
    namesake,
    new_person,
    other_given,
    similar_person,
)
from fhir_gym.tasks.grading.comparison import same_telephone
from fhir_gym.types import Json

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
        twin = similar_person(rng, person, "x", given=other_given(rng, person))
        assert (twin.family, twin.birth_date) == (person.family, person.birth_date)
        assert not twin.given.startswith(person.given) and not person.given.startswith(twin.given)
        assert longer_family(rng, person).startswith(f"{person.family}-")


class Peopled(FakeWorld):
    """A fake world that contains given people."""

    def __init__(self, *names: Mapping[str, Json]) -> None:
        super().__init__()
        self.names = names

    def resources(self, resource_type: str | None = None) -> Iterator[bytes]:
        for name in self.names:
            yield json.dumps({"resourceType": resource_type, "name": [name]}).encode()


def drawn(world: FakeWorld) -> Person:
    return new_person(random.Random(3), cast(World, world), "1")


def test_taken_names_are_passed_over() -> None:
    first = drawn(Peopled())
    given, family = first.given, first.family
    for taken in (
        {"family": family, "given": [given]},
        {"family": family.upper(), "given": ["X", f"{given}ette"]},
        {"family": f"{family}-Lee", "given": [given.casefold()]},
        {"family": given, "given": [family]},
    ):
        assert drawn(Peopled({"family": "Aa"}, taken, {"given": ["Zoë"]})).name != first.name, taken
    for free in ({"family": family[:-1], "given": [given]}, {"family": family, "given": ["X"]}, {"text": first.name}):
        assert drawn(Peopled(free)) == first


def test_a_world_where_every_name_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first = drawn(Peopled())
    monkeypatch.setattr("fhir_gym.tasks.authoring.people._draw", lambda *_: first)
    with pytest.raises(TaskError, match="no unused name"):
        drawn(Peopled({"family": first.family, "given": [first.given]}))


def test_new_names_are_those_a_search_does_not_find(hospital: World) -> None:
    """The function compares names in the same way as the server's search."""
    rng = random.Random(11)
    for kind in ("Patient", "Practitioner"):
        for _ in range(20):
            person = new_person(rng, hospital, "1", resource_type=kind)
            assert hospital.search(kind, family=person.family, given=person.given) == []
            assert hospital.search(kind, family=person.given, given=person.family) == []
    found = hospital.search("Patient", _count=5)[0]["name"][0]
    assert not is_new_name(hospital, "Patient", found["given"][0], found["family"])
    assert not is_new_name(hospital, "Patient", found["family"][:3], found["given"][0][:2])
