"""A training that is killed at any point continues, and pays for no reply twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from fhir_gym.reflexion import MemoryTrainingConfig, train_memory
from fhir_gym.testing import ChatServer
from tests.reflexion.conftest import Study, role

_SCRIPT = """
import sys
from fhir_gym.reflexion import make_memory_config, train_memory
import json
train_memory(make_memory_config(json.loads(sys.argv[1])), sys.argv[2])
"""


def _start(config: MemoryTrainingConfig, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _SCRIPT, config.model_dump_json(), str(out)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    "requests_before_kill",
    [
        pytest.param((2, 9, 6), marks=pytest.mark.slow),
        pytest.param((2, 5, 3, 4, 6, 1, 2), marks=pytest.mark.exhaustive),
    ],
    ids=["some", "many"],
)
def test_killed_trainings_end_with_the_same_memory(
    study: Study, tmp_path: Path, config: MemoryTrainingConfig, requests_before_kill: tuple[int, ...]
) -> None:
    undisturbed = train_memory(config, tmp_path / "undisturbed.jsonl")
    out = tmp_path / "memory.jsonl"
    with ChatServer(study, delay=0.05) as server:
        agent = config.agent.model_copy(update={"base_url": server.base_url})
        settings = config.model_copy(update={"agent": agent, "concurrency": 1})
        for count in requests_before_kill:
            before = len(server.requests)
            process = _start(settings, out)
            while len(server.requests) < before + count and process.poll() is None:
                time.sleep(0.01)
            assert process.poll() is None, "the training ended before it was killed"
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert not out.exists()
        assert _start(settings, out).wait() == 0
        reviews = Counter(
            json.dumps(request, sort_keys=True) for request in server.requests if role(request) != "agent"
        )
    assert out.read_text("utf-8") == undisturbed.text()
    # At most the request that was running at a kill is sent again.
    assert sum(reviews.values()) - len(reviews) <= len(requests_before_kill)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.slow
def test_a_torn_last_line_is_ignored(config: MemoryTrainingConfig, tmp_path: Path, server: ChatServer) -> None:
    out = tmp_path / "memory.jsonl"
    memory = train_memory(config, out)
    out.unlink()
    before = len(server.requests)
    folder = tmp_path / "memory.jsonl.training"
    for name in ("replies.jsonl", "trial-2.jsonl"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-40])
    assert train_memory(config, out).text() == memory.text()
    # One reply, and one episode of three requests, are repeated.
    assert len(server.requests) == before + 1 + 3
