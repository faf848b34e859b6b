"""The worlds that the viewer opens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fhir_gym import worlds
from fhir_gym.errors import UnknownNameError, WorldError
from fhir_gym.rollouts.record import WorldRecord
from fhir_gym.web.world_store import WorldStore


def test_worlds_are_opened_once_and_by_any_thread() -> None:
    worlds.load("empty").close()  # builds it
    with WorldStore() as store, ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(store.open, ["empty"] * 8))
        assert len({id(world) for world in opened}) == 1 and "empty" in store.names()


@pytest.mark.parametrize("name", ["nothing", "", "../empty", "/etc/passwd"])
def test_unknown_names_and_paths_are_errors(name: str) -> None:
    with WorldStore() as store, pytest.raises(UnknownNameError):
        store.open(name)


def test_a_path_of_a_world_is_not_a_name(tmp_path: Path) -> None:
    path = worlds.build("empty", tmp_path / "w.sqlite")
    with WorldStore() as store, pytest.raises(UnknownNameError):
        store.open(str(path))


def test_the_world_of_a_record_is_found_by_its_content(tmp_path: Path) -> None:
    given = worlds.load(worlds.build("empty", tmp_path / "w.sqlite"))
    content = given.manifest.content_hash
    with WorldStore([given]) as store:
        assert store.of_record(WorldRecord(name="empty", hash=content)) is given
        assert store.of_record(WorldRecord(name="another name", hash=content)) is given
        with pytest.raises(WorldError, match="the world empty of this episode has other content here"):
            store.of_record(WorldRecord(name="empty", hash="x"))
        with pytest.raises(WorldError, match="the world gone of this episode is not installed"):
            store.of_record(WorldRecord(name="gone", hash="x"))
