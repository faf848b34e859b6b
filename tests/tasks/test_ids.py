from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from fhir_gym import get_task, task_keys
from fhir_gym.fhir import World
from fhir_gym.tasks import pack_ids
from fhir_gym.tasks.core.ids import IdAllocator, id_number


def test_ids_are_new_and_allowed_for_clients(hospital: World) -> None:
    ids = IdAllocator(random.Random(1), hospital)
    drawn = [ids.new("Patient") for _ in range(50)]
    assert len(set(drawn)) == 50
    for id in drawn:
        assert re.fullmatch(r"[A-Za-z0-9\-.]{1,64}", id) and not id.isdigit()
        assert hospital.read("Patient", id) is None
    assert drawn != sorted(drawn, key=lambda id: id_number(id) or 0)


@pytest.mark.parametrize(
    ("id", "number"),
    [
        ("e12", 12),
        ("12", 12),
        (7, 7),
        ("e", None),
        ("PAT01", 1),
        ("12-3", 12),
        ("12a", None),
        ("a-b", None),
        ("", None),
    ],
)
def test_the_number_of_an_id(id: object, number: int | None) -> None:
    assert id_number(id) == number


def test_no_setup_has_ids_a_server_refuses(own_world: Callable[[str], World]) -> None:
    for env_id in pack_ids():
        world = own_world(env_id)
        for key in task_keys(env_id):
            ids = [str(resource["id"]) for resource in get_task(env_id, key).variation(1_000, world).setup]
            assert not [id for id in ids if id.isdigit()]
            assert not [id for id in ids if not re.fullmatch(r"[A-Za-z0-9\-.]{1,64}", id)]
