"""Parts of runs on Ray clusters that need no Ray; `tests/integrations/test_ray.py` runs episodes on a cluster."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.agents import GoldAgent
from fhir_gym.errors import FhirGymError, InfraError, MissingExtraError
from fhir_gym.fhir import World
from fhir_gym.rollouts import RayCluster, plan, run
from fhir_gym.rollouts.ray_cluster import EpisodeActor, Shipment, cause_of

ENV_ID = "FHIRAgent/Appointment-v0"


@pytest.fixture
def shipment(hospital: World) -> Shipment:
    chosen = plan(ENV_ID, tasks="01", variations="0-1", world=hospital)
    return Shipment.of(chosen, GoldAgent(), hospital, pickle.dumps)


def test_an_actor_runs_episodes_of_what_it_receives(shipment: Shipment, hospital: World) -> None:
    actor = EpisodeActor()
    assert actor.prepare(version("fhir-gym"), pickle.dumps(shipment))
    chosen = plan(ENV_ID, tasks="01", variations="0-1")
    found = [actor.work(episode) for episode in chosen.episodes]
    expected = [*run(ENV_ID, "gold", tasks="01", variations="0-1", world=hospital)]
    assert [record.line(timings=False) for record in found] == [record.line(timings=False) for record in expected]


def test_an_actor_says_that_its_machine_lacks_the_world(
    shipment: Shipment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FHIR_GYM_CACHE", str(tmp_path))
    elsewhere = replace(shipment, world_path=tmp_path / "elsewhere.sqlite")
    assert not EpisodeActor().prepare(version("fhir-gym"), pickle.dumps(elsewhere))


def test_an_actor_has_the_files_of_the_config(shipment: Shipment, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text("[]")
    config = replace(shipment.plan.config, task_file=tmp_path / "tasks.json")
    sent = Shipment.of(replace(shipment.plan, config=config), GoldAgent(), _world(shipment), pickle.dumps)
    (tmp_path / "tasks.json").unlink()
    actor = EpisodeActor()
    assert actor.prepare(version("fhir-gym"), pickle.dumps(sent))
    assert Path(str(actor.plan.config.task_file)).read_text() == "[]"


def _world(shipment: Shipment) -> World:
    return World.open(shipment.world_path)


@pytest.mark.parametrize(
    ("package_version", "packed", "message"),
    [
        ("0.0.9", b"", "a Ray node has fhir_gym .*: install version 0.0.9"),
        (None, b"cnot_installed\nAgent\n.", "cannot load the agent or the tasks .*No module named 'not_installed'"),
    ],
)
def test_a_node_that_lacks_something_is_a_clear_error(package_version: str | None, packed: bytes, message: str) -> None:
    with pytest.raises(InfraError, match=message):
        EpisodeActor().prepare(package_version or version("fhir-gym"), packed)


def test_without_ray_the_error_names_the_extra(hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[ray\]'"):
        run(ENV_ID, "gold", world=hospital, workers="ray")


@pytest.mark.parametrize("address", ["", "cluster", "http://h:1", "h:port", "h:1\n", "ray://h", "h:1:2"])
def test_wrong_addresses_are_refused(address: str) -> None:
    with pytest.raises(FhirGymError, match="the address of a Ray cluster is auto, local, HOST:PORT or ray://HOST:PORT"):
        RayCluster(address)


@pytest.mark.parametrize("wrong", [{"actors": 0}, {"actors": 1.5}, {"cpus": 0}, {"cpus": float("nan")}])
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FhirGymError, match=next(iter(wrong))):
        RayCluster(**wrong)


@pytest.mark.parametrize("address", [None, "auto", "local", "head.example:6379", "ray://10.0.0.1:10001", "[::1]:6379"])
def test_addresses_of_clusters(address: str | None) -> None:
    assert RayCluster(address).address == address


def test_a_cluster_cannot_share_a_running_server() -> None:
    with pytest.raises(FhirGymError, match="one episode at a time"):
        run(ENV_ID, "gold", fhir_server="http://127.0.0.1:9/fhir", workers="ray")


def test_the_cause_is_the_last_line_of_rays_message() -> None:
    assert cause_of(ValueError("ray::Actor()\n  File x\nImportError: no\n\n")) == "ImportError: no"
    assert cause_of(ValueError()) == "ValueError"
