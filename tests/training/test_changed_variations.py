from __future__ import annotations

import pytest

from fhir_gym import tasks
from fhir_gym.episode import Episode
from fhir_gym.fhir import World
from fhir_gym.rollouts import run
from fhir_gym.training.changed_variations import blind_pack, mirrored, mirrored_pack

PACKS = ("FHIRAgent/Appointment-v0", "FHIRAgent/GeneticTesting-v0")


@pytest.mark.parametrize("env_id", PACKS)
def test_reference_solutions_solve_mirrored_variations(hospital: World, env_id: str) -> None:
    rollouts = [*run(mirrored_pack(env_id), "gold", variations="1000-1001", world=hospital)]
    assert len(rollouts) == 2 * len(tasks.task_keys(env_id))
    assert [rollout.task.key for rollout in rollouts if not rollout.success] == []


@pytest.mark.parametrize("env_id", PACKS)
def test_order_ids_and_times_are_reversed(hospital: World, env_id: str) -> None:
    for task in tasks.task_set(env_id).values():
        before = task.variation(1000, hospital).setup
        after = mirrored(task.variation(1000, hospital)).setup[::-1]
        assert [resource["resourceType"] for resource in after] == [resource["resourceType"] for resource in before]
        for type in {resource["resourceType"] for resource in before}:
            ids = [
                [resource["id"] for resource in setup if resource["resourceType"] == type] for setup in (before, after)
            ]
            assert _ranks(ids[1]) == [len(ids[0]) - 1 - rank for rank in _ranks(ids[0])]
        times = [[resource["meta"]["lastUpdated"] for resource in setup] for setup in (before, after)]
        assert sorted(times[0]) == sorted(times[1])
        assert times[0].index(min(times[0])) == times[1].index(max(times[1]))


def test_mirroring_twice_gives_the_variation_back(hospital: World) -> None:
    variation = tasks.get_task(PACKS[0], "17b").variation(1003, hospital)
    assert mirrored(variation) != variation
    assert mirrored(mirrored(variation)) == variation


def test_the_prompt_and_the_world_stay_the_same(hospital: World) -> None:
    with Episode(PACKS[0], task="02a", variation=1000, world=hospital) as episode:
        prompt = episode.prompt
    with Episode(mirrored_pack(PACKS[0]), task="02a", variation=1000, world=hospital) as episode:
        assert episode.prompt == prompt


@pytest.mark.parametrize("k", (0, 1, 1000))
def test_what_the_prompt_of_a_blind_variation_asks_for_is_a_failure(hospital: World, k: int) -> None:
    for key in tasks.task_keys(PACKS[0]):
        (neighbour,) = run(PACKS[0], "gold", tasks=key, variations=k ^ 1, world=hospital)
        with Episode(blind_pack(PACKS[0]), task=key, variation=k, world=hospital) as episode:
            episode.start()
            assert episode.prompt == neighbour.prompt
            for turn in neighbour.turns:
                episode.step(turn.action)
            assert not episode.verdict().success, key


def _ranks(values: list[str]) -> list[int]:
    return [sorted(values).index(value) for value in values]
