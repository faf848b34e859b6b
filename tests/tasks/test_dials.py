from __future__ import annotations

from types import MappingProxyType
from typing import Any

import gymnasium as gym
import pytest

from fhir_gym import Episode, EpisodeConfig, get_task
from fhir_gym.errors import FhirGymError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.rollouts import plan
from fhir_gym.tasks import Dial, TaskSet, task_keys, task_set
from fhir_gym.tasks.packs.shift.t20_live import LiveLevel3

SHIFT = "FHIRAgent/Shift-v0"
SMALL: dict[str, Any] = {"minutes": 12, "load": 0.5, "policies": 5, "events": 0, "asking": 0}
KEY = "day-3+minutes=12+load=0.5+policies=5+events=0+asking=0"


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("day-3+load=0.50+minutes=60.0", "day-3+minutes=60+load=0.5"),
        ("day-3+minutes=60+load=1", "day-3+minutes=60"),
        ("day-3+minutes=120+policies=60", "day-3"),
        ("day-4+minutes=120", "day-4+minutes=120"),
        ("day-3+load=0.30000000000000004", "day-3+load=0.3"),
    ],
)
def test_the_key_says_what_is_not_usual(given: str, canonical: str) -> None:
    task = get_task(SHIFT, given)
    assert task.key == canonical and task.pack == SHIFT
    assert task is get_task(SHIFT, canonical)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("day-3+minuts=60", "unknown dial of task day-3 'minuts'; did you mean 'minutes'?"),
        ("Q1-1+minutes=60", "unknown dial of task Q1-1 'minutes'"),
        ("day-3+minutes=5", "dial minutes must be a whole number from 10 to 720, not 5.0"),
        ("day-3+minutes=60.5", "not 60.5"),
        ("day-3+load=nan", "dial load must be a number from 0.1 to 1.5, not nan"),
        ("day-3+load=inf", "not inf"),
        ("day-3+load", "not ''"),
        ("day-3+load=\x1b<script>", "not '\\x1b<script>'"),
        ("day-3+", "unknown dial of task day-3 ''"),
        ("day-9+minutes=60", "unknown task 'day-9+minutes=60'"),
    ],
)
def test_impossible_keys_are_refused(key: str, told: str) -> None:
    with pytest.raises(FhirGymError) as caught:
        get_task(SHIFT, key)
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "settings", "told"),
    [
        ("FHIRAgent/Appointment-v0", {"minutes": 60}, "unknown argument 'minutes'"),
        ("FHIRAgent/Appointment-v0", {"dials": {"minutes": 60}}, "unknown dial of these tasks 'minutes'. Known: none"),
        (SHIFT, {"level": 1, "minutes": 60}, "unknown dial of these tasks 'minutes'. Known: none"),
        (SHIFT, {"dials": {"minuts": 60}}, "unknown dial of these tasks 'minuts'; did you mean 'minutes'?"),
        (SHIFT, {"minuts": 60}, "did you mean 'minutes'?"),
        (SHIFT, {"minutes": True}, "dial minutes must be a whole number from 10 to 720, not True"),
        (SHIFT, {"minutes": "60"}, "not '60'"),
        (SHIFT, {"dials": 60}, "dials must be numbers by name, such as {'minutes': 60}, not 60"),
    ],
)
def test_impossible_settings_are_refused(env_id: str, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(FhirGymError) as caught:
        EpisodeConfig.of(env_id, settings).task_set()
    assert told in str(caught.value)


def test_a_task_without_the_dials_is_refused_by_name() -> None:
    with pytest.raises(UnknownNameError, match="unknown dial of task Q1-1 'minutes'"):
        plan(SHIFT, tasks="Q1-1", dials={"minutes": 60})


def test_keywords_and_keys_mean_the_same() -> None:
    config = EpisodeConfig.of(SHIFT, {"level": 3, **SMALL})
    assert list(config.task_set()) == [KEY]
    assert config.task_set()[KEY] is config.task_set()["day-3"] is task_set(SHIFT)[KEY] is get_task(SHIFT, KEY)
    assert KEY not in task_keys(SHIFT) and "day-3" in task_keys(SHIFT)
    for tasks in (None, "day-3", KEY):
        assert {episode.task for episode in plan(config, tasks=tasks).episodes} == {KEY}
    assert {episode.task for episode in plan(SHIFT, tasks=[KEY]).episodes} == {KEY}


def test_an_environment_takes_dials_as_keywords(hospital: World) -> None:
    env = gym.make(SHIFT, level=3, world=hospital, **SMALL)
    assert env.get_wrapper_attr("tasks") == (KEY,)
    prompt, info = env.reset(seed=1)
    assert info["task"] == KEY
    again = gym.make(SHIFT, tasks=["Q1-1", KEY], world=hospital)
    assert again.reset(options={"task": KEY, "variation": info["variation"]}) == (prompt, info)
    env.close()
    again.close()


def test_an_episode_takes_dials_as_keywords(hospital: World) -> None:
    with (
        Episode(SHIFT, task="day-3", world=hospital, **SMALL) as episode,
        Episode(SHIFT, task=KEY, world=hospital) as two,
    ):
        assert episode.task is two.task
        assert episode.start() == two.start() and episode.info() == two.info()
        assert episode.step_limit < 100


@pytest.mark.slow
def test_environments_in_other_processes_take_dials(hospital: World) -> None:
    settings = {"level": 3, "world": str(hospital.path), **SMALL}
    envs = gym.make_vec(
        SHIFT, num_envs=2, vectorization_mode="async", vector_kwargs={"shared_memory": False}, **settings
    )
    both, info = envs.reset(seed=1)
    assert set(info["task"]) == {KEY}
    with Episode(SHIFT, task=KEY, variation=int(info["variation"][0]), world=hospital) as episode:
        assert episode.start() == both[0]
    envs.close()


def test_tasks_with_different_dials() -> None:
    task, other = get_task(SHIFT, "day-3"), get_task(SHIFT, "Q1-1")
    assert list(TaskSet({"a": task, "b": other}, {"minutes": 60})) == ["day-3+minutes=60"]

    class OnlyLoad(LiveLevel3):
        key = "load"
        dials = MappingProxyType({"load": LiveLevel3.dials["load"], "calls": Dial(1, 0, 9)})

    with pytest.raises(FhirGymError, match="none of the tasks has all of the dials minutes, calls"):
        TaskSet({"a": task, "b": OnlyLoad()}, {"minutes": 60, "calls": 2})
