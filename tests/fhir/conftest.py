"""A small world, and our own HTTP server with it as a server elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from tests.property.scene import build_world
from tests.worlds.serving import served


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with build_world(tmp_path_factory.mktemp("small")) as world:
        yield world


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[str]:
    with served(create_app(world)) as url:
        yield url
