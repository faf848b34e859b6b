"""Evaluations: their folder, resuming, other folders, interruptions, and the command."""

from __future__ import annotations

import json
import os
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fhir_gym
from benchmarks import suites as benchmark_suites
from benchmarks.official_agreement import open_data
from benchmarks.suites import AGENTS
from fhir_gym.agents import EpisodeContext, GoldAgent, ScriptedAgent
from fhir_gym.errors import FhirGymError, InfraError, RecordError, UnknownNameError, WrongTypeError
from fhir_gym.files import FileLock
from fhir_gym.rollouts import Budget, Prices, read_rollouts, write_rollouts
from fhir_gym.suites import OFFICIAL, Card, Suite, evaluate, get_suite, suite
from fhir_gym.testing import ChatServer
from tests.cli.conftest import cli as cli  # a fixture
from tests.suites.conftest import APPOINTMENT


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "rollouts.jsonl"}


class FailsOnce(GoldAgent):
    """The reference solution, behind a provider that fails in two episodes, but not a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = {("01", 1001), ("02", 1000)}

    def act(self, observation: str) -> str:
        if self.here in self.failing:
            self.failing.remove(self.here)
            raise InfraError("503 | <script>alert(1)</script>\n\x1b[31m")
        return super().act(observation)

    def reset(self, observation: str, context: EpisodeContext) -> None:
        super().reset(observation, context)
        self.here = (context.task, context.variation)


class Interrupts(GoldAgent):
    """The reference solution, which the user interrupts in the third episode."""

    episodes = 0

    def reset(self, observation: str, context: EpisodeContext) -> None:
        self.episodes += 1
        if self.episodes == 3:
            raise KeyboardInterrupt
        super().reset(observation, context)


def test_an_evaluation_writes_records_and_a_card(tiny: Suite, tmp_path: Path) -> None:
    out = tmp_path / "new" / "gold"
    told: list[tuple[int, int, str]] = []
    card = fhir_gym.evaluate(tiny, "gold", out, repeats=2, progress=lambda *progress: told.append(progress))
    assert sorted(path.name for path in out.iterdir()) == ["card.json", "card.md", "rollouts.jsonl"]
    assert card.complete and card.overall.success.share == card.mean_over_packs == 1
    assert Card.load(out / "card.json") == card
    rollouts = list(read_rollouts(out / "rollouts.jsonl"))
    episodes = {(r.env_id, r.task.key, r.task.variation, r.task.phrasing) for r in rollouts}
    assert (len(rollouts), episodes) == (12, set(tiny.episodes))
    assert told[-1] == (12, 12, "success 100%")


def test_a_repeated_call_runs_nothing_and_gives_the_same_card(tiny: Suite, tmp_path: Path) -> None:
    evaluate(tiny, "idle", tmp_path)
    before = files(tmp_path), (tmp_path / "rollouts.jsonl").read_bytes()
    evaluate(tiny, "idle", tmp_path, progress=lambda done, total, text: pytest.fail("an episode ran"))
    assert (files(tmp_path), (tmp_path / "rollouts.jsonl").read_bytes()) == before
    evaluate(tiny, "idle", tmp_path, date="2026-11-23", prices=Prices(1, 2))
    assert Card.load(tmp_path / "card.json").date == "2026-11-23"


def test_equal_evaluations_give_equal_cards(tiny: Suite, tmp_path: Path) -> None:
    """Also if one of them stops at its budget several times and is killed while it writes."""
    evaluate(tiny, "random", tmp_path / "one")
    for number in range(4):
        card = evaluate(tiny, "random", tmp_path / "two", budget=Budget(episodes=2))
        assert card.complete == (number >= 2)
        with (tmp_path / "two" / "rollouts.jsonl").open("ab") as file:
            file.write(b'{"schema_version":2,"env_id":"FHIRAge')
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_budget_covers_all_packs_and_the_card_says_what_is_missing(tiny: Suite, tmp_path: Path) -> None:
    card = evaluate(tiny, "gold", tmp_path, budget=Budget(episodes=5))
    assert (card.overall.graded, card.overall.missing, card.complete) == (5, 1, False)
    assert [pack.figures.graded for pack in card.packs] == [4, 1]
    assert card.remarks == ("incomplete: 1 of 6 episodes are missing",)
    assert "> **incomplete: 1 of 6 episodes are missing**" in (tmp_path / "card.md").read_text("utf-8")
    card = evaluate(tiny, "gold", tmp_path / "less", budget=Budget(episodes=3))
    assert card.mean_over_packs is None, "a pack has no verdict"


def test_failures_of_the_provider_are_no_failures_of_the_agent(tiny: Suite, tmp_path: Path) -> None:
    agent = FailsOnce()
    card = evaluate(tiny, agent, tmp_path)
    assert (card.overall.graded, card.overall.failed, card.overall.missing) == (4, 2, 0)
    assert (card.overall.success.share, card.complete) == (1, False)
    assert card.remarks == (
        "2 of 6 episodes have no verdict, because a provider or server failed: 503 | <script>alert(1)</script>??[31m",
    )
    text = (tmp_path / "card.md").read_text("utf-8")
    assert "\\<script" in text and not re.search(r"[^\\][<|]script|\x1b", text) and "4 of 6" in text
    card = evaluate(tiny, agent, tmp_path)
    assert card.complete and card.remarks == () and card.overall.graded == 6
    assert len(list(read_rollouts(tmp_path / "rollouts.jsonl"))) == 8, "the failures remain on record"


def test_an_interrupt_keeps_finished_episodes_and_writes_a_card(tiny: Suite, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate(tiny, Interrupts(), tmp_path)
    card = Card.load(tmp_path / "card.json")
    assert (card.overall.graded, card.overall.missing, card.complete) == (2, 4, False)
    assert evaluate(tiny, Interrupts(), tmp_path / "rest", budget=Budget(episodes=2)).overall.graded == 2


@pytest.fixture(scope="module")
def two_random_runs(tiny: Suite, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random")
    evaluate(tiny, "random", folder, repeats=2)
    return folder


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"agent": "idle"}, "it is by agent random, or with other settings"),
        ({"agent": fhir_gym.make_agent("random", finish=0.5)}, "it is by agent random, or with other settings"),
        ({"seed": 1}, "its seed or its rules differ"),
        ({"repeats": 1}, "its repeat is 1"),
        ({"grading": "evidence"}, "its seed or its rules differ"),
        ({"shorter": True}, "suite tiny-v1 does not have it"),
        ({"phrasing": True}, "its content is that of another version"),
    ],
)
def test_a_folder_of_another_evaluation_is_refused(
    tiny: Suite, two_random_runs: Path, changes: dict[str, Any], problem: str
) -> None:
    tmp_path = two_random_runs
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    given = {"agent": "random", "repeats": 2, **changes}
    first = tiny.episodes[0]
    if given.pop("shorter", False):
        tiny = replace(tiny, episodes=tiny.episodes[1:])
    if given.pop("phrasing", False):
        tiny = replace(tiny, episodes=(first._replace(phrasing="brief"), *tiny.episodes[1:]))
    if "grading" in given:
        tiny = replace(tiny, grading=given.pop("grading"))
    with pytest.raises(RecordError, match=f"rollouts.jsonl holds task 0.*{problem}") as told:
        evaluate(tiny, given.pop("agent"), tmp_path, **given)
    assert "\n" not in str(told.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_records_of_a_changed_task_are_refused(tiny: Suite, tmp_path: Path) -> None:
    evaluate(tiny, "idle", tmp_path / "one")
    first, *others = read_rollouts(tmp_path / "one" / "rollouts.jsonl")
    stale = first.model_copy(update={"task": first.task.model_copy(update={"hash": "0" * 32})})
    write_rollouts(tmp_path / "two" / "rollouts.jsonl", [stale, *others])
    with pytest.raises(RecordError, match="another version of the suite"):
        evaluate(tiny, "idle", tmp_path / "two")


@pytest.mark.parametrize("name", ["rollouts.jsonl", "card.json", "card.md"])
def test_unusable_folders_are_refused_before_the_first_episode(tiny: Suite, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecordError, match="is not a folder"):
        evaluate(tiny, "gold", tmp_path / "file")
    (tmp_path / "folder" / name).mkdir(parents=True)
    with pytest.raises(RecordError, match=f"{name} cannot be written: it is a folder"):
        evaluate(tiny, "gold", tmp_path / "folder")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == [name]


def test_a_folder_in_use_is_refused(tiny: Suite, tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(RecordError, match=f"is in use by process {os.getpid()}"):
        evaluate(tiny, "gold", tmp_path)
    assert (tmp_path / ".lock").exists()
    assert evaluate(tiny, "gold", tmp_path).complete, "the process has ended"
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize("content", [b"hello\n", b"[]\n", b'{"schema_version": 99}\n', b"\xff\xfe\x00\n", b'{"a"'])
def test_files_of_other_programs_are_refused_unchanged(tiny: Suite, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordError, match="rollouts") as told:
        evaluate(tiny, "gold", tmp_path)
    assert "\n" not in str(told.value)
    assert path.read_bytes() == content and len(list(tmp_path.iterdir())) == 1


def test_wrong_arguments_are_refused_at_once(tiny: Suite, tmp_path: Path) -> None:
    wrong: Any = GoldAgent
    with pytest.raises(UnknownNameError, match="did you mean 'core-v2'"):
        evaluate("core-v3", "gold", tmp_path)
    with pytest.raises(FhirGymError, match="suite must be a Suite"):
        evaluate(wrong, "gold", tmp_path)
    with pytest.raises(FhirGymError, match="date must be a date such as"):
        evaluate(tiny, "gold", tmp_path, date="today\n")
    with pytest.raises(FhirGymError, match="repeats"):
        evaluate(tiny, "gold", tmp_path, repeats=0)
    with pytest.raises(WrongTypeError):
        evaluate(tiny, wrong, tmp_path)
    with pytest.raises(UnknownNameError, match="agent"):
        evaluate(tiny, "golden", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def shipped(tiny: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command find the suite."""
    monkeypatch.setitem(suite._SHIPPED, tiny.name, lambda: tiny)


