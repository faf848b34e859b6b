"""Episodes on a remote FHIR server; here it is the embedded server behind HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import gymnasium as gym
import httpx
import pytest

from fhir_gym.episode import Episode
from fhir_gym.errors import InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.rollouts import run
from fhir_gym.testing import serving
from fhir_gym.types import Resource

ENV_ID = "FHIRAgent/Appointment-v0"


@pytest.fixture(scope="module")
def server(hospital: World) -> Iterator[str]:
    """The base URL of a server with the hospital world."""
    with serving(hospital) as url:
        yield url


def _total(server: str, query: str) -> int:
    return int(httpx.get(f"{server}/{query}").json()["total"])


@pytest.mark.parametrize("task", ["01", "02b", "11a", "15a"])
def test_gold_succeeds_and_idle_does_not(hospital: World, server: str, task: str) -> None:
    for agent, reward in (("gold", 1.0), ("idle", 0.0)):
        (rollout,) = run(ENV_ID, agent, tasks=task, variations=0, world=hospital, fhir_server=server)
        assert (rollout.stop_reason, rollout.reward) == ("finished", reward), rollout.error


def test_writes_of_an_episode_are_undone(hospital: World, server: str) -> None:
    before = _total(server, "Patient?_summary=count")
    with Episode(ENV_ID, task="01", world=hospital, fhir_server=server) as episode:
        assert episode.start().count(server) == 1
        prepared = _total(server, "Patient?_summary=count")
        created = episode.step('POST /Patient\n{"resourceType": "Patient", "name": [{"family": "Passing"}]}')
        assert created.info["status"] == 201
        assert _total(server, "Patient?family=Passing") == 1
        episode.start()
        assert _total(server, "Patient?family=Passing") == 0
        assert _total(server, "Patient?_summary=count") == prepared > before
    assert _total(server, "Patient?_summary=count") == before


def test_an_env_prepares_one_episode_at_a_time(hospital: World, server: str) -> None:
    before = _total(server, "Slot?_summary=count")
    env = gym.make(ENV_ID, world=hospital, fhir_server=server)
    for variation in range(3):
        env.reset(options={"task": "11a", "variation": variation})
    env.close()
    assert _total(server, "Slot?_summary=count") == before


def test_a_server_without_the_world_is_refused(empty_world: World, hospital: World) -> None:
    with serving(empty_world) as url, pytest.raises(InfraError, match="does not contain the world"):
        Episode(ENV_ID, task="01", world=hospital, fhir_server=url)


def test_a_server_that_refuses_the_start_state_is_an_infrastructure_failure(
    hospital: World, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: RemoteSession, resources: Iterable[Resource], **_: object) -> None:
        raise FhirError(422, "no set-up here")

    monkeypatch.setattr(RemoteSession, "load", refuse)
    with pytest.raises(InfraError, match="task 01, variation 0 cannot be prepared: no set-up here"):
        Episode(ENV_ID, task="01", world=hospital, fhir_server=server)
