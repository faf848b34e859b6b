"""The store: atomic world files, and overlays."""

from __future__ import annotations

import pickle
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fhir_gym.errors import WorldError
from fhir_gym.fhir import World, WorldBuilder
from fhir_gym.types import Resource

NOW = datetime(2023, 11, 13, 10, 15, tzinfo=UTC)


def patient(id: str, family: str = "Chen") -> Resource:
    return {"resourceType": "Patient", "id": id, "name": [{"family": family}]}


def build(path: Path, *resources: Resource) -> World:
    with WorldBuilder(path, name="test", seed=None, now=NOW) as builder:
        for resource in resources:
            builder.add(resource)
    return World.open(path)


def test_a_world_holds_the_added_resources(tmp_path: Path) -> None:
    with build(tmp_path / "w.sqlite", patient("B"), patient("A"), patient("7000")) as world:
        assert world.ids("Patient") == ["B", "A", "7000"]
        assert world.manifest.counts == {"Patient": 3}
        assert world.manifest.next_id == 7001
        read = world.read("Patient", "B")
        assert read is not None
        assert list(read["meta"]) == ["versionId", "lastUpdated"] and read["meta"]["versionId"] == "1"
        assert "2018-11-13" < read["meta"]["lastUpdated"] < "2023-11-13T10:15:00.000+00:00"
        assert list(read)[:3] == ["resourceType", "id", "meta"]
        assert world.read("Patient", "C") is None
        assert [p["id"] for p in world.search("Patient", family="chen")] == ["B", "A", "7000"]


def test_the_same_resources_give_the_same_file(tmp_path: Path) -> None:
    world = build(tmp_path / "1.sqlite", patient("A"), patient("B"))
    two = build(tmp_path / "2.sqlite", patient("A"), patient("B"))
    other = build(tmp_path / "3.sqlite", patient("B"), patient("A"))
    assert world.manifest == two.manifest
    assert world.path.read_bytes() == two.path.read_bytes()
    assert other.manifest.content_hash != world.manifest.content_hash


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), WorldBuilder(tmp_path / "w.sqlite", name="x", seed=0, now=NOW) as builder:
        builder.add(patient("A"))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_duplicates_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="Patient/A"):
        build(tmp_path / "w.sqlite", patient("A"), patient("B"), patient("A"))
    assert list(tmp_path.iterdir()) == []


def test_a_naive_now_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="time zone"):
        WorldBuilder(tmp_path / "w.sqlite", name="x", seed=0, now=datetime(2023, 11, 13))


@pytest.mark.parametrize("damage", ["absent", "text", "foreign", "cut", "format", "folder"])
def test_an_invalid_world_file_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "w.sqlite"
    if damage == "text":
        path.write_text("hello")
    elif damage == "foreign":
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE t(x)")
        db.close()
    elif damage == "folder":
        path.mkdir()
    elif damage in ("cut", "format"):
        build(path, patient("A")).close()
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:-5000])
        else:
            db = sqlite3.connect(path)
            db.execute("PRAGMA user_version=99")
            db.close()
    with pytest.raises(WorldError) as caught:
        World.open(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_world_pickles_as_its_path(tmp_path: Path) -> None:
    with build(tmp_path / "w.sqlite", patient("A")) as world, pickle.loads(pickle.dumps(world)) as again:
        assert again.manifest == world.manifest
        assert again.read("Patient", "A") == world.read("Patient", "A")


def test_an_update_keeps_the_place_in_creation_order(tmp_path: Path) -> None:
    with build(tmp_path / "w.sqlite", *map(patient, "ABC")) as world, world.session() as session:
        session.load([patient("B", "New"), patient("D", "New")])
        assert [p["id"] for p in session.search("Patient")] == ["A", "B", "C", "D"]
        assert [p["id"] for p in session.search("Patient", family="new")] == ["B", "D"]
        assert [p["id"] for p in session.search("Patient", family="chen")] == ["A", "C"]
        assert [p["id"] for p in world.search("Patient", family="chen")] == ["A", "B", "C"]


def test_savepoints_nest_and_undo(tmp_path: Path) -> None:
    world = build(tmp_path / "w.sqlite", patient("A"))
    with world.session() as session:
        first = session.checkpoint()
        session.load([patient("B")])
        second = session.checkpoint()
        session.load([patient("C"), patient("A", "Changed")])
        kinds = [(change.kind, change.id) for change in session.changes(first)]
        assert kinds == [("created", "B"), ("created", "C"), ("updated", "A")]
        updated = session.changes(second)[1]
        assert updated.before is not None
        assert updated.after is not None
        assert updated.before["name"] == [{"family": "Chen"}]
        assert updated.after["name"] == [{"family": "Changed"}]
        session.rollback(second)
        assert [p["id"] for p in session.search("Patient")] == ["A", "B"]
        assert session.changes(second) == []
        session.rollback(first)
        assert [p["id"] for p in session.search("Patient")] == ["A"]
        with pytest.raises(ValueError, match="gone"):
            session.rollback(second)
        session.rollback()
        assert session.changes() == []
