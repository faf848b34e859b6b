"""The benchmark of the pack runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.medagentbench import main

if TYPE_CHECKING:
    from pathlib import Path

    from fhir_gym.fhir import World


@pytest.mark.exhaustive  # `make bench` runs it too
def test_the_benchmark_runs(
    hospital: World, small: World, task_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = [
        task for task in json.loads(task_file.read_text()) if task["id"].endswith("_1")
    ]  # patients whose charts are readable
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps(whole))
    main(["--quick", "--world", str(hospital.path), "--task-file", str(tasks), "--data", str(small.path)])
    lines = {line["name"]: line for line in map(json.loads, capfd.readouterr().out.splitlines())}
    assert all(line["p50_us"] > 0 for name, line in lines.items() if name.startswith(("reset", "step")))
    assert sum(name.startswith("reset to a new variation") for name in lines) == 10
    for name in ("ten tasks of ours", "the official tasks, official", "the official tasks, state"):
        assert lines[f"gold on {name}"]["n"] == lines[f"gold on {name}"]["successes"] == 10, name
    memory = lines["memory of each of 2 workers"]
    assert 0 < memory["uss_mib"] <= memory["pss_mib"] <= memory["rss_mib"]
