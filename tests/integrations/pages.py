"""Run the examples of the documentation in the environment of an integration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.test_docs import ROOT, blocks


def run_page(name: str, folder: Path) -> str:
    """Run the Python blocks of a page as one program, and return its output."""
    source = "\n".join(code for code, _ in blocks(ROOT / "docs" / name))
    command = [sys.executable, "-c", source]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