@pytest.mark.usefixtures("shipped")
def test_the_command_writes_the_card(cli: Any, tmp_path: Path) -> None:
    out = tmp_path / "idle"
    done = cli("evaluate", "--suite", "tiny-v1", "--agent", "idle", "--out", out)
    assert done.code == 0 and f"result card written to {out / 'card.md'}" in done.err
    rows = {line.split("  ")[0]: line.split() for line in done.out.splitlines()}
    assert rows["all episodes"][2:4] == ["6", "0.0%"]
    card = json.loads((out / "card.json").read_text("utf-8"))
    assert card["suite"] == "tiny-v1" and card["overall"]["success"]["count"] == 0
    again = cli("evaluate", "--suite", "tiny-v1", "--agent", "idle", "--out", out, "--json")
    assert again.code == 0 and json.loads(again.out) == card


@pytest.mark.usefixtures("shipped")
def test_exit_codes_of_the_command(cli: Any, tmp_path: Path) -> None:
    line = ["evaluate", "--suite", "tiny-v1", "--agent", "gold", "--out", tmp_path / "gold"]
    short = cli(*line, "--max-episodes", 1)
    assert short.code == 1
    assert "incomplete: 5 of 6 episodes are missing" in short.err and "same command continues" in short.err
    assert cli(*line, "--agent", "idle").err.count("\n") == 1
    unnamed = cli("evaluate", "--suite", "tiny-v1", "--out", tmp_path)
    assert unnamed.code == 2 and "name a model with --model" in unnamed.err
    unknown = cli("evaluate", "--suite", "tiny-v2", "--agent", "gold", "--out", tmp_path)
    assert unknown.code == 2 and "did you mean 'tiny-v1'" in unknown.err
    official = cli("evaluate", "--suite", "medagentbench-official-v1", "--agent", "gold", "--out", tmp_path)
    assert official.code == 2 and "needs the benchmark's own task file" in official.err


