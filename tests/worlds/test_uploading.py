"""An upload reaches servers that check references, survives faults and kills, and overwrites nothing by accident."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fhir_gym import worlds
from fhir_gym.errors import InfraError, WorldError
from fhir_gym.fhir import Credentials, World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.fhir.adapters.server_lock import ServerLock
from fhir_gym.fhir.limits import Limits
from fhir_gym.types import Resource
from fhir_gym.worlds import batches, uploading
from fhir_gym.worlds.batches import BatchClient
from fhir_gym.worlds.cache import VARIABLE
from tests.worlds.linked_world import linked_resources, write_world
from tests.worlds.serving import served
from tests.worlds.strict_server import StrictServer, strict_server

_UPLOAD = (
    "import sys; from fhir_gym import worlds; from fhir_gym.fhir import World; "
    "worlds.upload(World.open(sys.argv[1]), sys.argv[2])"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "uploads"


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[World]:
    with write_world(tmp_path / "linked.world", linked_resources()) as world:
        yield world


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_ENTRIES", 2)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []

    def client(url: str, **settings: Any) -> BatchClient:
        return BatchClient(url, pause=waited.append, **settings)

    monkeypatch.setattr(uploading, "BatchClient", client)
    return waited


def journals(folder: Path) -> list[Path]:
    return list(folder.glob("*.jsonl"))


def test_an_upload_is_refused_while_the_server_is_in_use(linked: World, empty_world: World) -> None:
    with strict_server(empty_world) as (url, server):
        with ServerLock(url), pytest.raises(InfraError, match=rf"{url} is in use by .* this process"):
            worlds.upload(linked, url)
        assert not server.written
        worlds.upload(linked, url)
        assert server.written


def test_references_and_cycles(linked: World, empty_world: World, folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    with strict_server(empty_world) as (url, server):
        report = worlds.upload(linked, url, progress=lambda done, total: seen.append((done, total)))
        assert worlds.compare(linked, url).equal
        again = worlds.upload(linked, url)
    assert (report.resources, report.held, report.server) == (linked.manifest.total, 0, url)
    assert (again.held, again.requests) == (linked.manifest.total, 5)
    twice = {url for url, times in server.written.items() if times == 2}
    assert twice == {f"Patient/{id}" for id in ("a", "b", "between", "c", "d", "self")}
    assert seen[-1] == (linked.manifest.total, linked.manifest.total)
    assert not journals(folder)


@pytest.mark.usefixtures("small_batches")
def test_faults(linked: World, empty_world: World, impatient: list[float]) -> None:
    with strict_server(empty_world) as (url, server):
        server.faults = {2: "503", 4: "entries", 5: "entries", 8: "half", 11: "lost", 14: "entries", 25: "lost"}
        worlds.upload(linked, url)
        assert not server.faults
        assert worlds.compare(linked, url).equal
    assert len(impatient) >= 7


@pytest.mark.usefixtures("small_batches", "impatient")
@pytest.mark.parametrize("requests", [4, 9, 14])
def test_resumes_with_what_has_not_arrived(linked: World, empty_world: World, folder: Path, requests: int) -> None:
    with strict_server(empty_world) as (url, server):
        server.faults = dict.fromkeys(range(requests, requests + 7), "503")
        with pytest.raises(WorldError, match=r"7 attempts .*the database is away.* run the same command again"):
            worlds.upload(linked, url, credentials=Credentials.bearer("s3cret"))
        (journal,) = journals(folder)
        assert "s3cret" not in journal.read_text()
        with journal.open("ab") as file:
            file.write(b'{"sen')
        lost = next(iter(server.written))
        server.session.load([{"resourceType": lost.split("/")[0], "id": lost.split("/")[1]}])
        before = {key for key, times in server.written.items() if times == 2 or "Patient" not in key}
        report = worlds.upload(linked, url)
        assert report.held == len(before - {lost})
        assert worlds.compare(linked, url).equal
    assert server.written[lost] == 2, "what the server has lost is sent again"
    assert all(server.written[key] == (2 if "Patient" in key else 1) for key in before - {lost})
    assert not journals(folder)


def test_other_resources_are_not_touched(linked: World, tmp_path: Path, folder: Path) -> None:
    people: list[Resource] = [
        {"resourceType": "Patient", "id": "stranger"},
        {"resourceType": "Organization", "id": "o3", "name": "Another clinic"},
    ]
    with write_world(tmp_path / "theirs", people) as theirs, strict_server(theirs) as (url, server):
        with pytest.raises(WorldError, match=r"1 of Patient; Organization/o3 differs at Organization\.name\. .*--add"):
            worlds.upload(linked, url)
        assert not server.written and not journals(folder)
        worlds.upload(linked, url, add=True)
        assert worlds.compare(linked, url).counts == {"missing": 0, "extra": 1, "different": 0}


def test_a_refused_resource_is_named(empty_world: World, tmp_path: Path) -> None:
    dangling: list[Resource] = [
        {"resourceType": "Patient", "id": "p"},
        {"resourceType": "Observation", "id": "x", "subject": {"reference": "Patient/nobody"}},
    ]
    with write_world(tmp_path / "w", dangling) as world, strict_server(empty_world) as (url, _):
        refusal = r"refuses Observation/x: status 400 Bad Request: Resource Patient/nobody not found$"
        with pytest.raises(WorldError, match=refusal):
            worlds.upload(world, url)


def test_credentials(linked: World, empty_world: World) -> None:
    with strict_server(empty_world, authorization="Bearer s3cret") as (url, _):
        with pytest.raises(WorldError, match=r"requires credentials \(status 401\)") as caught:
            worlds.upload(linked, url, credentials=Credentials.bearer("wr0ng"))
        assert "wr0ng" not in str(caught.value)
        assert worlds.upload(linked, url, credentials=Credentials.bearer("s3cret")).held == 0
    with pytest.raises(WorldError, match=r"has status 404|cannot reach"):
        worlds.upload(linked, url.replace("/fhir", "/other"))


def test_a_server_with_lower_limits(linked: World, empty_world: World) -> None:
    with served(create_app(empty_world, limits=Limits(bundle_entries=3))) as url:
        worlds.upload(linked, url)
        assert worlds.compare(linked, url).equal


# slow


@pytest.mark.slow
def test_the_hospital_in_sixty_requests(hospital: World, empty_world: World) -> None:
    with strict_server(empty_world) as (url, server):
        assert worlds.upload(hospital, url).requests == server.requests <= 60
        changed = server.session.read("Slot", hospital.ids("Slot")[-1]) or {}
        server.session.load([{**changed, "comment": "changed"}])
        comparison = worlds.compare(hospital, url)
    assert comparison.differences == (worlds.Difference("different", f"Slot/{changed['id']}", "Slot.comment"),)


@pytest.mark.slow
def test_resumes_after_a_kill(hospital: World, empty_world: World, folder: Path) -> None:
    with strict_server(empty_world, delay=0.02) as (url, server):
        _kill_after(hospital, url, server, 10)
        assert len(journals(folder)) == 1
        written = len(server.written)
        report = worlds.upload(hospital, url)
        # The server may still receive the batch in flight at the kill.
        assert 0 < report.held <= written + batches.MOST_ENTRIES < hospital.manifest.total
        assert worlds.compare(hospital, url).equal
    assert max(server.written.values()) <= 2, "only the batch in flight at the kill is sent again"
    assert sum(server.written.values()) - hospital.manifest.total <= batches.MOST_ENTRIES


def _kill_after(world: World, url: str, server: StrictServer, requests: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", _UPLOAD, str(world.path), url])
    end = time.monotonic() + 120
    while server.requests < requests:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
