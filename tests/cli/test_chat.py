from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from starlette.responses import HTMLResponse

from fhir_gym.fhir import World
from fhir_gym.rollouts import read_rollouts
from fhir_gym.testing import ChatServer, GoldOverChat
from tests.worlds.serving import served

ENV_ID = "FHIRAgent/Appointment-v0"


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_stops_at_its_budget_and_resumes(cli: Any, hospital: World) -> None:
    gold = GoldOverChat(hospital, [(ENV_ID, "01", number) for number in range(3)])
    with ChatServer(gold) as server:
        line = ["rollout", ENV_ID, "--agent", "chat", "--set", "model=scripted", "--set", f"base_url={server.base_url}"]
        line += [
            "--protocol",
            "tools",
            "--tasks",
            "01",
            "--variations",
            "0-2",
            "--concurrency",
            "2",
            "--out",
            "r.jsonl",
        ]
        first = cli(*line, "--max-episodes", 2, "--price-in", 1, "--price-out", 2.5)
        second = cli(*line, "--resume")
        other = cli(*line, "--resume", "--set", "temperature=0")
    assert (first.code, second.code, other.code) == (0, 0, 0)
    assert "1 episodes remain; use --resume to continue" in first.err
    assert "input tokens, " in first.out and ", cost 0.00" in first.out
    assert "1 episodes written to r.jsonl" in second.err and "cost" not in second.out
    assert "3 episodes written to r.jsonl" in other.err  # other settings give other episodes
    rollouts = list(read_rollouts("r.jsonl"))
    assert len(rollouts) == 6 and all(rollout.success for rollout in rollouts)
    assert {rollout.opening.protocol for rollout in rollouts if rollout.opening} == {"tools"}


def test_a_run_without_a_verdict_gives_the_reason_and_fails(cli: Any) -> None:
    with ChatServer(["GET /Patient?_count=1", "FINISH([])"], faults=[None, "500", None, None, None, "500"]) as server:
        line = ["rollout", ENV_ID, "--agent", "chat", "--set", "model=scripted", "--set", f"base_url={server.base_url}"]
        line += ["--set", "retries=0", "--tasks", "01", "--variations", "0", "--out", "r.jsonl"]
        failed, done = cli(*line), cli(*line, "--resume")
        before = Path("r.jsonl").read_bytes()
        again = cli(*line, "--overwrite")
    assert (failed.code, failed.err.count("\n")) == (1, 1)
    assert "no episode has a verdict: 127.0.0.1 failed 1 times: HTTP 500" in failed.err
    assert done.code == 0
    assert again.code == 1 and "HTTP 500" in again.err
    assert Path("r.jsonl").read_bytes() == before


def test_a_page_in_place_of_a_model_ends_the_run_at_once(cli: Any) -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        await HTMLResponse("<html>hello</html>")(scope, receive, send)

    with served(page) as url:
        outcome = cli(
            "rollout", ENV_ID, "--agent", "chat", "--set", "model=m", "--set", f"base_url={url}", "--tasks", "01"
        )
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "answered with a web page" in outcome.err
    assert not list(Path().iterdir())


def test_episodes_without_verdict_are_reported_and_repeated(cli: Any) -> None:
    with ChatServer(["FINISH([])"], faults=[None, "500"]) as server:
        line = ["rollout", ENV_ID, "--agent", "chat", "--set", "model=scripted", "--set", f"base_url={server.base_url}"]
        line += ["--set", "retries=0", "--tasks", "01", "--variations", "0-1", "--concurrency", "1", "--out", "r.jsonl"]
        first, second = cli(*line), cli(*line, "--resume")
    assert "1 episodes have no verdict" in first.err
    assert "1 episodes written" in second.err
    assert [rollout.graded for rollout in read_rollouts("r.jsonl")] == [True, False, True]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "agent chat needs a value for model"),
        (["model=m"], "set OPENAI_API_KEY, or base_url"),
        (["model=m", "base_url=localhost:1"], "base_url must be a URL such as http://localhost:8000/v1"),
        (["model=m", "base_url=http://127.0.0.1:9/v1"], "no server answers at http://127.0.0.1:9/v1: is it running?"),
        (["model=m", "modle=x"], "unknown setting of agent chat 'modle'; did you mean 'model'?"),
    ],
)
def test_each_mistake_is_one_line(cli: Any, settings: list[str], message: str) -> None:
    given = [word for setting in settings for word in ("--set", setting)]
    outcome = cli("rollout", ENV_ID, "--agent", "chat", "--tasks", "01", "--variations", "0", *given)
    assert outcome.code in (1, 2)
    assert outcome.err.startswith("error: ") and message in outcome.err and outcome.err.count("\n") == 1


def test_a_missing_extra_is_a_line(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.agents.provider.find_spec", lambda name: None)
    outcome = cli("rollout", ENV_ID, "--agent", "chat", "--set", "model=m")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "pip install '.[llm]'" in outcome.err


def test_a_configuration_sets_protocol_and_tools(cli: Any, hospital: World) -> None:
    with ChatServer(GoldOverChat(hospital, [(ENV_ID, "01", 0)])) as server:
        line = ["rollout", ENV_ID, "--agent", "chat", "--set", "model=scripted", "--set", f"base_url={server.base_url}"]
        line += ["--tasks", "01", "--variations", "0", "--out", "r.jsonl", "--config", "spec"]
        assert cli(*line).code == 0
        clash = cli(*line, "--overwrite", "--protocol", "text")
    (rollout,) = read_rollouts("r.jsonl")
    assert rollout.success and rollout.opening and rollout.opening.protocol == "tools"
    assert isinstance(rollout.agent.settings["tools"], dict) and list(rollout.agent.settings["tools"]) == ["spec"]
    assert "--config spec already sets protocol: leave one of them out" in clash.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "memroy"], "unknown configuration 'memroy'; did you mean 'memory'?"),
        (["--config", "memory"], "the configuration memory needs a memory file"),
        (["--config", "memory", "--set", "memory=none.jsonl"], "none.jsonl"),
        (["--config", "spec", "--set", "memory=m.jsonl"], "the configuration spec has no memory"),
    ],
)
def test_mistakes_with_configurations_are_one_line(cli: Any, words: list[str], message: str) -> None:
    line = ["rollout", ENV_ID, "--agent", "chat", "--set", "model=m", "--set", "base_url=http://127.0.0.1:9/v1"]
    outcome = cli(*line, *words)
    assert outcome.code in (1, 2) and outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
    assert message in outcome.err
