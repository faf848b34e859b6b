from __future__ import annotations

import pytest

from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import ArgumentError, FhirGymError, UnknownNameError
from fhir_gym.tasks import (
    EXPERIMENTS,
    SPLITS,
    experiment_packs,
    get_experiment,
    get_pack,
    get_task,
    split_numbers,
    task_keys,
)
from tests.tasks.fakes import fake_world

PACK = "FHIRAgent/Appointment-v0"
ENV_IDS = (PACK, "FHIRAgent/GeneticTesting-v0")
KEYS = (
    *("01", "02a", "02b", "03", "04a", "04b", "05", "06a", "06b", "07", "08a", "08b", "09a", "09b", "09c", "09d"),
    *("10a", "10b", "11a", "11b", "11c", "11d", "12a", "12b", "12c", "12d", "13a", "13b", "14a", "14b"),
    *("15a", "15b", "15c", "16a", "16b", "16c", "17a", "17b", "20", "21a", "21b", "21c", "22"),
)
"""FHIR-AgentEval's 43 tasks."""


def test_held_out_tasks_are_the_authors() -> None:
    held_out = [key for env in ENV_IDS for key in get_pack(env).held_out]
    assert len(held_out) == len(set(held_out)) == 22
    assert set(held_out) < set(KEYS)
    assert len(KEYS) == 43


def test_packs_use_the_authors_keys() -> None:
    present = [key for env in ENV_IDS for key in task_keys(env)]
    assert set(present) <= set(KEYS)
    assert present == sorted(present)


def test_heldout_split_is_test_variations_of_held_out_tasks() -> None:
    assert split_numbers("heldout_tasks") == SPLITS["test"]
    assert EpisodeConfig(PACK, split="heldout_tasks").choose_tasks(("01", "03", "11a")) == ("03", "11a")
    assert EpisodeConfig(PACK, split="test").choose_tasks(("01", "03")) == ("01", "03")
    with pytest.raises(FhirGymError, match="has none of 01, 02a"):
        EpisodeConfig(PACK, split="heldout_tasks").choose_tasks(("01", "02a"))
    with pytest.raises(FhirGymError, match="of FHIRAgent/MedAgentBench-v0 it has none"):
        EpisodeConfig("FHIRAgent/MedAgentBench-v0", split="heldout_tasks").choose_tasks("01")


def test_only_the_first_experiment_tests_on_its_training_data() -> None:
    assert list(EXPERIMENTS) == [*(f"experiment-{n}" for n in (1, 2, 3, 4)), "experiment-3-v2", "experiment-4-v2"]
    for name, experiment in EXPERIMENTS.items():
        learnt, tested = set(experiment.train.episodes()), set(experiment.test.episodes())
        assert learnt
        assert tested
        assert (learnt == tested) if name == "experiment-1" else not (learnt & tested)
        assert experiment.repeats == 3


def test_experiments_differ_as_the_paper_says() -> None:
    first, second, third, fourth, *_ = EXPERIMENTS.values()
    present = sum(len(task_keys(env)) for env in ENV_IDS)
    assert len(list(first.test.episodes())) == present
    assert len(list(second.train.episodes())) == 2 * present
    assert len(list(second.test.episodes())) == 3 * present
    assert {e[:3] for e in third.test.episodes()} == {e[:3] for e in second.test.episodes()}
    assert {e[3] for e in third.test.episodes()} == {2}
    learnt, tested = ({e[1] for e in part.episodes()} for part in (fourth.train, fourth.test))
    assert not learnt & tested
    assert "11a" in tested
    assert "01" in learnt


def test_a_part_is_arguments_of_run() -> None:
    from fhir_gym.rollouts import plan

    part = get_experiment("experiment-4").test
    jobs = plan(PACK, repeats=3, **part.arguments(PACK)).episodes
    assert {job.task for job in jobs} == set(part.keys(PACK))
    assert {job.variation for job in jobs} == {1_000, 1_001, 1_002}
    assert plan(PACK, **part.arguments(PACK)).config.phrasing == 2
    assert part.keys("FHIRAgent/MedAgentBench-v0") == ()  # it has no held-out tasks


def test_experiments_apply_to_other_packs() -> None:
    assert experiment_packs() == ENV_IDS
    part, other = get_experiment("experiment-2").test, "FHIRAgent/MedAgentBench-v0"
    assert part.keys(other) == task_keys(other)
    assert len(list(part.episodes([other]))) == 3 * len(task_keys(other))
    assert {episode[0] for episode in part.episodes()} == set(ENV_IDS)


def test_an_unknown_experiment_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'experiment-2'"):
        get_experiment("experiment2")


@pytest.mark.parametrize("key", task_keys(PACK))
def test_phrasings_change_the_prompt_and_nothing_else(key: str) -> None:
    task, world = get_task(PACK, key), fake_world()
    own = task.variation(3, world)
    each = [task.variation(3, world, phrasing) for phrasing in range(len(task.wordings))]
    assert len(task.prompts) >= 3 and len(each) == len(task.prompts) + 8
    assert len({variation.prompt for variation in each}) == len(each)
    assert own in each and own.phrasing == each.index(own)
    assert all(
        (variation.params, variation.setup, variation.next_id) == (own.params, own.setup, own.next_id)
        for variation in each
    )
    with pytest.raises(ArgumentError, match="phrasings 0 to"):
        task.variation(3, world, len(each))
