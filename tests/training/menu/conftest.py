"""Templates that the tests of the menu share."""

from __future__ import annotations

import pytest

import fhir_gym
from fhir_gym.rollouts import Rollout
from fhir_gym.training.config import TaskName
from fhir_gym.training.menu import Templates, learn_templates

APPOINTMENT = "FHIRAgent/Appointment-v0"
KEYS = ("02a", "12d", "16b", "16c")


@pytest.fixture(scope="session")
def rollouts() -> list[Rollout]:
    return list(fhir_gym.run(APPOINTMENT, "gold", tasks=KEYS, variations="0-15"))


@pytest.fixture(scope="session")
def templates(rollouts: list[Rollout]) -> Templates:
    return learn_templates(rollouts)


@pytest.fixture(scope="session")
def tasks() -> list[TaskName]:
    return [TaskName(APPOINTMENT, key) for key in KEYS]
