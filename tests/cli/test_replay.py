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


def test_wrong_input_is_named(cli: Cli, rollouts: Path, tmp_path: Path) -> None:
    done = cli("replay", rollouts, "--episode", "2")
    assert done.code == 2 and "has fewer than 2 episodes" in done.err
    done = cli("replay", tmp_path / "missing.jsonl")
    assert done.code == 1 and "missing.jsonl: cannot be read" in done.err
    done = cli("replay", rollouts, "--world", "empty")
    assert done.code == 1 and "recorded in another world than empty" in done.err
