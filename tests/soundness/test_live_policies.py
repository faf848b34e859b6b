"""Policies that work in batches or close Tasks early fail in live tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from fhir_gym import get_task
from fhir_gym.soundness.flawed_policies import live_policies
from fhir_gym.soundness.policy_runner import Policy, PolicyRunner
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.tasks import register
from fhir_gym.tasks.core import registry
from fhir_gym.tasks.packs.shift.t20_live import LiveLevel3

if TYPE_CHECKING:
    from fhir_gym.fhir import World

SHORT = "Test/Careless-v0"


@pytest.fixture(scope="module", autouse=True)
def short_shift() -> Iterator[None]:
    values = {"minutes": 30, "policies": 20, "events": 4, "asking": 0}
    register(SHORT, LiveLevel3().with_dials("short", values), world="hospital-small")
    yield
    registry._registered.pop(SHORT, None)


def accepted(world: World, env_id: str, key: str, variation: int) -> dict[tuple[str, str], bool]:
    """Play the policies of a variation; return whether each succeeds."""
    task = get_task(env_id, key)
    drawn = task.variation(variation, world)
    with PolicyRunner(task, drawn, world) as runner:
        run = runner.gold()
        recording = GoldRecording.of(run, drawn.setup, {"Patient": world.ids("Patient")[0]})
        policies: list[Policy] = list(live_policies(task, drawn.params, run, recording))
        return {(policy.group, policy.name): runner.run(policy)[0].verdict.success for policy in policies}


def test_careless_policies_fail_in_a_short_shift(hospital: World) -> None:
    found = accepted(hospital, SHORT, "short", 0)
    assert len(found) >= 4 and not any(found.values())


@pytest.mark.slow
def test_careless_policies_of_each_kind_fail(hospital: World) -> None:
    found = accepted(hospital, "FHIRAgent/Shift-v0", "day-3", 1)
    kinds = [name.rpartition("/")[2].partition(",")[2] or name for _, name in found]
    assert len(set(kinds)) >= 5 and not any(found.values())


def test_tasks_without_a_worklist_have_no_such_policies(hospital: World) -> None:
    assert accepted(hospital, "FHIRAgent/Appointment-v0", "01", 0) == {}
