"""A damaged world file leads either to the right response or to a clear error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fhir_gym import Episode
from fhir_gym.errors import WorldError
from fhir_gym.fhir import Request, World, WorldBuilder
from fhir_gym.types import Resource
from tests.fhir.writing import observation, patient

NOW = datetime(2023, 11, 13, 10, 15, tzinfo=UTC)
PATIENTS = 30
READS = (
    ("/Patient", "_count=100"),
    ("/Observation", "code:text=x&_sort=-_id&_include=Observation:subject"),
    ("/Patient", "family=Doe&_summary=true&_revinclude=Observation:subject"),
    ("/_history", "_count=100"),
    ("/Patient/$meta", ""),
)


def resources() -> Iterator[Resource]:
    for number in range(PATIENTS):
        yield patient(f"p{number}", f"Doe{number}", birthDate=f"19{number + 50}-01-01", meta={"tag": [{"code": "t"}]})
        for second in range(20):
            yield observation(f"Patient/p{number}", f"o{number}-{second}") | {"note": [{"text": "words " * 40}]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "whole.sqlite"
    with WorldBuilder(path, name="whole", seed=None, now=NOW) as builder:
        for resource in resources():
            builder.add(resource)
    return path


def damaged(data: bytes, kind: str, page: int, number: int) -> bytes:
    """Return a copy of the file's bytes with one damaged page."""
    rng, start = random.Random(number), number * page
    if kind == "zeros":
        return data[:start] + bytes(page) + data[start + page :]
    if kind == "noise":
        return data[:start] + rng.randbytes(page) + data[start + page :]
    spoilt = bytearray(data)
    for _ in range(60):
        spoilt[start + rng.randrange(page)] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def everything(world: World) -> Iterator[Callable[[], Any]]:
    """Yield every public way to read a world."""

    def requests() -> None:
        with world.session() as session:
            for path, query in READS:
                session.handle(Request("GET", path, query))
            for number in range(0, PATIENTS, 7):
                body = b'{"resourceType": "Patient", "id": "p%d"}' % number
                headers = {"content-type": "application/fhir+json"}
                session.handle(Request("GET", f"/Patient/p{number}/$everything"))
                session.handle(Request("PUT", f"/Patient/p{number}", "", headers, body))
                session.handle(Request("DELETE", f"/Patient/p{number}"))
            session.changes()
            session.rollback()

    def setup() -> None:
        with world.session() as session:
            session.load([patient(f"p{number}", "Other") for number in range(PATIENTS)])
            session.changes()
            assert session.read("Patient", "p3")

    yield lambda: [world.read("Patient", f"p{number}") for number in range(PATIENTS)]
    yield lambda: [world.search("Patient"), world.search("Observation", subject="Patient/p3")]
    yield lambda: [world.ids("Patient"), world.ids("Observation")]
    yield lambda: list(world.resources())
    yield requests
    yield setup
    yield world.verify


def spoilt_worlds(whole: Path, folder: Path, kind: str) -> Iterator[World]:
    """Yield a world for each page that can be damaged, unless the damaged file cannot be opened."""
    data = whole.read_bytes()
    page = int.from_bytes(data[16:18], "big")
    for number in range(len(data) // page):
        path = folder / f"{number}.sqlite"
        path.write_bytes(damaged(data, kind, page, number))
        try:
            world = World.open(path)
        except WorldError as error:
            assert str(path) in str(error)
        else:
            with world:
                yield world


@pytest.mark.parametrize("kind", ["zeros", "noise"])
def test_a_page_that_is_gone_is_one_clear_error(whole: Path, tmp_path: Path, kind: str) -> None:
    for world in spoilt_worlds(whole, tmp_path, kind):
        errors = []
        for way in everything(world):
            try:
                way()
            except WorldError as error:
                assert str(world.path) in str(error) and "\n" not in str(error)
                errors.append(error)
        assert errors, "verify, the last of them, notices every page"


def test_every_flipped_bit_in_a_resource_is_noticed(whole: Path, tmp_path: Path) -> None:
    with World.open(whole) as world:
        good = list(world.resources())
    for spoilt in spoilt_worlds(whole, tmp_path, "flipped bits"):
        try:
            spoilt.verify()
        except WorldError as error:
            assert str(spoilt.path) in str(error) and "\n" not in str(error)
        else:
            assert list(spoilt.resources()) == good, "only space that holds nothing may differ"


def test_a_whole_world_is_verified(whole: Path) -> None:
    with World.open(whole) as world:
        for way in everything(world):
            way()


def test_a_changed_resource_is_found(whole: Path, tmp_path: Path) -> None:
    """If the changed bytes are still JSON, only the content hash detects the change."""
    path = tmp_path / "changed.sqlite"
    path.write_bytes(whole.read_bytes().replace(b'"birthDate":"1950-01-01"', b'"birthDate":"1950-01-02"'))
    with World.open(path) as world, pytest.raises(WorldError, match=f"{path} is damaged"):
        world.verify()


def test_an_episode_on_a_damaged_world_has_no_reward(hospital: World, tmp_path: Path) -> None:
    """All pages with resources are damaged, but the manifest is readable."""
    path = tmp_path / "hospital.sqlite"
    data = bytearray(hospital.path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    keep = {0, len(data) // page - 1}
    with hospital.session() as session:
        keep |= {root - 1 for (root,) in session.store.db.execute("SELECT rootpage FROM main.sqlite_schema")}
    for number in range(len(data) // page):
        if number not in keep:
            data[number * page : (number + 1) * page] = bytes(page)
    path.write_bytes(data)
    with (
        pytest.raises(WorldError, match=str(path)),
        Episode("FHIRAgent/Appointment-v0", task="01", world=path) as episode,
    ):
        episode.start()
        episode.step("GET /Patient?_count=50")
