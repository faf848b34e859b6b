"""Start states that environments keep: the same episodes, within a bound."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv

from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.envs import FHIREnv
from fhir_gym.episode import Episode
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import Request, World
from fhir_gym.start_states import PackedResources, StartState, StartStates, shared_start_states
from fhir_gym.tasks import get_task, task_set

PACK = "FHIRAgent/Appointment-v0"
PACKS = (PACK, "FHIRAgent/GeneticTesting-v0", "FHIRAgent/MedAgentBench-v0")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert len(shared_start_states) == 0  # every environment was closed


def _play(episode: Episode, world: World) -> list[object]:
    """Play the reference solution and return everything that an agent or trainer sees."""
    observation = episode.start()
    agent = GoldAgent()
    context = EpisodeContext(
        episode.config.env_id, episode.task.key, episode.info()["variation"], world, 0, 0, observation
    )
    agent.reset(observation, context)
    seen: list[object] = [observation]
    done = False
    while not done:
        step = episode.step(agent.act(observation))
        observation, done = step.observation, step.done
        seen.append((observation, step.reward, step.info))
    return seen


@pytest.mark.parametrize("env_id", PACKS)
def test_kept_start_states_give_the_same_episodes(env_id: str, hospital: World) -> None:
    kept = StartStates()
    kept.reserve(100)
    for task in task_set(env_id):
        rounds = []
        for states in (None, kept, kept, kept):
            with Episode(env_id, task=task, variation=3, world=hospital, start_states=states) as episode:
                rounds.append(_play(episode, hospital))
                repeated = episode.variation
        assert rounds[0] == rounds[1] == rounds[2] == rounds[3]
        drawn = get_task(env_id, task).variation(3, hospital)
        assert replace(repeated, setup=tuple(repeated.setup)) == drawn
    assert len(kept) == len(task_set(env_id))


def test_writes_are_undone(hospital: World) -> None:
    env = FHIREnv(PACK, world=hospital, prepared=8)
    seen = []
    for variation in (1, 2, 1, 2):
        env.reset(options={"task": "14a", "variation": variation})
        env._episodes.clear()  # so that the next reset needs the start state
        created = env.step('POST /Patient\n{"resourceType": "Patient", "active": true}')[0]
        seen.append((created, env.step("GET /Patient?_count=50&_sort=-_lastUpdated")[0]))
    assert seen[:2] == seen[2:]
    env.close()


def test_the_number_is_bounded(hospital: World) -> None:
    env = FHIREnv(PACK, world=hospital, prepared=5)
    for variation in range(12):
        env.reset(options={"task": "01", "variation": variation})
    task = env.config.task_set()["01"]
    assert len(shared_start_states) == 5
    assert [k for k in range(12) if shared_start_states.find(task, k, None, hospital)] == [7, 8, 9, 10, 11]
    env.close()


def test_a_start_state_is_small(hospital: World) -> None:
    env = FHIREnv(PACK, world=hospital, prepared=1000)
    for task in env.tasks:
        for variation in (0, 0, 1, 1):
            env.reset(options={"task": task, "variation": variation})
    assert shared_start_states.size / len(shared_start_states) < 64 * 1024
    env.close()


def test_environments_of_one_process_share_start_states(hospital: World) -> None:
    def make(prepared: int) -> FHIREnv:
        return FHIREnv(PACK, world=hospital, tasks="02a", prepared=prepared)

    envs = SyncVectorEnv([lambda: make(10), lambda: make(3)])
    envs.reset(options={"variation": 4})
    assert len(shared_start_states) == 1
    envs.envs[0].close()
    alone = envs.envs[1]
    for variation in range(6):
        alone.reset(options={"variation": variation})
    assert len(shared_start_states) == 3
    envs.close()


def test_a_vector_environment_takes_the_argument(hospital: World) -> None:
    envs = gym.make_vec(PACK, num_envs=2, world=hospital, prepared=4)
    envs.reset(options={"task": "01", "variation": 0})
    assert len(shared_start_states) == 1
    envs.close()


def test_an_environment_without_the_argument_keeps_none(hospital: World) -> None:
    env = FHIREnv(PACK, world=hospital)
    env.reset(seed=0)
    assert len(shared_start_states) == 0
    env.close()


def test_an_environment_that_is_not_closed_releases_its_start_states(hospital: World) -> None:
    env = FHIREnv(PACK, world=hospital, prepared=4)
    env.reset(seed=0)
    del env


@pytest.mark.parametrize("wrong", [-1, 1.5, "many"])
def test_wrong_numbers_are_refused(hospital: World, wrong: Any) -> None:
    with pytest.raises(FhirGymError, match="prepared"):
        FHIREnv(PACK, world=hospital, prepared=wrong)


def test_parameters_that_cannot_be_pickled_are_not_kept(hospital: World) -> None:
    variation = get_task(PACK, "01").variation(0, hospital)
    local: Any = type("Local", (type(variation.params),), {})
    odd = replace(variation, params=local.model_construct(**dict(variation.params)))
    with variation.open_session(hospital) as session:
        assert StartState.of(odd, session) is None


def test_snapshots_need_loads_only(hospital: World) -> None:
    variation = get_task(PACK, "02a").variation(0, hospital)
    with variation.open_session(hospital) as session:
        snapshot = session.snapshot()
        with pytest.raises(ValueError, match="without writes"):
            session.load_snapshot(snapshot)
        headers = {"content-type": "application/fhir+json"}
        session.handle(Request("POST", "/Patient", headers=headers, body=b'{"resourceType": "Patient"}'))
        with pytest.raises(ValueError, match="without requests"):
            session.snapshot()


def test_snapshots_hold_many_resources(hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.fhir.session._BATCH", 500)
    monkeypatch.setattr("fhir_gym.fhir.store.store._MANY", 500)
    loaded = [{"resourceType": "Basic", "id": f"b{n}", "created": "2020-01-01"} for n in range(700)]
    with hospital.session() as session, hospital.session() as other, hospital.session() as third:
        session.load(loaded)
        snapshot = session.snapshot()
        for one in (session, other, third):
            if one is not session:
                one.load_snapshot(snapshot)
            assert len(one.search("Basic", created="2020-01-01")) == len(loaded)


def test_packed_resources_are_a_sequence() -> None:
    resources = PackedResources(pickle.dumps([{"id": "1"}, {"id": "2"}]))
    assert (len(resources), resources[1], list(resources[:1])) == (2, {"id": "2"}, [{"id": "1"}])
    assert list(pickle.loads(pickle.dumps(resources))) == list(resources)
