from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from fhir_gym.fhir import World
from fhir_gym.tasks import EXPERIMENTS
from fhir_gym.testing import ChatServer
from tests.experiments.study import study_model


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_run_and_status(cli: Any, hospital: World) -> None:
    with ChatServer(study_model(hospital, tasks=("02a",))) as server:
        line = ["experiment", "run", "experiment-1", "--model", "scripted", "--base-url", server.base_url]
        line += ["--tasks", "02a", "--config", "baseline", "--set", "seed=0", "--repeats", "2", "--out", "study"]
        some = cli(*line, "--max-tokens", 100, "--concurrency", 1)
        done = cli(*line, "--price-in", 1, "--price", "scripted=2,4")
        other = cli(*line, "--seed", 1)
        paid = len(server.requests)
    status = cli("experiment", "status", "study", "--price", "scripted=2,4")
    plain = json.loads(cli("experiment", "status", "study", "--json").out)
    assert len(server.requests) == paid
    assert some.code == 0 and "the budget is used up and" in some.err and "remain" in some.err
    assert done.code == 0 and done.out == status.out and "cost 0." in done.out
    assert (other.code, other.err.count("\n")) == (1, 1) and "seed is 0 there and 1 here" in other.err
    assert plain["missing"] == 0 and [configuration["done"] for configuration in plain["configurations"]] == [2]


def test_an_agent_by_its_name(cli: Any) -> None:
    line = ("experiment", "run", "experiment-2", "--agent", "idle", "--tasks", "02a", "--repeats", 1, "--out", "study")
    done = cli(*line)
    assert done.code == 0 and "agent" in done.out and cli(*line).out == done.out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("status", "nothing"), 1, "nothing holds no experiment"),
        (("report", "nothing"), 1, "nothing holds no experiment"),
        (("run", "experiment-9", "--model", "m", "--out", "x"), 2, "unknown experiment 'experiment-9'"),
        (("run", "experiment-1", "--model", "m", "--out", "x", "--config", "b"), 2, "unknown configuration 'b'"),
        (("run", "experiment-1", "--model", "m", "--out", "x", "--price", "m"), 2, "MODEL=IN,OUT"),
        (("run", "experiment-1", "--out", "x"), 2, "name either a model or an agent"),
        (
            ("run", "experiment-1", "--model", "m", "--agent", "idle", "--out", "x"),
            2,
            "name either a model or an agent",
        ),
        (("run", "experiment-1", "--agent", "idle", "--config", "spec", "--out", "x"), 2, "leave them out"),
        (("run", "experiment-1", "--model", "m", "--out", "x"), 1, "OpenAI's endpoint needs a key"),
    ],
)
def test_mistakes_give_one_line(cli: Any, argv: tuple[str, ...], code: int, message: str) -> None:
    outcome = cli("experiment", *argv)
    assert (outcome.code, outcome.err.count("\n")) == (code, 1)
    assert message in outcome.err
    assert not list(Path().iterdir())


def test_experiments_are_listed_with_their_sizes(cli: Any) -> None:
    listed = cli("experiment", "list").out
    assert [line.split()[0] for line in listed.splitlines()[1:]] == list(EXPERIMENTS)
