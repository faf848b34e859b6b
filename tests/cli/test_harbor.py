"""`fhir-gym research harbor serve` and `fhir-gym research harbor verdict`, as processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

COMMAND = [sys.executable, "-m", "fhir_gym", "research", "harbor"]
EPISODE = ["FHIRAgent/Appointment-v0", "--task", "02a", "--variation", "1000"]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.mark.slow
def test_a_served_episode_is_graded_over_its_socket(tmp_path: Path) -> None:
    path, out, port = tmp_path / "x.sock", tmp_path / "verdict", free_port()
    command = [*COMMAND, "serve", *EPISODE, "--port", str(port), "--socket", str(path)]
    verdict = [*COMMAND, "verdict", "--socket", str(path), "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        assert f"http://127.0.0.1:{port}/fhir" in server.stderr.readline()
        assert httpx.get(f"http://127.0.0.1:{port}/fhir/Patient?_count=1").status_code == 200
        subprocess.run(verdict, check=True)
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=10)
    assert json.loads((out / "reward.json").read_text()) == {"reward": 0.0}
    told = json.loads((out / "verdict.json").read_text())
    assert (told["stop_reason"], told["steps"]) == ("unfinished", 1)
    late = subprocess.run(verdict, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, check=False)
    assert late.returncode == 1
    assert "does not answer" in late.stderr
