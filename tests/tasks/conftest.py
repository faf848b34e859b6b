"""Worlds for tests of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fhir_gym.fhir import World


@pytest.fixture(scope="session")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two patients with ids that are no numbers, on a leap day just before midnight."""
    from fhir_gym.fhir.store import World, WorldBuilder

    path = tmp_path_factory.mktemp("worlds") / "tiny.world"
    with WorldBuilder(path, name="tiny", seed=None, now=datetime(2024, 2, 29, 23, 59, 30, tzinfo=UTC)) as builder:
        builder.add({"resourceType": "Patient", "id": "S1", "name": [{"family": "Lee"}], "birthDate": "1980-02-03"})
        builder.add({"resourceType": "Patient", "id": "S2", "name": [{"family": "O'Brien", "given": ["Ana"]}]})
    with World.open(path) as world:
        yield world
