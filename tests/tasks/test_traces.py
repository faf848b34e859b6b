"""Ids, update times and history do not distinguish a start state's records from the world's own records."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean
from urllib.parse import urlencode

import pytest

from fhir_gym import worlds
from fhir_gym.fhir import Request, Session, World
from fhir_gym.tasks.core.ids import IdAllocator, UpdateTimes
from fhir_gym.types import Resource

NOW = datetime(2024, 5, 6, 12, tzinfo=UTC)
LOADED = datetime(2024, 5, 6, 9, tzinfo=UTC)
MANY = 40
JSON = {"content-type": "application/fhir+json"}


def on_hapi(number: int) -> Resource:
    """A resource like those of a HAPI export: one counter gives all ids, and all update times are within an hour."""
    updated = LOADED + timedelta(seconds=number * 1.5)
    return observation(str(1_000 + number), number) | {"meta": {"lastUpdated": updated.isoformat()}}


def of_synthea(number: int) -> Resource:
    """A resource like those of Synthea, with a random UUID and without an update time."""
    digits = f"{random.Random(number).getrandbits(128):032x}"
    return observation("-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))), number)


def of_a_sample(number: int) -> Resource:
    """A resource from a sample with two forms of ids; one form has no trailing number."""
    return observation(f"lab-{number}" if number % 3 else f"glucose-{'abcdefghij'[number % 10]}{number:03d}x", number)


def observation(id: str, number: int) -> Resource:
    taken = NOW - timedelta(hours=1 + 7 * number)
    return {
        "resourceType": "Observation",
        "id": id,
        "status": "final",
        "code": {"text": "GLU"},
        "effectiveDateTime": taken.isoformat(),
    }


IMPORTED = {"hapi": on_hapi, "synthea": of_synthea, "sample": of_a_sample}


@pytest.fixture(
    scope="module", params=["hospital-small", pytest.param("cohort-mini", marks=pytest.mark.slow), *IMPORTED]
)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    make = IMPORTED.get(request.param)
    if make is None:
        opened = worlds.load(request.param)
    else:
        folder: Path = tmp_path_factory.mktemp("imported")
        lines = [json.dumps(make(number)) for number in range(900)]
        (folder / "in.ndjson").write_text("\n".join(lines))
        opened = worlds.import_files(folder, out=folder / "w.sqlite", now=NOW)
    with opened:
        yield opened


def scene(world: World, seed: int = 0) -> list[Resource]:
    """Laboratory results of the past two years, as a task might add them."""
    rng = random.Random(seed)
    ids = IdAllocator(rng, world)
    found: list[Resource] = []
    for _ in range(MANY):
        taken = world.now - timedelta(minutes=rng.randrange(60, 730 * 24 * 60))
        resource = observation(ids.new("Observation"), 0) | {"effectiveDateTime": taken.isoformat()}
        found.append({**resource, "meta": {"lastUpdated": UpdateTimes(rng, world).of(resource)}})
    return found


@pytest.fixture
def loaded(world: World) -> Iterator[tuple[Session, set[str]]]:
    records = scene(world)
    with world.session() as session:
        session.load(records)
        yield session, {record["id"] for record in records}


def ranks(ids: list[str], mine: set[str]) -> list[float]:
    """The positions of the added records among all ids, from 0 (first) to 1 (last)."""
    found = [place / (len(ids) - 1) for place, id in enumerate(ids) if id in mine]
    assert len(found) == len(mine)
    return found


def scattered(ids: list[str], mine: set[str]) -> bool:
    """Whether the added records are spread over the list, neither clustered nor at an end."""
    found = ranks(ids, mine)
    return 0.15 < mean(found) < 0.85 and max(found) - min(found) > 0.4 and not set(ids[:20]) <= mine


@pytest.mark.parametrize("order", ["_id", "-_id", "_lastUpdated", "-_lastUpdated"])
def test_scene_records_are_scattered_in_sorted_searches(loaded: tuple[Session, set[str]], order: str) -> None:
    session, mine = loaded
    ids = [resource["id"] for resource in session.search("Observation", _sort=order)]
    assert len(ids) == session.world.manifest.counts["Observation"] + MANY
    assert scattered(ids, mine)


@pytest.mark.parametrize("path", ["/_history", "/Observation/_history"])
def test_scene_records_are_scattered_in_the_history(loaded: tuple[Session, set[str]], path: str) -> None:
    session, mine = loaded
    entries = history(session, path)
    total = session.world.manifest.total if path == "/_history" else session.world.manifest.counts["Observation"]
    assert len(entries) == total + MANY
    assert entries == sorted(entries, reverse=True), "newest first"
    assert sum(id in mine for _, id in entries[:20]) < 15
    assert ranks([id for _, id in entries], mine)[-1] > 0.05


def history(session: Session, path: str, **params: str) -> list[tuple[str, str]]:
    """The update times and ids of all pages of a history."""
    found: list[tuple[str, str]] = []
    while True:
        query = urlencode({"_count": 5_000, "_offset": len(found), **params})
        page = session.get(f"{path}?{query}")
        resources = [entry["resource"] for entry in page.get("entry", [])]
        found += [(resource["meta"]["lastUpdated"], resource["id"]) for resource in resources]
        if not any(link["relation"] == "next" for link in page["link"]):
            return found


def test_history_since_and_searches_by_time_agree(loaded: tuple[Session, set[str]]) -> None:
    session, mine = loaded
    every = {resource["id"]: resource["meta"]["lastUpdated"] for resource in session.search("Observation")}
    middle = sorted(every[id] for id in mine)[MANY // 2]
    wanted = {id for id, updated in every.items() if updated >= middle}
    assert {id for _, id in history(session, "/Observation/_history", _since=middle)} == wanted
    assert {resource["id"] for resource in session.search("Observation", _lastUpdated=f"ge{middle}")} == wanted
    assert wanted & mine and mine - wanted


def test_writes_of_the_agent_are_the_newest(loaded: tuple[Session, set[str]]) -> None:
    session, mine = loaded
    resource = session.read("Observation", min(mine))
    body = json.dumps({**(resource or {}), "status": "amended"}).encode()
    answer = session.handle(Request("PUT", f"/Observation/{min(mine)}", headers=JSON, body=body))
    assert answer.status == 200
    newest = session.get("/_history?_count=1")["entry"][0]["resource"]
    assert (newest["id"], newest["meta"]["versionId"]) == (min(mine), "2")
    assert newest["meta"]["lastUpdated"] == session.now.isoformat(timespec="milliseconds")
    assert [id for _, id in history(session, f"/Observation/{min(mine)}/_history")] == [min(mine)] * 2


def test_nothing_was_updated_before_it_happened_or_after_the_present(world: World) -> None:
    for resource in scene(world, 7):
        assert (
            resource["effectiveDateTime"]
            < resource["meta"]["lastUpdated"]
            <= world.now.isoformat(timespec="milliseconds")
        )


def test_the_same_seed_gives_the_same_bytes(world: World) -> None:
    with World.open(world.path) as again:
        assert json.dumps(scene(world, 3)) == json.dumps(scene(again, 3))
    assert json.dumps(scene(world, 3)) != json.dumps(scene(world, 4))


def test_ids_are_like_the_worlds_and_free(world: World) -> None:
    ids = IdAllocator(random.Random(5), world)
    taken = set(world.ids("Observation"))
    drawn = [ids.new("Observation") for _ in range(2 * MANY)]
    forms = {form(id) for id in taken}
    for id in drawn:
        assert not id.isdigit()
        assert form(id) in forms or form(re.sub(r"-[0-9]+$", "", id)) in forms
    assert len(set(drawn) - taken) == 2 * MANY
    assert drawn != sorted(drawn) and drawn != sorted(drawn, reverse=True)


def form(id: str) -> str:
    """The form of an id: nines replace its digits (in a UUID, its hexadecimal digits)."""
    digits = r"[0-9a-f]" if re.fullmatch(r"[0-9a-f-]{36}", id) else r"[0-9]"
    return re.sub(rf"{digits}+", lambda run: "9" * len(run[0]), id)


def test_a_world_without_the_type_and_one_without_anything(empty_world: World) -> None:
    with worlds.load("cohort-mini") as cohort:
        for world in (cohort, empty_world):
            ids, rng = IdAllocator(random.Random(1), world), random.Random(2)
            drawn = [ids.new("Slot") for _ in range(MANY)]
            assert len(set(drawn)) == MANY and {id[:3] for id in drawn} == {"SLO"}
            times = [UpdateTimes(rng, world).of({"resourceType": "Slot"}) for _ in range(MANY)]
            assert max(times) < world.now.isoformat() and len(set(times)) == MANY
            assert min(times) < (world.now - timedelta(days=365)).isoformat()
