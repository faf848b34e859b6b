from __future__ import annotations

import random
from itertools import combinations

import pytest

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.packs.shift.clinic import draw_clinic, has_clear_order


@pytest.mark.parametrize(
    ("name", "other", "clear"),
    [
        ("Adams", "Zhang", True),
        ("Zhang", "Zhang", True),
        ("Müller", "Nakamura", True),
        ("Çelik", "Strand", False),
        ("Nakamura", "Álvarez", False),
        ("O'Hara", "Obi", False),
        ("Sørensen", "Strand", False),
        ("Nunez", "Nuñez", False),
    ],
)
def test_names_have_a_clear_order_if_accents_do_not_matter(name: str, other: str, clear: bool) -> None:
    assert has_clear_order(name, other) is has_clear_order(other, name) is clear


def test_practitioners_of_a_place_differ_and_have_a_clear_order(hospital: World) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        scene = draw_clinic(
            rng,
            hospital,
            IdAllocator(rng, hospital),
            people=(6,),
            twins=0,
            practitioners=9,
            services=3,
            days=1,
            per_day=2,
        )
        names = [(practitioner.person.given, practitioner.person.family) for practitioner in scene.practitioners]
        assert len({*names}) == len(names)
        assert all(has_clear_order(name, other) for (_, name), (_, other) in combinations(names, 2))
