"""Tests of experiments against a scripted model: nothing is paid or counted twice, whatever ends a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from fhir_gym.errors import EndpointError, ExperimentError
from fhir_gym.experiments import ExperimentConfig, ModelPrices, experiment_status, run_experiment
from fhir_gym.fhir import World
from fhir_gym.rollouts import Prices, read_rollouts
from fhir_gym.rollouts.timeline import replay
from fhir_gym.tasks import get_task
from fhir_gym.testing import ChatServer, ScriptedReply, StudyModel
from tests.experiments.study import config_of, results, study_model

ENV_ID = "FHIRAgent/Appointment-v0"
KEYS = ("02a", "11a")


def test_an_experiment_runs_once(hospital: World, tmp_path: Path) -> None:
    prices = ModelPrices(Prices(1, 2))
    with ChatServer(study_model(hospital, tasks=KEYS)) as server:
        config = config_of(server, "experiment-4", ("baseline", "text"), tasks=KEYS, repeats=1)
        experiment = run_experiment(config, tmp_path / "a", prices=prices)
        paid = len(server.requests)
        again = run_experiment(config, tmp_path / "a", prices=prices, concurrency=1)
        assert len(server.requests) == paid
        run_experiment(config, tmp_path / "b", concurrency=1)
    assert again == experiment == experiment_status(tmp_path / "a", prices)
    assert [
        (configuration.name, configuration.episodes, configuration.done, configuration.errors)
        for configuration in experiment.configurations
    ] == [("baseline", 3, 3, 0), ("text", 3, 3, 0)]
    rollouts = [
        rollout for name in ("baseline", "text") for rollout in read_rollouts(tmp_path / f"a/rollouts/{name}.jsonl")
    ]
    assert {
        (rollout.task.key, rollout.task.variation, rollout.task.phrasing, rollout.repeat) for rollout in rollouts
    } == {("11a", variation, 2, 0) for variation in (1000, 1001, 1002)}
    assert experiment.tokens == sum(rollout.usage.total for rollout in rollouts if rollout.usage)
    assert experiment.cost == pytest.approx(
        sum(Prices(1, 2).cost(rollout.usage) for rollout in rollouts if rollout.usage)
    )
    assert experiment.missing == experiment.errors == 0
    assert results(tmp_path / "a") == results(tmp_path / "b")


def test_each_variation_of_a_second_version_has_its_own_paraphrase(hospital: World, tmp_path: Path) -> None:
    task = get_task(ENV_ID, "11a")
    with ChatServer(study_model(hospital, tasks=KEYS)) as server:
        config = config_of(server, "experiment-4-v2", ("baseline",), tasks=KEYS, repeats=2)
        experiment = run_experiment(config, tmp_path)
        paid = len(server.requests)
        assert run_experiment(config, tmp_path) == experiment and len(server.requests) == paid
    assert experiment.missing == experiment.errors == 0
    rollouts = list(read_rollouts(tmp_path / "rollouts/baseline.jsonl"))
    wordings = {(rollout.task.variation, rollout.task.phrasing) for rollout in rollouts}
    assert len({wording for _, wording in wordings}) == len(wordings) == 3
    for rollout in rollouts:
        wording = task.wording_of(rollout.task.variation, "paraphrase")
        assert rollout.task.phrasing == wording and task.wordings[int(wording)] in task.paraphrases.test
        assert replay(rollout, hospital).verdict == rollout.verdict


@pytest.mark.slow
def test_a_memory_is_trained_on_the_training_paraphrases(hospital: World, tmp_path: Path) -> None:
    with ChatServer(study_model(hospital, tasks=KEYS[:1])) as server:
        config = config_of(server, "experiment-3-v2", ("memory",), tasks=KEYS[:1], repeats=1)
        experiment = run_experiment(config, tmp_path)
    task = get_task(ENV_ID, KEYS[0])
    assert experiment.memories[0].trained and experiment.missing == experiment.errors == 0
    learnt, tested = (
        {task.wordings[int(rollout.task.phrasing)] for path in paths for rollout in read_rollouts(path)}
        for paths in ((tmp_path / "memory").rglob("trial-*.jsonl"), (tmp_path / "rollouts").glob("*.jsonl"))
    )
    assert len(learnt) == 2 and learnt <= set(task.paraphrases.train)
    assert len(tested) == 3 and tested <= set(task.paraphrases.test)


class FinishesAtOnce:
    """An agent of somebody else."""

    name = "finishes-at-once"

    def __init__(self, answer: str = "") -> None:
        self.settings = {"answer": answer}

    def reset(self, observation: str, context: object) -> None: ...

    def act(self, observation: str) -> str:
        return f"FINISH({json.dumps([self.settings['answer']])})"


def test_an_agent_of_somebody_else_is_tested_and_continues(tmp_path: Path) -> None:
    agent = f"{__name__}:FinishesAtOnce"
    config = ExperimentConfig(
        "experiment-2", agent, (), agent=agent, settings={"answer": "12"}, tasks=("02a",), repeats=2
    )
    experiment = run_experiment(config, tmp_path)
    assert [(tested.name, tested.done, tested.successes) for tested in experiment.configurations] == [("agent", 6, 0)]
    rollouts = [*read_rollouts(tmp_path / "rollouts" / "agent.jsonl")]
    assert {(rollout.agent.name, rollout.agent.settings["answer"]) for rollout in rollouts} == {
        ("finishes-at-once", "12")
    }
    manifest = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    assert (manifest["model"], manifest["settings"]) == ({"model": agent, "hosts": []}, {"answer": "12"})
    assert run_experiment(config, tmp_path) == experiment
    assert len([*read_rollouts(tmp_path / "rollouts" / "agent.jsonl")]) == 6
    with pytest.raises(ExperimentError, match=r"settings\.answer"):
        run_experiment(replace(config, settings={"answer": "13"}), tmp_path)


def test_a_budget_applies_to_the_whole_experiment(hospital: World, tmp_path: Path) -> None:
    with ChatServer(study_model(hospital, tasks=KEYS)) as server:
        config = config_of(server, "experiment-4", ("baseline", "text"), tasks=KEYS, repeats=1)
        some = run_experiment(config, tmp_path, concurrency=1, max_tokens=100)
        assert (some.missing, some.errors) == (5, 0) and some.tokens >= 100
        paid = len(server.requests)
        assert run_experiment(config, tmp_path, max_tokens=100) == some
        with pytest.raises(ExperimentError, match="a maximum cost needs the prices of scripted's tokens"):
            run_experiment(config, tmp_path, max_cost=1)
        cheap = ModelPrices(by_model={"scripted": Prices(1, 1)})
        assert run_experiment(config, tmp_path, max_cost=some.tokens / 1e6, prices=cheap).missing == some.missing
        assert len(server.requests) == paid
        experiment = run_experiment(config, tmp_path, max_tokens=10_000_000, max_cost=10, prices=cheap)
    assert experiment.missing == 0 and experiment.configurations[0].done == 3


def test_a_dead_endpoint_ends_the_experiment_at_once(hospital: World, tmp_path: Path) -> None:
    with ChatServer(study_model(hospital, tasks=KEYS)) as server:
        config = config_of(server, "experiment-4", ("baseline",), tasks=KEYS, repeats=1)
        port = int(server.url.rpartition(":")[2])
    with pytest.raises(EndpointError, match="no server answers"):
        run_experiment(config, tmp_path)
    assert experiment_status(tmp_path).missing == 3
    with ChatServer(study_model(hospital, tasks=KEYS), port=port):
        assert run_experiment(config, tmp_path).missing == 0


def test_failed_episodes_are_repeated(hospital: World, tmp_path: Path) -> None:
    with ChatServer(study_model(hospital, tasks=KEYS), faults=[None, "500"]) as server:
        settings = {"settings": {"retries": 0}}
        config = config_of(server, "experiment-4", ("baseline",), tasks=KEYS, repeats=1, **settings)
        failed = run_experiment(config, tmp_path, concurrency=1)
        assert (failed.missing, failed.errors) == (1, 1) and "HTTP 500" in failed.first_error
        experiment = run_experiment(config, tmp_path, concurrency=1)
    assert (experiment.missing, experiment.errors, experiment.first_error) == (0, 0, "")
    assert len(list(read_rollouts(tmp_path / "rollouts/baseline.jsonl"))) == 4
    assert experiment.tokens > failed.tokens  # the failed attempt was paid for


def test_an_endpoint_that_goes_down_ends_the_experiment(hospital: World, tmp_path: Path) -> None:
    with ChatServer(study_model(hospital, tasks=KEYS), faults=lambda number: "500" if number else None) as server:
        config = config_of(server, "experiment-4", ("text", "baseline"), tasks=KEYS, settings={"retries": 0}, repeats=1)
        experiment = run_experiment(config, tmp_path, concurrency=1)
    assert [(configuration.name, configuration.errors) for configuration in experiment.configurations] == [
        ("text", 3),
        ("baseline", 0),
    ]


@pytest.mark.slow
def test_a_changed_memory_is_refused_and_a_budget_stops_training(hospital: World, tmp_path: Path) -> None:
    with ChatServer(study_model(hospital, tasks=KEYS)) as server:
        config = config_of(server, "experiment-3", ("memory",), tasks=KEYS, repeats=1)
        some = run_experiment(config, tmp_path, max_tokens=5_000, concurrency=1)
        assert not some.memories[0].trained and some.tokens >= 5_000 and some.configurations[0].done == 0
        assert run_experiment(config, tmp_path, max_tokens=5_000).tokens == some.tokens
        experiment = run_experiment(config, tmp_path)
        paid = len(server.requests)
        file = tmp_path / "memory/plain.jsonl"
        content = file.read_bytes()
        file.unlink()
        assert run_experiment(config, tmp_path) == experiment and file.read_bytes() == content
        assert len(server.requests) == paid
        file.write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
        with pytest.raises(Exception) as caught:
            run_experiment(config, tmp_path)
    assert "\n" not in str(caught.value)


class _Killer:
    """A policy that kills a process before the reply to a certain request."""

    def __init__(self, model: StudyModel) -> None:
        self.model = model
        self.left: int | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self, request: Mapping[str, Any]) -> ScriptedReply | str:
        if self.left is not None:
            self.left -= 1
            if self.left == 0 and self.process is not None:
                os.kill(self.process.pid, signal.SIGKILL)
        return self.model(request)


@pytest.mark.parametrize(
    # An unfinished episode starts anew, so a part has more requests than an episode.
    "parts",
    [pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.exhaustive)],
)
def test_kills_at_any_stage_change_nothing(hospital: World, tmp_path: Path, parts: int) -> None:
    model = _Killer(study_model(hospital, tasks=KEYS[:1]))
    with ChatServer(model) as server:
        command = [sys.executable, "-m", "fhir_gym", "experiment", "run", "experiment-3", "--model", "scripted"]
        command += ["--base-url", server.base_url, "--tasks", KEYS[0], "--repeats", "1", "--set", "seed=0"]
        command += ["--config", "baseline", "--config", "memory-spec", "--concurrency", "1", "--out"]
        subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
        total = len(server.requests)
        kills = 0
        while True:
            model.left = total // parts + 1
            with subprocess.Popen([*command, str(tmp_path / "killed")], stderr=subprocess.PIPE) as process:
                model.process = process
                message = process.communicate()[1]
            if process.returncode == 0:
                break
            assert process.returncode == -signal.SIGKILL, message
            kills += 1
            assert kills < 5 * parts
        repeated = len(server.requests) - 2 * total
    assert kills >= parts - 1
    assert results(tmp_path / "whole") == results(tmp_path / "killed")
    longest = 16  # requests of one episode
    assert 0 <= repeated <= kills * longest
    statuses = [experiment_status(tmp_path / name) for name in ("whole", "killed")]
    assert statuses[0] == statuses[1]
    manifest = json.loads((tmp_path / "killed/manifest.json").read_text("utf-8"))
    assert manifest["memories"]["spec"]["hash"]
