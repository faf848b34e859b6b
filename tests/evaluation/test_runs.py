from __future__ import annotations

from pathlib import Path

import pytest

from fhir_gym.agents import Usage
from fhir_gym.errors import RecordError
from fhir_gym.evaluation import Report, read_runs
from fhir_gym.rollouts import write_rollouts
from tests.evaluation.records import LARGE, SMALL, rollout, study, used


def test_a_folder_stands_for_its_rollout_files(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    for name in ("memory", "baseline"):
        write_rollouts(folder / "rollouts" / f"{name}.jsonl", study())
    write_rollouts(folder / "memory" / "training.jsonl", study())
    (folder / "rollouts" / ".baseline.jsonl.7.part").write_text("{")
    runs = read_runs([folder])
    assert [(run.name, run.configuration, run.experiment) for run in runs] == [
        ("baseline", "baseline", "study"),
        ("memory", "memory", "study"),
    ]
    plain = tmp_path / "plain"
    write_rollouts(plain / "text.jsonl", study())
    assert [run.name for run in read_runs([plain])] == ["text"]


@pytest.mark.parametrize(
    ("manifest", "name"),
    [
        ('{"experiment": "experiment-2"}', "experiment-2"),
        ('{"experiment": 5}', "study"),
        ('["experiment"]', "study"),
        ("{", "study"),
        ("[" * 100_000, "study"),
    ],
)
def test_the_manifest_names_the_experiment(tmp_path: Path, manifest: str, name: str) -> None:
    folder = tmp_path / "study"
    write_rollouts(folder / "rollouts" / "baseline.jsonl", study())
    (folder / "manifest.json").write_text(manifest)
    (run,) = read_runs([folder])
    assert run.experiment == name


def test_runs_of_several_experiments_and_models_have_different_names(tmp_path: Path) -> None:
    for experiment in ("one", "two"):
        write_rollouts(tmp_path / experiment / "rollouts" / "baseline.jsonl", [rollout(settings=SMALL)])
    path, two = tmp_path / "one", tmp_path / "two"
    assert [run.name for run in read_runs([path, two])] == ["one baseline", "two baseline"]
    assert [run.name for run in read_runs([path, path])] == ["baseline", "baseline #2"]
    write_rollouts(path / "rollouts" / "baseline.jsonl", [rollout(settings=LARGE)])
    runs = read_runs([path, two])
    assert [run.name for run in runs] == ["one baseline small", "one baseline large", "two baseline small"]
    pooled = Report(runs).pooled()
    assert [(run.name, len(run.episodes)) for run in pooled.runs] == [("baseline small", 2), ("one baseline large", 1)]


def test_files_and_folders_can_be_mixed(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "one" / "baseline.jsonl", study())
    write_rollouts(tmp_path / "own.jsonl", [rollout(agent="gold")])
    runs = read_runs([tmp_path / "one", tmp_path / "own.jsonl"])
    assert [(run.name, run.configuration, run.experiment) for run in runs] == [
        ("one baseline", "baseline", "one"),
        ("gold", "gold", ""),
    ]
    assert Report(runs).pooled().runs == runs


def test_pooling_keeps_a_configuration_of_one_experiment_among_the_compared_runs(tmp_path: Path) -> None:
    for experiment in ("one", "two"):
        write_rollouts(tmp_path / experiment / "baseline.jsonl", study(0))
        write_rollouts(tmp_path / experiment / "spec.jsonl", study(1))
    write_rollouts(tmp_path / "one" / "memory.jsonl", study(2))
    pooled = Report(read_runs([tmp_path / "one", tmp_path / "two"])).pooled()
    assert {(pooled.runs[d.second].configuration, d.common) for d in pooled.differences} == {
        ("spec", 16),
        ("memory", 8),
    }


def test_known_configurations_come_first_and_in_their_order(tmp_path: Path) -> None:
    for name in ("alpha", "text", "memory-spec", "memory", "spec", "baseline", "beta"):
        write_rollouts(tmp_path / f"{name}.jsonl", [rollout()])
    names = [run.name for run in read_runs([tmp_path])]
    assert names == ["baseline", "spec", "memory", "memory-spec", "text", "alpha", "beta"]


def test_the_rollouts_of_an_evaluation_are_named_after_the_agent(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "rollouts.jsonl", [rollout(settings=SMALL)])
    (run,) = read_runs([tmp_path])
    assert (run.name, run.configuration, run.experiment) == ("chat small", "chat small", "")


def test_a_folder_without_rollouts(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    with pytest.raises(RecordError, match=r"rollouts: contains no rollout files \(\*\.jsonl\)"):
        read_runs([tmp_path])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (('"prompt":5', '"prompt":1' + "0" * 400), "usage"),
        (('"prompt":5', '"prompt":-5'), "usage"),
        (('"reward":1.0', '"reward":NaN'), "reward"),
        (('"steps":1', '"steps":1' + "0" * 400), "steps"),
        (('"requests":2', '"requests":-2'), "verdict.process.calls"),
    ],
)
def test_impossible_numbers_are_an_error_of_one_line(tmp_path: Path, change: tuple[str, str], name: str) -> None:
    record = rollout(usage=Usage(prompt=5), process=used(("search", "Patient", 2, 0)))
    (tmp_path / "r.jsonl").write_text(record.line().replace(*change) + "\n")
    with pytest.raises(RecordError, match=f"r.jsonl: task 01, variation 0: {name} contains an impossible number"):
        read_runs([tmp_path / "r.jsonl"])


def test_settings_that_json_does_not_allow_are_texts(tmp_path: Path) -> None:
    line = rollout(settings={"temperature": 0.5}).line().replace('"temperature":0.5', '"temperature":NaN')
    (tmp_path / "r.jsonl").write_text(line + "\n")
    assert read_runs([tmp_path / "r.jsonl"])[0].settings == {"temperature": "NaN"}
