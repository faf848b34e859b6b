"""One environment or run at a time uses a running server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from fhir_gym import Episode, run
from fhir_gym.errors import InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.server_lock import ServerLock
from fhir_gym.files import FileLock
from fhir_gym.testing import serving

ENV_ID = "FHIRAgent/Appointment-v0"
URL = "http://localhost:8080/fhir"
HERE = "is in use by another environment or run of this process"


@pytest.fixture(scope="module")
def server(hospital: World) -> Iterator[str]:
    with serving(hospital) as url:
        yield url


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of the locks that are taken."""
    taken: list[Path] = []

    class Counted(FileLock):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            taken.append(path)

    monkeypatch.setattr("fhir_gym.fhir.adapters.server_lock.FileLock", Counted)
    return taken


@pytest.mark.parametrize(
    "same",
    [
        "http://127.0.0.1:8080/fhir",
        "http://[::1]:8080/fhir/",
        "HTTP://LocalHost:8080/fhir",
        "http://a:b@localhost:8080/fhir",
    ],
)
def test_all_ways_to_write_a_url_are_one_server(same: str) -> None:
    with ServerLock(URL), pytest.raises(InfraError, match=HERE):
        ServerLock(same)
    with ServerLock(same), ServerLock("http://localhost:8081/fhir"), ServerLock("http://localhost:8080/other"):
        pass


def test_another_process_is_named() -> None:
    with ServerLock(URL) as lock:
        (lock.folder / "lock").write_text("4711")
        with pytest.raises(InfraError, match=f"{URL} is in use by process 4711: ") as told:
            ServerLock(URL)
        assert "\n" not in str(told.value)


def test_an_environment_keeps_its_server_until_it_is_closed(server: str, hospital: World, locked: list[Path]) -> None:
    first, second = (gym.make(ENV_ID, world=hospital, fhir_server=server, tasks="01") for _ in range(2))
    for variation in range(2):
        first.reset(options={"variation": variation})
        with pytest.raises(InfraError, match=HERE):
            second.reset()
        with pytest.raises(InfraError, match=HERE):
            run(ENV_ID, "idle", tasks="01", variations=0, world=hospital, fhir_server=server)
    assert len(locked) == 1, "the lock is not released between episodes"
    first.close()
    with Episode(ENV_ID, task="01", world=hospital, fhir_server=server), pytest.raises(InfraError, match=HERE):
        second.reset()
    second.close()


def test_a_run_keeps_its_server_between_episodes(server: str, hospital: World, locked: list[Path]) -> None:
    rollouts = run(ENV_ID, "idle", tasks="01", variations="0-1", world=hospital, fhir_server=server)
    for _ in range(2):
        assert next(rollouts).reward == 0.0
        with pytest.raises(InfraError, match=HERE):
            ServerLock(server)
    assert list(rollouts) == []
    assert len(locked) == 1, "the lock is not released between episodes"
    ServerLock(server).release()


def test_a_refused_server_leaves_no_lock(hospital: World) -> None:
    for _ in range(2):
        with pytest.raises(InfraError, match="does not answer"):
            Episode(ENV_ID, task="01", world=hospital, fhir_server="http://127.0.0.1:9/fhir")


def test_an_unusable_state_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FHIR_GYM_STATE", str(tmp_path / "file"))
    with pytest.raises(InfraError, match=r"cannot be written: .*; set FHIR_GYM_STATE to use another folder"):
        ServerLock(URL)
