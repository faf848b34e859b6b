from __future__ import annotations

import pytest

from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout, run

ENV_ID = "FHIRAgent/Appointment-v0"


@pytest.fixture(scope="session")
def gold(hospital: World) -> list[Rollout]:
    """One successful rollout of each task."""
    return list(run(ENV_ID, "gold", variations=0, world=hospital))


@pytest.fixture(scope="session")
def mixed(hospital: World) -> list[Rollout]:
    """Rollouts of a random agent; some have invalid actions, and some fail."""
    return list(run(ENV_ID, "random", tasks=["01", "02a"], variations="0-2", world=hospital))