@pytest.mark.usefixtures("shipped")
def test_an_evaluation_without_a_verdict_fails(cli: Any, tmp_path: Path) -> None:
    line = ["evaluate", "--suite", "tiny-v1", "--agent", "tests.suites.test_runner:unavailable", "--out", tmp_path]
    done = cli(*line, "--max-episodes", 2)
    assert done.code == 1 and "no episode has a verdict" in done.err
    assert "No episode has a verdict" in (tmp_path / "card.md").read_text("utf-8")


def unavailable(observation: str) -> str:
    raise InfraError("503")


@pytest.mark.slow
def test_worker_processes_give_the_same_card(tiny: Suite, tmp_path: Path) -> None:
    evaluate(tiny, "random", tmp_path / "one", repeats=2)
    evaluate(tiny, "random", tmp_path / "two", repeats=2, workers=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_scripted_agents_can_be_evaluated(tiny: Suite, tmp_path: Path) -> None:
    card = evaluate(tiny, ScriptedAgent(["GET /Patient", "FINISH([])"]), tmp_path)
    assert card.agent.name == "scripted" and card.overall.steps == 2
    assert APPOINTMENT in (tmp_path / "card.md").read_text("utf-8")


@pytest.mark.usefixtures("shipped")
def test_the_command_evaluates_a_model_in_a_configuration(cli: Any, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    with ChatServer(["FINISH([])"], api_key="s3cret") as server:
        line: list[Any] = ["evaluate", "--suite", "tiny-v1", "--model", "scripted", "--base-url", server.base_url]
        line += ["--set", "api_key=s3cret", "--out", tmp_path, "--price-in", 1, "--price-out", 2, "--max-cost", 5]
        done = cli(*line, "--config", "text")
        other = cli(*line, "--config", "baseline")
        offered = [bool(request.get("tools")) for request in server.requests]
    assert (done.code, other.code) == (0, 1) and "\ncost 0.0" in done.out
    assert offered == [False] * 6
    assert "it is by agent chat, or with other settings" in other.err
    assert Card.load(tmp_path / "card.json").agent.settings == {"model": "scripted", "protocol": "text"}


@pytest.mark.slow
def test_the_official_suite(shared_dir: Path, tmp_path: Path) -> None:
    """The verdicts of the benchmark itself give an idle agent 70 of 300."""
    data = shared_dir / "medagentbench"
    files = {"task_file": data / "test_data_v2.json", "funcs_file": data / "funcs_v1.json"}
    with ExitStack() as stack:
        suite = get_suite(OFFICIAL, world=stack.enter_context(open_data(str(data), stack)), **files)
        gold, idle = (evaluate(suite, agent, tmp_path / agent) for agent in ("gold", "idle"))
    assert (gold.overall.success.count, idle.overall.success.count) == (300, 70)
    assert gold.suite_hash == idle.suite_hash and gold.grading == "official"
    assert idle.overall.success.clusters == 10, "the ten classes of tasks"
    assert idle.overall.gradings["state"] == 0


@pytest.mark.slow
def test_benchmark_agents_have_their_strength(tiny: Suite, tmp_path: Path) -> None:
    rates = {name: evaluate(tiny, make(), tmp_path / name).overall.success.share for name, (make, _) in AGENTS.items()}
    assert rates["gold"] == 1
    assert {name for name, rate in rates.items() if rate == 0} >= {"wrong value", "memorised", "random", "idle"}
    assert {name for name, rate in rates.items() if rate not in (0, 1)} >= {"first hit", "hasty"}


@pytest.mark.slow
def test_benchmark_writes_a_table(tmp_path: Path) -> None:
    line = ["--suite", "quick-v1", "--agent", "idle", "--out", str(tmp_path / "scores")]
    assert benchmark_suites.main(line) == 0
    table = (tmp_path / "scores.md").read_text("utf-8")
    assert "| idle | finishes at once with an empty answer | 0.0 |" in table
    assert json.loads((tmp_path / "scores.json").read_text("utf-8"))["idle"]["quick-v1"]["of"] == 60
