from __future__ import annotations

from collections.abc import Iterator

import pytest

from fhir_gym.fhir import World
from tests.property.scene import build_world


@pytest.fixture(scope="session")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three patients and five observations."""
    with build_world(tmp_path_factory.mktemp("small")) as world:
        yield world
