from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from fhir_gym.testing import ChatServer

REPLY = '{"opinion": "agreement", "reason": "\x1b[31mFine."}'


@pytest.fixture(autouse=True)
def rollouts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for agent in ("gold", "idle"):
        line = ["rollout", "FHIRAgent/Appointment-v0", "--agent", agent, "--tasks", "02a,02b", "--variations", "0"]
        assert cli(*line, "--out", f"{agent}.jsonl").code == 0


def test_review_of_verdicts(cli: Any) -> None:
    with ChatServer(lambda request: REPLY) as server:
        line = ["tasks", "review", "gold.jsonl", "idle.jsonl", "--model", "scripted", "--base-url", server.base_url]
        line += ["--out", "review"]
        first = cli(*line, "--max-reviews", 1, "--tasks", "02a")
        failures = cli(*line, "--outcome", "failure", "--json")
        rest = cli(*line)
        assert len(server.requests) == 4
    assert (first.code, failures.code, rest.code) == (0, 0, 0)
    assert "the budget is spent; repeat the command to continue" in first.err
    assert json.loads(failures.out)["asked"] == 2
    assert "Search an existing patient" in rest.out
    assert "opinions: 1 new, 3 from earlier runs; the sheet is review/review.md" in rest.err
    assert Path("review/review.md").is_file()


def test_mistakes_are_one_line(cli: Any) -> None:
    line = ["tasks", "review", "gold.jsonl", "--model", "scripted", "--out", "review"]
    missing = cli("tasks", "review", "nowhere.jsonl", *line[3:], "--base-url", "http://127.0.0.1:9/v1")
    no_url = cli(*line, "--base-url", "nonsense")
    down = cli(*line, "--base-url", "http://127.0.0.1:9/v1")
    with ChatServer(lambda request: REPLY) as server:
        nothing = cli(*line, "--base-url", server.base_url, "--tasks", "99")
    assert [output.code for output in (missing, no_url, down, nothing)] == [1, 2, 1, 2]
    assert "nowhere.jsonl: cannot be read" in missing.err and "base_url must be a URL" in no_url.err
    assert (
        "no server answers at http://127.0.0.1:9/v1" in down.err
        and "unknown task of these rollouts '99'" in nothing.err
    )
    assert all(output.err.count("\n") == 1 for output in (missing, no_url, down, nothing))
