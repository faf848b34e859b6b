"""The command `fhir-gym replay`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def rollouts(cli: Cli, tmp_path: Path) -> Path:
    path = tmp_path / "rollouts.jsonl"
    chosen = ("--tasks", "Q1-1", "--variations", "0", "--agent", "gold")
    made = cli("rollout", "FHIRAgent/Shift-v0", *chosen, "--out", path)
    assert made.code == 0
    return path


def test_replay_prints_the_timeline_and_the_checks(cli: Cli, rollouts: Path) -> None:
    done = cli("replay", rollouts)
    assert done.code == 0 and "GET /Patient?" in done.out and "request A" in done.out
    assert done.out.rstrip().endswith("success, score 1.000")
    found = json.loads(cli("replay", rollouts, "--json").out)
    assert found["verdict"]["success"] and found["timeline"][0]["who"] == "agent"


def test_the_first_failed_episode_of_an_evaluation_is_shown(cli: Cli, tmp_path: Path) -> None:
    for agent in ("gold", "idle", "gold"):
        chosen = ("--tasks", "02a", "--variations", "0", "--agent", agent)
        part = tmp_path / f"{agent}.jsonl"
        assert cli("rollout", "FHIRAgent/Appointment-v0", *chosen, "--out", part, "--overwrite").code == 0
        with (tmp_path / "rollouts.jsonl").open("ab") as file:
            file.write(part.read_bytes())
    done = cli("replay", tmp_path)
    assert done.code == 0 and done.out.startswith("FHIRAgent/Appointment-v0, task 02a, variation 0: ")
    assert "FAILED" in done.out and done.out.rstrip().endswith("no success")


def test_wrong_input_is_named(cli: Cli, rollouts: Path, tmp_path: Path) -> None:
    done = cli("replay", rollouts, "--episode", "2")
    assert done.code == 2 and "has fewer than 2 episodes" in done.err
    done = cli("replay", tmp_path / "missing.jsonl")
    assert done.code == 1 and "missing.jsonl: cannot be read" in done.err
    done = cli("replay", rollouts, "--world", "empty")
    assert done.code == 1 and "recorded in another world than empty" in done.err
