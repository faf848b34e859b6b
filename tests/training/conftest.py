"""Fixtures of the training tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from fhir_gym.tasks.core import registry
from fhir_gym.training import report
from fhir_gym.training.changed_variations import blind_pack, mirrored_pack


@pytest.fixture(scope="package", autouse=True)
def _no_packs_left() -> Iterator[None]:
    """Unregister the changed packs, so that other tests of this process see the shipped packs only."""
    yield
    for known in (gymnasium.registry, registry._registered):
        for env_id in [changed for changed in known if "Mirrored" in changed or "Blind" in changed]:
            del known[env_id]
    mirrored_pack.cache_clear()
    blind_pack.cache_clear()


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write reports without plots, because drawing them takes seconds."""
    monkeypatch.setattr(report, "_draw", lambda *_: ([], ""))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"
