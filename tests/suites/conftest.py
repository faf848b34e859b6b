from __future__ import annotations

import pytest

from fhir_gym.suites import Suite, balanced

APPOINTMENT = "FHIRAgent/Appointment-v0"
MEDAGENTBENCH = "FHIRAgent/MedAgentBench-v0"


@pytest.fixture(scope="session")
def tiny() -> Suite:
    """A suite of six episodes of two packs on one world."""
    episodes = [
        *balanced(APPOINTMENT, ["01", "02a"], range(1000, 1002), 3),
        *balanced(MEDAGENTBENCH, ["01", "02"], [1000]),
    ]
    return Suite("tiny-v1", "for tests", tuple(episodes))
