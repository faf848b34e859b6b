"""MenuEnv: an agent chooses actions from a menu."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from fhir_gym.errors import ArgumentError, FhirGymError, TrainingError, UnknownNameError
from fhir_gym.tasks import task_keys
from fhir_gym.training.config import TaskName
from fhir_gym.training.curriculum import Curriculum
from fhir_gym.training.menu import PLACES, MenuEnv, Templates

from .conftest import APPOINTMENT

WRONG: Any = "much"
TASKS = [TaskName(APPOINTMENT, "02a"), TaskName(APPOINTMENT, "16c")]


def test_gymnasium_checker(templates: Templates) -> None:
    check_env(MenuEnv(templates, TASKS), skip_render_check=True)


def test_an_empty_place_counts_as_a_step(templates: Templates) -> None:
    env = MenuEnv(templates, TASKS, max_steps=2)
    env.reset(seed=1)
    mask = env.action_masks()
    assert mask.any() and not mask.all()
    empty = int(np.flatnonzero(~mask)[0])
    assert env.step(empty)[2:4] == (False, False)
    assert env.step(empty)[2:4] == (False, True)


def test_info(templates: Templates) -> None:
    env = MenuEnv(templates, TASKS, max_steps=2)
    _, info = env.reset(options={"env_id": APPOINTMENT, "task": "16c", "variation": 103, "phrasing": 1})
    assert (info["env_id"], info["task"], info["variation"], info["phrasing"]) == (APPOINTMENT, "16c", 103, 1)
    text = env.places[0].text
    assert env.step(0)[4]["action"] == text
    _, reward, terminated, truncated, info = env.step(PLACES - 1)
    assert (reward, terminated, truncated, info["success"], info["action"]) == (0.0, False, True, False, "")
    assert info["success"] is False and "verdict" not in info


def test_a_curriculum_draws_the_episodes_and_learns_their_results(templates: Templates) -> None:
    curriculum = Curriculum(TASKS, range(5), rule="failure")
    env = MenuEnv(templates, TASKS, curriculum=curriculum, max_steps=1)
    for _ in range(6):
        _, info = env.reset()
        assert info["variation"] < 5
        env.step(PLACES - 1)
    assert curriculum.drawn == 6
    assert max(curriculum.success_rates().values()) < 0.5


def test_a_curriculum_counts_only_the_episodes_that_it_drew(templates: Templates) -> None:
    curriculum = Curriculum(TASKS, range(5), rule="failure")
    env = MenuEnv(templates, TASKS, curriculum=curriculum, max_steps=1)
    for task, variation in (("02a", 100), ("12d", 100)):
        env.reset(options={"env_id": APPOINTMENT, "task": task, "variation": variation})
        assert env.step(PLACES - 1)[3]
    assert set(curriculum.success_rates().values()) == {0.5}


def test_options_limit_what_is_drawn(templates: Templates) -> None:
    genetic = TaskName("FHIRAgent/GeneticTesting-v0", task_keys("FHIRAgent/GeneticTesting-v0")[0])
    env = MenuEnv(templates, [*TASKS, genetic])
    for _ in range(6):
        assert env.reset(options={"env_id": genetic.env_id})[1]["env_id"] == genetic.env_id
        assert env.reset(options={"task": "16c"})[1]["env_id"] == APPOINTMENT
    with pytest.raises(UnknownNameError, match="unknown env id"):
        env.reset(options={"env_id": "FHIRAgent/MedAgentBench-v0"})
    with pytest.raises(UnknownNameError, match="unknown task"):
        env.reset(options={"task": "nothing"})


def test_a_failed_reset_ends_the_episode(templates: Templates) -> None:
    env = MenuEnv(templates, TASKS)
    env.reset(seed=1)
    with pytest.raises(ArgumentError):
        env.reset(options={"phrasing": 99})
    with pytest.raises(ResetNeeded):
        env.step(0)


def test_environments_can_be_pickled_and_give_the_same_episodes(templates: Templates) -> None:
    make = partial(MenuEnv, templates, TASKS, curriculum=Curriculum(TASKS, range(5), seed=2))
    first, second = make(), pickle.loads(pickle.dumps(make))()
    for _ in range(3):
        ours, theirs = first.reset()[0], second.reset()[0]
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_environments_of_one_process_do_not_influence_each_other(templates: Templates) -> None:
    def play(env: MenuEnv, variation: int) -> Iterator[bytes]:
        options = {"env_id": APPOINTMENT, "task": "16c", "variation": variation}
        seen, _ = env.reset(options=options)
        for place in (1, 0, 1, 0):
            texts = "".join(candidate.text for candidate in env.places)
            yield seen["state"].tobytes() + seen["candidates"].tobytes() + texts.encode()
            seen, _, terminated, truncated, _ = env.step(place % len(env.places))
            if terminated or truncated:
                break

    alone = [list(play(MenuEnv(templates, TASKS, distractors=2), variation)) for variation in (1, 2)]
    envs = [MenuEnv(templates, TASKS, distractors=2, prepared=4) for _ in range(2)]
    for _ in range(3):
        first, second = (play(env, variation) for env, variation in zip(envs, (1, 2), strict=True))
        mixed = list(zip_longest(first, second))
        together = [[pair[at] for pair in mixed if pair[at] is not None] for at in (0, 1)]
        assert together == alone
    for env in envs:
        env.close()


def test_a_task_that_fails_has_fewer_distractors(templates: Templates) -> None:
    def places(rate: float, **settings: Any) -> int:
        curriculum = Curriculum(TASKS[:1], range(1), rule="failure")
        for _ in range(50):
            curriculum.record(TASKS[0], rate)
        env = MenuEnv(templates, TASKS[:1], curriculum=curriculum, distractors=4, **settings)
        env.reset()
        return len(env.places)

    never, half, always = (places(rate, paced=True) for rate in (0.0, 0.5, 1.0))
    assert never < half < always == places(0.0)
    plain = MenuEnv(templates, TASKS[:1])
    plain.reset(options={"variation": 0})
    assert never == len(plain.places)


def test_a_paced_episode_with_options_has_all_distractors(templates: Templates) -> None:
    curriculum = Curriculum(TASKS, range(1), rule="failure")
    envs = [
        MenuEnv(templates, TASKS, distractors=4),
        MenuEnv(templates, TASKS, curriculum=curriculum, distractors=4, paced=True),
    ]
    for env in envs:
        env.reset(options={"task": "02a", "variation": 1})
    assert [place.text for place in envs[0].places] == [place.text for place in envs[1].places]


def test_wrong_arguments_are_refused(templates: Templates) -> None:
    with pytest.raises(FhirGymError, match="at least one task"):
        MenuEnv(templates, [])
    with pytest.raises(FhirGymError, match="is a pair"):
        MenuEnv(templates, WRONG)
    with pytest.raises(UnknownNameError, match="reward"):
        MenuEnv(templates, TASKS, reward=WRONG)
    with pytest.raises(FhirGymError, match="prepared"):
        MenuEnv(templates, TASKS, prepared=-1)
    with pytest.raises(UnknownNameError):
        MenuEnv(templates, [(APPOINTMENT, "99")])
    with pytest.raises(FhirGymError, match="distractors"):
        MenuEnv(templates, TASKS, distractors=-1)
    with pytest.raises(TrainingError):
        MenuEnv("missing.json", TASKS)
    with pytest.raises(UnknownNameError):
        MenuEnv(templates, TASKS).reset(options={"patient": 1})
