"""Exported files contain the whole world and can be imported or posted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fhir_gym import worlds
from fhir_gym.errors import WorldError
from fhir_gym.fhir import Request, World
from fhir_gym.worlds.bundles import rewrite_references
from tests.worlds.linked_world import linked_resources, write_world


def _contents(world: World) -> list[bytes]:
    return sorted(world.resources())


def test_ndjson(tmp_path: Path) -> None:
    with write_world(tmp_path / "w", linked_resources()) as world:
        files = worlds.export(world, tmp_path / "out")
        assert [file.name for file in files] == ["Observation.ndjson", "Organization.ndjson", "Patient.ndjson"]
        with worlds.import_files(tmp_path / "out", out=tmp_path / "again", name="linked") as again:
            assert _contents(again) == _contents(world)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "out", "w"]


def test_transactions_can_be_posted_in_order(tmp_path: Path, empty_world: World) -> None:
    known: set[str] = set()
    told: list[tuple[int, int]] = []
    with write_world(tmp_path / "w", linked_resources()) as world, empty_world.session() as session:
        for file in worlds.export(
            world, tmp_path / "out", format="transaction", progress=lambda done, total: told.append((done, total))
        ):
            bundle = json.loads(file.read_bytes())
            known.update(entry["request"]["url"] for entry in bundle["entry"])
            rewrite_references(bundle, lambda target: target if target in known else pytest.fail(target))
            headers = {"content-type": "application/fhir+json"}
            assert session.handle(Request("POST", "", headers=headers, body=file.read_bytes())).status == 200
        assert len(known) == world.manifest.total == session.get("/Patient?_summary=count")["total"] + 9
        with worlds.import_files(tmp_path / "out", out=tmp_path / "again", name="linked") as again:
            assert _contents(again) == _contents(world)
    assert told[-1] == (len(known), len(known))


def test_an_existing_folder(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with write_world(tmp_path / "w", linked_resources()) as world:
        for name in ("full", "w"):
            with pytest.raises(WorldError, match="is not an empty folder"):
                worlds.export(world, tmp_path / name)
        with pytest.raises(WorldError, match="cannot export to"):
            worlds.export(world, tmp_path / "full" / "file" / "out")
