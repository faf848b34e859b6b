"""Fixtures that the tests of all integrations share."""

from __future__ import annotations

from typing import Any

import pytest

from fhir_gym.errors import InfraError
from fhir_gym.fhir import Session


@pytest.fixture
def server_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every request of an episode in this process fail, as on a FHIR server that no longer answers."""

    def handle(*_: Any) -> None:
        raise InfraError("the FHIR server is down")

    monkeypatch.setattr(Session, "handle", handle)
