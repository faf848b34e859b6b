"""Hasty policies leave out the intended part of the work, and their success rates are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import hasty_policies
from fhir_gym.soundness.flawed_policies import careless_policies
from fhir_gym.soundness.policy_runner import PolicyRunner
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.tasks import get_task

if TYPE_CHECKING:
    from fhir_gym.fhir import World

APPOINTMENT, MEDAGENT = "FHIRAgent/Appointment-v0", "FHIRAgent/MedAgentBench-v0"


def sent(world: World, env_id: str, key: str, group: str, name: str) -> tuple[list[str], list[str]]:
    """Return the requests of the reference solution and those of the policy."""
    task = get_task(env_id, key)
    with PolicyRunner(task, task.variation(0, world), world) as runner:
        run = runner.gold()
        gold = GoldRecording.of(run, runner.variation.setup)
        (policy,) = (
            careless_policy
            for careless_policy in careless_policies(task, runner.variation.params, gold)
            if (careless_policy.group, careless_policy.name) == (group, name)
        )
        (played,) = runner.run(policy)
    return [action.url for action in run.actions], [action.url for action in played.actions]


def test_one_condition_is_omitted(hospital: World) -> None:
    for group in ("hasty search", "first hit"):
        right, hasty_ones = sent(hospital, APPOINTMENT, "11a", group, "/Slot without status")
        assert "status=free" in right[0]
        assert "status" not in hasty_ones[0]
        assert "schedule.actor" in hasty_ones[0]


def test_only_first_pages_are_read(hospital: World) -> None:
    right, hasty_ones = sent(hospital, MEDAGENT, "04", "no paging", "first pages only")
    assert any("_count" in url for url in right)
    assert not any("_count" in url for url in hasty_ones)


def test_the_status_is_ignored(hospital: World) -> None:
    right, hasty_ones = sent(hospital, APPOINTMENT, "11a", "status ignored", "whatever the status")
    assert "status" in right[0]
    assert "status" not in hasty_ones[0]
    task = get_task(APPOINTMENT, "11a")
    shares = hasty_policies.measure(task, hospital, range(3))
    assert shares["all"]["gold"] == 1
    assert shares["status ignored"]["whatever the status"] < 1


def test_measured_by_policy(hospital: World) -> None:
    shares = hasty_policies.measure(get_task(APPOINTMENT, "02a"), hospital, range(4))
    assert set(shares["hasty search"]) >= {"/Patient without birthdate"}
    assert 0 < shares["all"]["mean"] <= shares["all"]["any"] <= shares["all"]["gold"] == 1


def test_tables() -> None:
    before = {"A 1": {"all": {"gold": 1.0, "any": 0.5, "mean": 0.2}, "first hit": {"by x": 0.5, "by y": 0.1}}}
    after = {"A 1": {"all": {"gold": 1.0, "any": 0.6, "mean": 0.3}, "first hit": {"by x": 0.6, "by y": 0.1, "by z": 0}}}
    assert "| A 1 | 100 % | 50 % | 30 % | first hit: by x 50 % |" in hasty_policies.table(before)
    table = hasty_policies.comparison(before, after)
    assert "| A 1 | first hit: by x | 50 % | 60 % |" in table
    assert "| A 1 | first hit: by z | new | 0 % |" in table
    assert "by y" not in table


def test_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def measured(name: str, *more: str) -> Path:
        out = tmp_path / name
        chosen = (APPOINTMENT, "--tasks", "02b", "--variations", "2", "--out", str(out), *more)
        assert hasty_policies.main(list(chosen)) == 0
        return out

    first = measured("before.json")
    second = measured("after.json", "--before", str(first))
    assert json.loads(first.read_text()) == json.loads(second.read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[0])["task"] == "Appointment-v0 02b"
    assert "Appointment-v0 02b" in second.with_suffix(".md").read_text()
    assert "hasty search" not in second.with_suffix(".diff.md").read_text()
