"""Start states that environments keep: the same episodes, within a bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest

from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.envs import FHIREnv
from fhir_gym.episode import Episode
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import Request, World
from fhir_gym.tasks import Variation, get_task, task_set
from fhir_gym.tasks.core.variation import LoadedResources, variation_cache

PACK = "FHIRAgent/Appointment-v0"
PACKS = (PACK, "FHIRAgent/GeneticTesting-v0", "FHIRAgent/MedAgentBench-v0")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert not variation_cache.keeps_start_states  # every environment was closed


@pytest.fixture
def reserved() -> Iterator[None]:
    """Keep start states."""
    variation_cache.reserve(100)
    yield
    variation_cache.release(100)


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
    expected = {}
    for task in task_set(env_id):
        with Episode(env_id, task=task, variation=3, world=hospital) as episode:
            expected[task] = (_play(episode, hospital), episode.variation)
    variation_cache.clear()
    variation_cache.reserve(100)
    for task in task_set(env_id):
        for _ in range(3):
            with Episode(env_id, task=task, variation=3, world=hospital) as episode:
                assert (_play(episode, hospital), _plain(episode.variation)) == expected[task]
        assert isinstance(episode.variation.setup, LoadedResources)
    variation_cache.release(100)


def _plain(variation: Variation) -> Variation:
    return replace(variation, setup=tuple(variation.setup))


@pytest.mark.usefixtures("reserved")
def test_a_changed_copy_is_loaded_as_it_is(hospital: World) -> None:
    task = get_task(PACK, "02a")
    for _ in range(2):
        task.variation(0, hospital).open_session(hospital).close()
    variation = task.variation(0, hospital)
    first = variation.setup[0]
    with replace(variation, setup=[first]).open_session(hospital) as session:
        assert [(change.resource_type, change.id) for change in session.changes()] == [
            (first["resourceType"], first["id"])
        ]


def test_writes_are_undone(hospital: World) -> None:
    env = FHIREnv(PACK, world=hospital, prepared=8)
    seen = []
    for variation in (1, 2, 1, 2):
        env.reset(options={"task": "14a", "variation": variation})
        created = env.step('POST /Patient\n{"resourceType": "Patient", "active": true}')[0]
        seen.append((created, env.step("GET /Patient?_count=50&_sort=-_lastUpdated")[0]))
    assert seen[:2] == seen[2:]
    env.close()


def _kept(keys: str, hospital: World) -> list[int]:
    """Return the variations of a task that are in memory."""
    task = get_task(PACK, keys)
    content = hospital.manifest.content_hash
    return [k for k in range(60) if (task, k, content, hospital.now) in variation_cache]


def test_the_number_is_bounded(hospital: World) -> None:
    env, other = (FHIREnv(PACK, world=hospital, prepared=prepared) for prepared in (40, 5))
    for variation in range(50):
        env.reset(options={"task": "01", "variation": variation})
    assert _kept("01", hospital) == [*range(10, 50)]
    env.close()
    assert _kept("01", hospital) == [*range(18, 50)]  # the number without a reservation
    other.close()


def test_large_start_states_are_kept_only_if_they_are_reserved(
    hospital: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fhir_gym.tasks.core.variation._RESOURCES", 1)
    env = FHIREnv(PACK, world=hospital, prepared=3)
    for variation in range(5):
        env.reset(options={"task": "02a", "variation": variation})
    assert _kept("02a", hospital) == [2, 3, 4]
    env.close()
    assert _kept("02a", hospital) == [4]


def test_a_start_state_is_small(hospital: World) -> None:
    env = FHIREnv(PACK, world=hospital, prepared=1000)
    for task in env.tasks:
        for variation in (0, 1, 0, 1):
            env.reset(options={"task": task, "variation": variation})
    assert 0 < variation_cache.size / len(variation_cache) < 64 * 1024
    env.close()


def test_environments_of_one_process_share_start_states(hospital: World) -> None:
    envs = gym.make_vec(PACK, num_envs=2, world=hospital, tasks="02a", prepared=4)
    envs.reset(options={"variation": 4})
    assert _kept("02a", hospital) == [4]
    assert variation_cache.size > 0
    envs.close()


def test_an_environment_without_the_argument_keeps_no_start_state(hospital: World) -> None:
    env = FHIREnv(PACK, world=hospital)
    env.reset(seed=0)
    assert (len(variation_cache), variation_cache.size) == (1, 0)
    env.close()


def test_an_environment_that_is_not_closed_releases_its_start_states(hospital: World) -> None:
    env = FHIREnv(PACK, world=hospital, prepared=4)
    env.reset(seed=0)
    assert variation_cache.keeps_start_states
    del env


@pytest.mark.parametrize("wrong", [-1, 1.5, "many"])
def test_wrong_numbers_are_refused(hospital: World, wrong: Any) -> None:
    with pytest.raises(FhirGymError, match="prepared"):
        FHIREnv(PACK, world=hospital, prepared=wrong)


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
        for other_session in (session, other, third):
            if other_session is not session:
                other_session.load_snapshot(snapshot)
            assert len(other_session.search("Basic", created="2020-01-01")) == len(loaded)
