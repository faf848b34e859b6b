"""What remains in the cache and world folders after builds are replaced, removed, refused or killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fhir_gym import processes, worlds
from fhir_gym.errors import ArgumentError, UnknownNameError, WorldError
from fhir_gym.worlds import cache
from fhir_gym.worlds.cache import VARIABLE
from fhir_gym.worlds.catalogue import RECIPES, cached_path
from tests.worlds.test_processes import locked_by_another_process


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for one test."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_swept", set())
    return tmp_path / "cache"


def source(folder: Path, *ids: str, name: str = "p.ndjson") -> Path:
    folder.mkdir(exist_ok=True)
    resources = [{"resourceType": "Patient", "id": id} for id in ids]
    bundle = {
        "resourceType": "Bundle",
        "type": "collection",
        "entry": [{"resource": resource} for resource in resources],
    }
    rows = [bundle] if name.endswith(".json") else resources
    (folder / name).write_text("\n".join(map(json.dumps, rows)))
    return folder


def dead() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("own_place", [True, False])
def test_a_world_is_replaced_only_if_asked(tmp_path: Path, own_place: bool) -> None:
    where: dict[str, Any] = {"out": tmp_path / "w.sqlite"} if own_place else {"name": "ward"}
    worlds.import_files(source(tmp_path / "one", "a"), **where).close()
    with pytest.raises(WorldError, match=r"already exists; replace it with --replace"):
        worlds.import_files(source(tmp_path / "two", "b"), **where)
    with worlds.load(where.get("out", "ward")) as world:
        assert world.ids("Patient") == ["a"]
    with worlds.import_files(tmp_path / "two", replace=True, **where) as world:
        assert world.ids("Patient") == ["b"]


def test_files_that_are_not_worlds_are_never_replaced(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("all of it")
    with pytest.raises(WorldError, match="is not a world"):
        worlds.import_files(source(tmp_path / "one", "a"), out=thesis, replace=True)
    with pytest.raises(WorldError, match="is not a world"):
        worlds.build("empty", thesis)
    assert thesis.read_text() == "all of it"


@pytest.mark.parametrize("name", ["two words", "a/b", "..", "new\nline", "\x1b[2J", "é", "x" * 101, "-x"])
def test_a_name_is_a_name_wherever_the_file_goes(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="invalid world name"):
        worlds.import_files(source(tmp_path / "one", "a"), out=tmp_path / "w.sqlite", name=name)
    with pytest.raises(ArgumentError, match="invalid world name"):
        worlds.remove(name)


def test_an_imported_world_is_removed_with_its_leftovers(tmp_path: Path, folder: Path) -> None:
    worlds.import_files(source(tmp_path / "one", "a"), name="ward").close()
    pages = folder / "imported" / ".ward.sqlite.spool"
    pages.mkdir()
    (pages / "Patient.ndjson").write_text("{}\n")
    assert worlds.cached_world("ward").bytes > 1000
    worlds.remove("ward")
    assert list((folder / "imported").iterdir()) == []
    with pytest.raises(UnknownNameError, match="ward"):
        worlds.remove("ward")


def test_a_generated_world_is_removed_in_all_its_versions_and_built_again(folder: Path) -> None:
    worlds.load("empty").close()
    path = cached_path(RECIPES["empty"])
    older = path.with_name("empty-7-g0-f1-0.0.1.sqlite")
    other = path.with_name("empty-mini-0-g1-f1-0.0.1.sqlite")
    for file in (older, other):
        file.write_bytes(b"")
    assert set(worlds.remove("empty").files) == {path, older}
    assert [file for file in path.parent.iterdir() if file.suffix == ".sqlite"] == [other]
    with worlds.load("empty") as world:
        assert world.manifest.total == 0


def test_the_format_of_a_folder_is_recognised(tmp_path: Path) -> None:
    assert worlds.format_of(source(tmp_path / "bulk", "a")) == "ndjson"
    (tmp_path / "bulk" / "manifest.json").write_text('{"transactionTime": "2023-01-01T00:00:00Z"}')
    assert worlds.format_of(tmp_path / "bulk") == "ndjson", "a bulk export has a manifest"
    assert worlds.format_of(source(tmp_path / "synthea", "a", name="b.json")) == "bundles"
    assert worlds.format_of(tmp_path / "synthea" / "b.json") == "bundles"
    (tmp_path / "export.txt").touch()
    assert worlds.format_of(tmp_path / "export.txt") == "ndjson"
    source(tmp_path / "bulk", "b", name="b.json")
    with pytest.raises(WorldError, match=r"1 \.ndjson files \(p\.ndjson\) and 1 Bundles in \.json files \(b\.json\)"):
        worlds.format_of(tmp_path / "bulk")
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "readme.txt").touch()
    with pytest.raises(WorldError, match=r"it has no \.ndjson or \.json file; found 1 \.txt"):
        worlds.format_of(tmp_path / "else")
    with pytest.raises(WorldError, match="no such file or folder"):
        worlds.format_of(tmp_path / "absent")


def test_a_refused_connection_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="cannot reach"):
        worlds.import_server("http://127.0.0.1:1/fhir", out=tmp_path / "new" / "folder" / "w.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_opening_any_world_removes_leftovers_of_killed_builds(folder: Path) -> None:
    """Leftovers of older versions are removed, but files of a running build are not."""
    built = folder / "worlds"
    built.mkdir(parents=True)
    left = [built / f".cohort-0-g1-f1-0.0.1.sqlite.99.{ending}" for ending in ("partial", "scratch")]
    running = built / ".cohort-0-g2-f1-0.0.1.sqlite.99.partial"
    for file in (*left, running):
        file.write_bytes(b"half")
    with locked_by_another_process(built / "cohort-0-g2-f1-0.0.1.sqlite"):
        worlds.load("empty").close()
    assert [file for file in (*left, running) if file.exists()] == [running]


def test_the_next_build_of_a_file_removes_leftovers_of_a_killed_one(tmp_path: Path) -> None:
    path = tmp_path / "w.sqlite"
    left = tmp_path / f".w.sqlite.{dead()}.partial"
    others = [tmp_path / f".w.sqlite.{os.getppid()}.partial", tmp_path / f".v.sqlite.{dead()}.partial"]
    for file in (left, *others):
        file.write_bytes(b"half")
    worlds.build("empty", path)
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_temporary_folders_of_killed_processes_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, used = tmp_path / f"fhir-gym-{dead()}-x", tmp_path / f"fhir-gym-{os.getppid()}-x"
    for path in (left, used):
        path.mkdir()
        (path / "tasks.json").touch()
    with processes.temporary_folder() as folder:
        assert folder.parent == tmp_path and not left.exists() and used.exists()
    assert not folder.exists()
