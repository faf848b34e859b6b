from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from fhir_gym.envs import FHIREnv, FHIRVectorEnv
from fhir_gym.errors import FhirGymError, WrongTypeError
from fhir_gym.fhir import World
from fhir_gym.testing import serving

ENV_ID = "FHIRAgent/Appointment-v0"
FINISH = ("FINISH([])", "FINISH([])")


def test_the_default_shares_one_world() -> None:
    envs = gym.make_vec(ENV_ID, num_envs=2)
    assert isinstance(envs, FHIRVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    first, second = envs.get_attr("world")
    assert first is second
    envs.close()
    envs.close()


def _episode_of(seed: int, hospital: World) -> list[tuple[str, dict[str, Any]]]:
    env = FHIREnv(ENV_ID, world=hospital)
    starts = [env.reset(seed=seed), env.reset()]
    env.close()
    return starts


def test_next_step_autoreset_draws_from_the_envs_own_numbers(hospital: World) -> None:
    envs = gym.make_vec(ENV_ID, num_envs=2, world=hospital)
    expected = [_episode_of(seed, hospital) for seed in (7, 8)]
    observations, infos = envs.reset(seed=7)
    assert observations == tuple(starts[0][0] for starts in expected)
    assert list(infos["task"]) == [starts[0][1]["task"] for starts in expected]
    _, rewards, terminated, truncated, infos = envs.step(("FINISH([])", "GET /Patient?_count=1"))
    assert list(terminated) == [True, False] and not truncated.any() and not rewards.any()
    assert list(infos["_verdict"]) == [True, False]
    assert infos["verdict"]["success"][0] == False  # noqa: E712 - a NumPy boolean
    observations, rewards, terminated, _, infos = envs.step(("ignored", "FINISH([])"))
    assert observations[0] == expected[0][1][0]
    assert list(terminated) == [False, True]
    assert infos["variation"][0] == expected[0][1][1]["variation"]
    observations, *_ = envs.step(("GET /Patient?_count=1", "ignored"))
    assert observations[0].startswith("HTTP 200")
    assert observations[1] == expected[1][1][0]
    envs.close()


def test_same_step_autoreset_keeps_the_end_in_info(hospital: World) -> None:
    envs = gym.make_vec(ENV_ID, num_envs=2, world=hospital, autoreset_mode="SameStep")
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    envs.reset(seed=7)
    observations, _, terminated, _, infos = envs.step(FINISH)
    assert terminated.all()
    assert observations == tuple(_episode_of(seed, hospital)[1][0] for seed in (7, 8))
    assert list(infos["final_obs"]) == ["The episode is over."] * 2
    assert not infos["final_info"]["success"].any()
    envs.close()


def test_with_disabled_autoreset_the_caller_resets(hospital: World) -> None:
    envs = gym.make_vec(ENV_ID, num_envs=2, world=hospital, autoreset_mode="Disabled")
    envs.reset(seed=7)
    envs.step(("FINISH([])", "hello"))
    observations, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    assert observations[0] == _episode_of(7, hospital)[1][0]
    assert observations[1].startswith("Invalid action")
    envs.close()


@pytest.mark.parametrize(
    ("mode", "vector_kwargs"), [("sync", {}), ("async", {"shared_memory": False, "context": "spawn"})]
)
def test_gymnasiums_own_vector_envs_agree_with_ours(mode: str, vector_kwargs: dict[str, Any]) -> None:
    ours = gym.make_vec(ENV_ID, num_envs=2)
    theirs = gym.make_vec(ENV_ID, num_envs=2, vectorization_mode=mode, vector_kwargs=vector_kwargs)
    assert ours.reset(seed=3)[0] == theirs.reset(seed=3)[0]
    for actions in (("GET /Patient?_count=2", "hello"), FINISH, ("", ""), ("GET /Slot?_count=1", "GET /nothing")):
        mine, other = ours.step(actions), theirs.step(actions)
        assert mine[0] == other[0]
        for left, right in zip(mine[1:4], other[1:4], strict=True):
            assert (left == right).all()
        assert mine[4].keys() == other[4].keys()
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("mode", "autoreset"),
    [
        *(("sync", autoreset) for autoreset in AutoresetMode),
        pytest.param("async", AutoresetMode.DISABLED, marks=pytest.mark.slow),
    ],
)
def test_every_mode_resets_alike(mode: str, autoreset: AutoresetMode) -> None:
    settings: dict[str, Any] = {"autoreset_mode": autoreset}
    if mode == "async":
        settings |= {"shared_memory": False, "context": "spawn"}
    ours = gym.make_vec(f"fhir_gym:{ENV_ID}", num_envs=2, autoreset_mode=autoreset)
    theirs = gym.make_vec(f"fhir_gym:{ENV_ID}", num_envs=2, vectorization_mode=mode, vector_kwargs=settings)
    assert ours.metadata["autoreset_mode"] is theirs.metadata["autoreset_mode"] is autoreset
    ends = np.array([True, False])
    for envs in (ours, theirs):
        envs.reset(seed=3)
        envs.step(("FINISH([])", "hello"))
        if autoreset is AutoresetMode.DISABLED:
            envs.reset(options={"reset_mask": ends})
    mine, other = (envs.step(("GET /Patient?_count=1", "GET /Slot?_count=1")) for envs in (ours, theirs))
    assert mine[0] == other[0]
    assert list(mine[4]["step"]) == list(other[4]["step"])
    assert ours.spec is not None and theirs.spec is not None and ours.spec.id == theirs.spec.id
    ours.close()
    theirs.close()


