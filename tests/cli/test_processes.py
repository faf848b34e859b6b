"""Tests that need a separate process: serving a port, and interruption by Ctrl-C."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from fhir_gym import read_rollouts

COMMAND = [sys.executable, "-m", "fhir_gym"]
ENV = "FHIRAgent/Appointment-v0"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def process(*argv: object) -> Iterator[subprocess.Popen[str]]:
    words = [*COMMAND, *map(str, argv)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_for(url: str) -> httpx.Response:
    for _ in range(200):
        try:
            return httpx.get(url, timeout=10)
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"nothing answers at {url}")


@pytest.mark.usefixtures("sigint_interrupts")
def test_serve_answers_keeps_writes_and_ends_by_ctrl_c() -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}/fhir"
    options = ("--validation", "strict", "--identifier-of-type")
    with process("serve", "--world", "empty", "--port", port, *options) as server:
        assert wait_for(f"{base}/metadata").json()["resourceType"] == "CapabilityStatement"
        created = httpx.post(f"{base}/Patient", json={"resourceType": "Patient", "gender": "female"})
        assert created.status_code == 201
        assert httpx.get(f"{base}/Patient", params={"gender": "female"}).json()["total"] == 1
        assert httpx.post(f"{base}/Observation", json={"resourceType": "Observation"}).status_code == 422
        of_type = {"identifier:of-type": "urn:types|MR|1"}
        assert httpx.get(f"{base}/Patient", params=of_type).json()["total"] == 0
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=20)
    assert base in errors
    assert "Traceback" not in errors


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("sigint_interrupts")
def test_ctrl_c_keeps_finished_episodes(tmp_path: Path, workers: int) -> None:
    out = tmp_path / "rollouts.jsonl"
    argv = ("rollout", ENV, "--variations", "0-999", "--out", out, "--workers", workers)
    with process(*argv) as running:
        for _ in range(400):
            if out.exists() and out.read_bytes().count(b"\n") >= 5:
                break
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert sum(rollout.graded for rollout in read_rollouts(out)) >= 5
