from __future__ import annotations

from pathlib import Path

import pytest

from fhir_gym.errors import WorldError
from fhir_gym.fhir import World
from fhir_gym.worlds.cache import find_copy, store_copy


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FHIR_GYM_CACHE", str(tmp_path / "cache"))


def test_a_copy_is_stored_once_and_found_again(tiny_world: World, tmp_path: Path) -> None:
    content_hash = tiny_world.manifest.content_hash
    elsewhere = tmp_path / "elsewhere.sqlite"
    assert find_copy(elsewhere, content_hash) is None
    content = tiny_world.path.read_bytes()
    with store_copy(content_hash, (content[:100], content[100:])) as stored:
        assert stored.manifest == tiny_world.manifest
        assert stored.path.read_bytes() == content
    with (
        store_copy(content_hash, map(_fail, [b""])),
        find_copy(elsewhere, content_hash) or pytest.fail("lost") as world,
    ):
        assert world.path == stored.path


def _fail(part: bytes) -> bytes:
    raise AssertionError("the cache has the world")


def test_a_shared_disk_needs_no_copy(tiny_world: World, tmp_path: Path) -> None:
    with find_copy(tiny_world.path, tiny_world.manifest.content_hash) or pytest.fail("not found") as world:
        assert world.path == tiny_world.path
    assert not (tmp_path / "cache").exists()


def test_another_world_at_the_same_path_is_not_used(tiny_world: World, empty_world: World) -> None:
    assert find_copy(empty_world.path, tiny_world.manifest.content_hash) is None


@pytest.mark.parametrize("content", [b"", b"no world"])
def test_a_damaged_transfer_is_an_error(content: bytes, tiny_world: World) -> None:
    with pytest.raises(WorldError, match="is not the world that was sent"):
        store_copy(tiny_world.manifest.content_hash, [content])