def test_gymnasiums_own_step_limit_holds(hospital: World) -> None:
    envs = FHIRVectorEnv(ENV_ID, num_envs=2, max_episode_steps=1, world=hospital)
    envs.reset(seed=0)
    assert envs.step(("hello", "hello"))[3].all()
    envs.close()


def test_vector_statistics_wrapper_fits(hospital: World) -> None:
    envs = gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec(ENV_ID, num_envs=2, world=hospital))
    envs.reset(seed=0)
    infos = envs.step(FINISH)[4]
    assert list(infos["episode"]["l"]) == [1, 1]
    envs.close()


def test_envs_do_not_see_each_others_writes(hospital: World) -> None:
    envs = gym.make_vec(ENV_ID, num_envs=2, world=hospital)
    envs.reset(seed=0)
    create = 'POST /Patient\n{"resourceType": "Patient", "name": [{"family": "Solo"}]}'
    envs.step((create, "GET /Patient?_count=1"))
    observations, *_ = envs.step(("GET /Patient?family=Solo", "GET /Patient?family=Solo"))
    assert '"total":1' in observations[0]
    assert '"total":0' in observations[1]
    envs.close()


def test_a_running_server_serves_one_env() -> None:
    with pytest.raises(FhirGymError, match="each environment needs a FHIR server of its own"):
        FHIRVectorEnv(ENV_ID, num_envs=2, fhir_server="http://localhost:1/fhir")


def test_each_env_has_a_server_of_its_own(hospital: World) -> None:
    with serving(hospital) as first, serving(hospital) as second:
        urls = [first, second]
        envs = gym.make_vec(ENV_ID, num_envs=2, world=hospital, tasks="02a", fhir_server=urls)
        observations, _ = envs.reset(seed=0)
        assert [url in text for url, text in zip(urls, observations, strict=True)] == [True, True]
        envs.close()
        with pytest.raises(FhirGymError, match="an episode runs on one FHIR server, not on 2"):
            gym.make(ENV_ID, world=hospital, fhir_server=urls)


def test_shared_memory_is_refused_with_a_helpful_error() -> None:
    with pytest.raises(WrongTypeError, match=r'vector_kwargs=\{"shared_memory": False\}'):
        gym.make_vec(ENV_ID, num_envs=2, vectorization_mode="async")


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_a_step_limit_is_graded_in_every_mode(mode: str, hospital: World) -> None:
    envs = gym.make_vec(ENV_ID, num_envs=2, vectorization_mode=mode, world=hospital, max_episode_steps=1)
    envs.reset(seed=0)
    _, _, _, truncated, infos = envs.step(("GET /Patient?_count=1", "hello"))
    assert truncated.all()
    assert infos["_verdict"].all()
    envs.close()


@pytest.mark.parametrize("actions", ["FINISH([])", ["FINISH([])"], None, ["a", "b", "c"]])
def test_each_env_needs_a_text(actions: Any, hospital: World) -> None:
    envs = gym.make_vec(ENV_ID, num_envs=2, world=hospital)
    envs.reset(seed=0)
    with pytest.raises(WrongTypeError, match="a list of 2 actions"):
        envs.step(actions)
    envs.close()


def test_envs_use_the_training_split_by_default(hospital: World) -> None:
    envs = FHIRVectorEnv(ENV_ID, num_envs=2, world=hospital)
    assert envs.get_attr("variations") == (range(1_000), range(1_000))
    envs.close()
