"""A recorded success says how many requests the reference solution needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fhir_gym import run
from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.evaluation import EpisodeMetrics, Report, read_runs, sections
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout, write_rollouts
from fhir_gym.rollouts.timeline import replay
from fhir_gym.tasks import get_task

SHIFT = "FHIRAgent/Shift-v0"
APPOINTMENT = "FHIRAgent/Appointment-v0"
EXTRA: Mapping[str, Any] = {
    "resourceType": "Bundle",
    "type": "batch",
    "entry": [{"request": {"method": "GET", "url": f"Patient/{number}"}} for number in range(3)],
}


class ReadsMore:
    """An agent that sends a batch of three reads before the reference solution."""

    name, settings = "reads more", {"batches": 1}

    def __init__(self) -> None:
        self._gold = GoldAgent()
        self._begun = False

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Start the episode."""
        self._gold.reset(observation, context)
        self._begun = False

    def act(self, observation: str) -> str:
        """Return the batch, then the actions of the reference solution."""
        if not self._begun:
            self._begun = True
            return f"POST /\n{json.dumps(EXTRA)}"
        return self._gold.act(observation)


def played(env_id: str, agent: Any, task: str, world: World) -> Rollout:
    (rollout,) = run(env_id, agent, tasks=task, variations=0, world=world)
    return rollout


@pytest.mark.parametrize("task", ["Q4-1", "P3-1"])
def test_the_reference_solution_of_a_shift_needs_its_own_requests(hospital: World, task: str) -> None:
    gold, more = (played(SHIFT, agent, task, hospital) for agent in ("gold", ReadsMore()))
    assert gold.verdict is not None and more.verdict is not None
    assert gold.verdict.process.reference == gold.verdict.process.total == len(gold.turns) - 1
    assert more.success and more.verdict.process.reference == gold.verdict.process.reference
    assert more.verdict.process.total == gold.verdict.process.total + len(EXTRA["entry"])
    assert replay(more, hospital).verdict == more.verdict


def test_a_failed_shift_is_not_compared(hospital: World) -> None:
    idle = played(SHIFT, "idle", "Q4-1", hospital)
    assert idle.verdict is not None and idle.verdict.process.reference is None


def test_the_tool_sequences_of_other_tasks_tell_their_requests(hospital: World) -> None:
    for agent in ("gold", "idle"):
        verdict = played(APPOINTMENT, agent, "17a", hospital).verdict
        assert verdict is not None
        assert verdict.process.reference == min(map(len, get_task(APPOINTMENT, "17a").required_tools)) == 5


def test_reports_compare_requests_with_the_reference_solution(hospital: World, tmp_path: Path) -> None:
    rollouts = [played(SHIFT, agent, "Q4-1", hospital) for agent in ("idle", ReadsMore())]
    metrics = EpisodeMetrics.of(rollouts[1])
    assert metrics.reference is not None and metrics.requests == metrics.reference + 3
    write_rollouts(tmp_path / "one.jsonl", [rollouts[1].model_copy(update={"repeat": 1})])
    report = Report(read_runs([tmp_path / "one.jsonl"]))
    assert report.total(0).of_reference == round(metrics.requests / metrics.reference, 6)
    runs = sections(report)[0]
    assert runs.rows[0][runs.columns.index("of reference")] == f"{metrics.requests / metrics.reference:.2f}"
    write_rollouts(tmp_path / "idle.jsonl", [rollouts[0]])
    assert Report(read_runs([tmp_path / "idle.jsonl"])).total(0).of_reference is None
