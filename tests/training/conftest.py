"""A language model with a few thousand weights, and a way to let it act well."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.agents.tiny import save

    return save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"
