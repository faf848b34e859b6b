"""Scenes with genetic test orders do not reveal what the prompt asks about, and each condition matters."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.tasks import get_task, task_keys
from fhir_gym.tasks.authoring import IdAllocator, person_candidates
from fhir_gym.tasks.packs.genetic_testing.scenes import GeneticScene, draw_pairs, draw_patients, order_candidates
from tests.tasks.fakes import fake_world

if TYPE_CHECKING:
    from fhir_gym.fhir import World

PACK = "FHIRAgent/GeneticTesting-v0"
KEYS = task_keys(PACK)
ORDERS = ("21a", "21b", "21c")
WHO = ("given", "family", "birth_date")


def params(key: str, world: World, k: int) -> Any:
    return get_task(PACK, key).variation(k, world).params


@pytest.mark.parametrize("key", KEYS)
def test_the_start_state_is_the_same_whoever_is_asked_about(key: str, hospital: World) -> None:
    task: Any = get_task(PACK, key)
    for k in range(5):
        p = params(key, hospital, k)
        others = [
            task.params_for(random.Random(k), hospital, p.scene, candidate)
            for candidate in task.candidates(p.scene)[""]
        ]
        assert len({candidate.target for candidate in task.candidates(p.scene)[""]}) == len(others) >= 5
        assert all(task.setup(other, hospital) == task.setup(p, hospital) for other in others)


@pytest.mark.parametrize("key", KEYS)
def test_each_of_the_three_criteria_excludes_someone(key: str, hospital: World) -> None:
    for k in range(10):
        p = params(key, hospital, k)
        for left_out in WHO:
            rest = [name for name in WHO if name != left_out]
            alike = [
                person for person in p.scene.people if all(getattr(person, n) == getattr(p.person, n) for n in rest)
            ]
            assert len(alike) == 2
        assert len({tuple(getattr(person, name) for name in WHO) for person in p.scene.people}) == len(p.scene.people)


@pytest.mark.parametrize("key", ORDERS)
def test_each_condition_on_an_order_matters(key: str, hospital: World) -> None:
    for k in range(10):
        scene = params(key, hospital, k).scene
        facts = {
            order.id: (
                scene.person(order.patient).name,
                scene.person(order.patient).birth_date,
                order.test.code,
                order.status,
            )
            for order in scene.orders
        }
        for asked in order_candidates(scene):
            asked_for = facts[asked.id]
            assert [id for id, found in facts.items() if found == asked_for] == [asked.id]
            for n in range(len(asked_for)):
                rest = [
                    id
                    for id, found in facts.items()
                    if found[:n] + found[n + 1 :] == asked_for[:n] + asked_for[n + 1 :]
                ]
                assert len(rest) > 1


def test_an_order_that_one_condition_less_would_find_is_not_asked_about(hospital: World) -> None:
    scene: GeneticScene = params("21c", hospital, 0).scene
    (order, *_) = order_candidates(scene)
    same_test = [other for other in scene.orders if (other.test, other.status) == (order.test, "draft")]
    namesakes = [other for other in same_test if scene.person(other.patient).name == scene.person(order.patient).name]
    own = [other for other in scene.orders if other.patient == order.patient and other != order]
    lost = {
        "birth date": [other for other in namesakes if other != order],
        "name": [
            other
            for other in same_test
            if other not in namesakes
            and scene.person(other.patient).birth_date == scene.person(order.patient).birth_date
        ],
        "test": [other for other in own if other.status == "draft"],
        "status": [other for other in own if other.test == order.test],
    }
    for condition, orders in lost.items():
        assert orders, condition
        left = scene.model_copy(update={"orders": tuple(other for other in scene.orders if other not in orders)})
        assert order.id not in [genetic_order.id for genetic_order in order_candidates(left)], condition


def test_every_target_patient_has_a_lookalike() -> None:
    rng, world = random.Random(1), fake_world()
    people = draw_patients(rng, world, IdAllocator(rng, world))
    assert [person_candidate.id for person_candidate in person_candidates(people)] == [person.id for person in people]
    assert not person_candidates(people[:2])
    assert len(person_candidates(people[1:])) == 4


@pytest.mark.parametrize("seed", range(10))
def test_patients_with_orders_have_namesakes(seed: int) -> None:
    rng, world = random.Random(seed), fake_world()
    people = draw_patients(rng, world, IdAllocator(rng, world))
    first, last = draw_pairs(rng, people)
    found = [*first, *last]
    assert len(first) == len(last) == 2
    assert len({person.name for person in found}) == len({person.birth_date for person in found}) == 2
    assert len({person.id for person in found}) == 4


@pytest.mark.parametrize("key", KEYS)
def test_five_others_or_more_could_be_meant(key: str, hospital: World) -> None:
    sizes = [len(get_task(PACK, key).variation(k, hospital)._qualifying) for k in range(20)]
    assert min(sizes) >= 6
