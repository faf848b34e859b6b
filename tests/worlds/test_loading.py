"""Worlds by name and path: caching, determinism and error messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fhir_gym import worlds
from fhir_gym.errors import UnknownNameError, WorldError
from fhir_gym.fhir import World
from fhir_gym.types import Resource
from fhir_gym.worlds import catalogue, loading
from fhir_gym.worlds.cache import VARIABLE
from tests.worlds.full_disk import fill_after


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_built_on_first_use_then_opened(cache: Path) -> None:
    told: list[tuple[int, int]] = []
    assert not worlds.available()[0].built
    with worlds.load("hospital-small", progress=lambda done, total: told.append((done, total))) as world:
        total = world.manifest.total
        assert world.path.is_relative_to(cache.resolve())
        assert world.now.isoformat() == "2023-11-13T10:15:00+00:00"
        assert world.manifest.seed == 0
    assert told[0] == (0, total) and told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    told.clear()
    with worlds.load("hospital-small", progress=lambda done, total: told.append((done, total))) as again:
        assert again.manifest == world.manifest
    assert told == []
    assert worlds.available()[0].built


def test_a_build_without_progress_is_announced(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        worlds.load("empty").close()
    assert capsys.readouterr() == ("", "fhir_gym: building the world empty (once)\n")


def test_empty(empty_world: World) -> None:
    assert empty_world.manifest.total == 0
    assert empty_world.ids("Patient") == []


@pytest.mark.slow
def test_build_to_a_path_gives_the_same_content(tmp_path: Path, hospital: World) -> None:
    path = worlds.build("hospital-small", tmp_path / "deep" / "down" / "w.sqlite")
    with worlds.load(path) as world, worlds.load(str(path)) as same:
        assert world.manifest == same.manifest == hospital.manifest
    with World.open(worlds.build("hospital-small", tmp_path / "other.sqlite", seed=1)) as other:
        assert other.manifest.content_hash != hospital.manifest.content_hash
        assert other.manifest.seed == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["deep", "other.sqlite"]
    with pytest.raises(WorldError, match=r"other\.sqlite already exists; .* --overwrite"):
        worlds.build("empty", tmp_path / "other.sqlite")
    with World.open(worlds.build("empty", tmp_path / "other.sqlite", overwrite=True)) as replaced:
        assert replaced.manifest.total == 0


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'hospital-small'"):
        worlds.load("hospital-smal")
    with pytest.raises(UnknownNameError, match="unknown world 'hospital-big'"):
        worlds.build("hospital-big")


def test_paths_without_a_world(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="No such file"):
        worlds.load(tmp_path / "absent")
    with pytest.raises(WorldError, match="No such file"):
        worlds.load("absent.sqlite")
    with pytest.raises(WorldError, match="fhir-gym worlds import"):
        worlds.load(tmp_path)
    text = tmp_path / "text.sqlite"
    text.write_text("not a database at all, but long enough to have a header" * 3)
    with pytest.raises(WorldError, match="not a world file"):
        worlds.load(text)
    empty = tmp_path / "nothing.sqlite"
    empty.touch()
    with pytest.raises(WorldError, match="not a world file"):
        worlds.load(str(empty))
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE resource(id)")
    db.close()
    with pytest.raises(WorldError, match="foreign"):
        worlds.load(foreign)


def test_truncated_file(tmp_path: Path) -> None:
    path = worlds.build("hospital-small", tmp_path / "w.sqlite")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WorldError, match="damaged"):
        worlds.load(path)


def test_damaged_cache_is_built_again(cache: Path) -> None:
    with worlds.load("empty") as world:
        path, manifest = world.path, world.manifest
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="is damaged and is rebuilt"), worlds.load("empty") as again:
        assert again.manifest == manifest


def test_another_generator_version_is_another_file(cache: Path) -> None:
    recipe = catalogue.RECIPES["empty"]
    newer = worlds.Recipe("empty", "", recipe.version + 1, recipe.now, recipe.generate)
    assert catalogue.cached_path(newer) != catalogue.cached_path(recipe)


def test_leftovers_of_a_killed_build_are_swept(cache: Path) -> None:
    path = catalogue.cached_path(catalogue.RECIPES["empty"])
    path.parent.mkdir(parents=True)
    left = [path.with_name(f".{path.name}.99.partial"), path.with_name(f".{path.name}.99.scratch")]
    for file in left:
        file.write_bytes(b"half")
    worlds.load("empty").close()
    assert not any(file.exists() for file in left)


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    with pytest.raises(WorldError, match=VARIABLE):
        worlds.load("empty")


def test_target_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorldError, match="cannot write a world"):
        worlds.build("empty", tmp_path / "file" / "w.sqlite")
    with pytest.raises(WorldError, match="it is a folder"):
        worlds.build("empty", tmp_path)


@pytest.mark.parametrize("batches", [0, 3, 8])
def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    fill_after(batches, monkeypatch)
    with pytest.raises(WorldError, match="disk is full"):
        worlds.build("hospital-small", tmp_path / "w.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_full_disk_at_the_very_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(WorldError, match="No space left"):
        worlds.build("empty", tmp_path / "w.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_generator_leaves_nothing(tmp_path: Path) -> None:
    def resources() -> Iterator[Resource]:
        yield {"resourceType": "Patient", "id": "a"}
        raise KeyboardInterrupt

    now = catalogue.RECIPES["empty"].now
    with pytest.raises(KeyboardInterrupt):
        loading.write(tmp_path / "w.sqlite", resources(), name="x", seed=None, now=now)
    assert list(tmp_path.iterdir()) == []
