"""The whole study with the simulated model: all experiments, all configurations, and every figure has content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from fhir_gym import evaluation
from fhir_gym.cli.report import report_experiments
from fhir_gym.experiments import STUDY_CONFIGURATIONS, ExperimentConfig, experiment_status, run_experiment
from fhir_gym.fhir import World
from fhir_gym.rollouts import Prices, read_rollouts
from fhir_gym.tasks import EXPERIMENTS
from fhir_gym.testing import ChatServer, StudyModel
from tests.experiments.study import config_of, study_model

pytestmark = pytest.mark.slow
KEYS = ("01", "02a", "11a", "21a")


def test_all_experiments_with_all_configurations(hospital: World, tmp_path: Path) -> None:
    """One test, because a fixture of several tests would run in each worker."""
    folders = _study(hospital, tmp_path / "study")
    _memory_helps_the_simulated_model(folders)
    _every_figure_has_content(folders)
    _the_report_is_written(folders, tmp_path / "report")


def _study(hospital: World, root: Path) -> list[Path]:
    """Return the folders of the four experiments."""
    with ChatServer(study_model(hospital, tasks=KEYS)) as server:
        for name in EXPERIMENTS:
            experiment = run_experiment(
                config_of(server, name, STUDY_CONFIGURATIONS, tasks=KEYS, repeats=2), root / name
            )
            assert experiment.missing == experiment.errors == 0 and all(
                memory.trained for memory in experiment.memories
            )
    return [root / name for name in EXPERIMENTS]


def _memory_helps_the_simulated_model(study: list[Path]) -> None:
    successes: Counter[str] = Counter()
    for folder in study:
        successes.update(
            {configuration.name: configuration.successes for configuration in experiment_status(folder).configurations}
        )
    assert successes["baseline"] < successes["memory"]
    assert successes["baseline"] < successes["memory-spec"]
    read = list(read_rollouts(study[1] / "rollouts/memory-spec.jsonl"))
    assert {lookup.source for rollout in read for lookup in rollout.lookups} == {"memory"}
    assert any(lookup.result.startswith("1.") for rollout in read for lookup in rollout.lookups)


def _every_figure_has_content(study: list[Path]) -> None:
    report = evaluation.Report(evaluation.read_runs(study))
    assert {run.experiment for run in report.runs} == set(EXPERIMENTS)
    pooled = report.pooled().statistics
    assert all(any(statistics.failure_modes.counts[mode] for statistics in pooled) for mode in evaluation.FAILURE_MODES)
    for statistics in pooled:
        assert statistics.success.sd and statistics.light.of
        assert statistics.variance is not None and statistics.variance.exact.total > 0
        assert sum(error.errors > 0 for error in statistics.tool_errors) >= 2
        assert all(
            values.n
            for values in (statistics.tool_calls.success, statistics.tool_calls.failure, statistics.tool_calls.expected)
        )
        assert len({label for label, values in statistics.tokens.by_difficulty if values.n}) >= 2
        assert statistics.token_variation.overall and statistics.token_variation.same_prompt.n
    assert any((difference.difference or 0) > 0 for difference in report.pooled().differences)


def _the_report_is_written(study: list[Path], out: Path) -> None:
    report_experiments(study, out, Prices(1, 2), pool=True)
    written = (out / "report.md").read_text("utf-8")
    assert all(name in written for name in STUDY_CONFIGURATIONS)


def test_other_packs_take_part(own_world: Callable[[str], World], tmp_path: Path) -> None:
    packs = ("FHIRAgent/MedAgentBench-v0", "FHIRAgent/ActionReasoning-v0")
    settings: dict[str, Any] = {"env_ids": packs, "tasks": ("01", "03"), "repeats": 1}
    every = ExperimentConfig("experiment-3", "scripted", ("baseline",), **settings)
    known = [episode for part in (every.definition.train, every.definition.test) for episode in every.episodes(part)]
    with ChatServer(StudyModel({env_id: own_world(env_id) for env_id in packs}, known)) as server:
        config = config_of(server, "experiment-3", ("baseline", "memory", "medagentbench"), **settings)
        experiment = run_experiment(config, tmp_path)
    assert experiment.missing == experiment.errors == 0
    assert all(0 < configuration.successes < configuration.done == 12 for configuration in experiment.configurations)
    assert {rollout.env_id for rollout in read_rollouts(tmp_path / "rollouts/memory.jsonl")} == set(packs)
