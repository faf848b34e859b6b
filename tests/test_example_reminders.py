"""The example task that sends reminders is sound, and a script plays it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str) -> str:
    """Run Python in the folder of the examples; return what it prints."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=ROOT / "examples", env=environ, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_lazy_agent_fails() -> None:
    assert run("reminders.py").splitlines() == [f"gold {[1.0] * 5}", f"scripted {[0.0] * 5}"]


@pytest.mark.slow
def test_the_task_is_sound() -> None:
    rows = run("-m", "fhir_gym", "tasks", "check", "reminders", "--variations", "2").splitlines()
    assert any(row.startswith("Reminders-v0") and row.split()[-1] == "yes" for row in rows)
