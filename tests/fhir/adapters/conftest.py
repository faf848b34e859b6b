"""Sessions on servers elsewhere do not pause in tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.fhir.adapters.remote.sleep", lambda _: None)
