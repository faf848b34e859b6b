"""The command `fhir-gym view`."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import pytest

import fhir_gym
from tests.cli.conftest import Cli
from tests.cli.test_processes import process


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    path = tmp_path / "rollouts.jsonl"
    fhir_gym.write_rollouts(path, fhir_gym.run("FHIRAgent/Appointment-v0", "idle", tasks=["01"], variations=range(1)))
    return path


def test_export_writes_pages(cli: Cli, rollouts: Path, tmp_path: Path) -> None:
    done = cli("view", rollouts, "--export", tmp_path / "pages")
    assert done.code == 0 and f"open {tmp_path / 'pages' / 'index.html'}" in done.out.replace("\n", "")
    assert "<strong>1</strong> episode" in (tmp_path / "pages" / "index.html").read_text("utf-8")
    done = cli("view", rollouts, "--export", tmp_path / "pages")
    assert done.code == 1 and "is not an empty folder" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing.jsonl", "--port", "0"), "nothing.jsonl does not exist"),
        (("--host", "0.0.0.0"), "0.0.0.0 is not a loopback address"),
        (("--world", "nothing"), "unknown world 'nothing'"),
    ],
)
def test_wrong_input_is_named(cli: Cli, words: tuple[str, ...], message: str) -> None:
    done = cli("view", *words)
    assert done.code in (1, 2) and message in done.err and len(done.err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("sigint_interrupts")
def test_pages_are_served_until_ctrl_c(rollouts: Path) -> None:
    with process("view", rollouts, "--port", "0") as viewer:
        assert viewer.stderr is not None
        url = viewer.stderr.readline().split()[0]
        assert "Episodes" in httpx.get(url, timeout=30).text
        assert json.loads(httpx.get(f"{url}state").text).keys() >= {"version"}
        viewer.send_signal(signal.SIGINT)
        _, errors = viewer.communicate(timeout=20)
    assert "Traceback" not in errors and viewer.returncode == 130
