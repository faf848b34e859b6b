"""A viewer of a small rollout file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import fhir_gym
from fhir_gym.testing.servers import AppServer
from fhir_gym.web.app import create_viewer
from tests.browser import Browser, browser


@pytest.fixture(scope="session")
def rollout_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes: two by `gold`, which succeed, and two by `idle`, which fail."""
    path = tmp_path_factory.mktemp("rollouts") / "rollouts.jsonl"
    for agent in ("gold", "idle"):
        rollouts = fhir_gym.run("FHIRAgent/Appointment-v0", agent, tasks=["01"], variations=range(2))
        fhir_gym.write_rollouts(path, rollouts)
    return path


@pytest.fixture(scope="session")
def client(rollout_file: Path) -> Iterator[TestClient]:
    with TestClient(create_viewer([rollout_file]), base_url="http://127.0.0.1") as opened:
        yield opened


@pytest.fixture(scope="session")
def viewer(rollout_file: Path) -> Iterator[str]:
    """The URL of a served viewer, for tests in a browser."""
    with AppServer(create_viewer([rollout_file])) as server:
        yield server.url


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    """A window of a browser. Starting a browser takes seconds, so all tests share it."""
    with browser() as opened:
        yield opened
