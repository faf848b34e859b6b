"""Fixtures that the tests of all integrations share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from fhir_gym import EpisodeConfig
from fhir_gym.errors import InfraError
from fhir_gym.fhir import Session
from fhir_gym.integrations.publish import write_verifiers_folder

VERIFIERS_ID = "fhir-appointment"
"""Id of the environment that `published` makes importable."""


@pytest.fixture
def server_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every request of an episode in this process fail, as on a FHIR server that no longer answers."""

    def handle(*_: Any) -> None:
        raise InfraError("the FHIR server is down")

    monkeypatch.setattr(Session, "handle", handle)


@pytest.fixture(scope="module")
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Publish an environment for verifiers, which this process and its children can import; the parameter: classic."""
    folder = tmp_path_factory.mktemp("published") / VERIFIERS_ID
    write_verifiers_folder(EpisodeConfig("FHIRAgent/Appointment-v0"), folder, classic=request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
        yield
