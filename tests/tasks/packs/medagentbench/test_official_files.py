"""The benchmark's own files: reading them, errors, and recorded episodes if they are available."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.official_agreement import main
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import ArgumentError, FhirGymError, TaskError, UnknownNameError
from fhir_gym.tasks import find_task, task_set
from fhir_gym.tasks.packs.medagentbench import ENV_ID
from fhir_gym.tasks.packs.medagentbench.official import read_cases, read_functions

APPOINTMENT = "FHIRAgent/Appointment-v0"


def test_a_file_is_read_in_its_order(task_file: Path) -> None:
    tasks = task_set(ENV_ID, task_file)
    assert list(tasks) == [case.id for case in read_cases(task_file)]
    assert len(tasks) == 41
    task = tasks["task5_1"]
    assert (task.key, task.kind, task.difficulty) == ("task5_1", "action", 3)
    assert task.gradings == ("state", "evidence", "official")
    assert task_set(ENV_ID, task_file) is tasks, "read once"


def test_a_changed_file_is_read_again(task_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tasks.json"
    shutil.copy(task_file, copy)
    before = task_set(ENV_ID, copy)
    copy.write_text(json.dumps(json.loads(copy.read_text())[:3]))
    assert (len(before), len(task_set(ENV_ID, copy))) == (41, 3)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("not json", "is not JSON"),
        ("{}", "not a MedAgentBench task file"),
        ("[]", "holds no tasks"),
        ('[{"id": "task1_1"}]', "not a MedAgentBench task file"),
        ('[{"id": "task11_1", "instruction": "x"}]', "task11_1"),
        ('[{"id": "task1_1", "instruction": "x"}, {"id": "task1_1", "instruction": "y"}]', "two tasks"),
    ],
)
def test_other_files_are_refused(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(content)
    with pytest.raises(TaskError, match=problem):
        task_set(ENV_ID, path)


def test_files_that_are_not_there(task_file: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot be read"):
        task_set(ENV_ID, tmp_path / "none.json")
    with pytest.raises(TaskError, match="cannot be read"):
        task_set(ENV_ID, task_file, tmp_path / "none.json")
    with pytest.raises(TaskError, match="not a MedAgentBench function file"):
        read_functions(task_file)


def test_a_pack_that_reads_no_files(task_file: Path) -> None:
    with pytest.raises(ArgumentError, match=ENV_ID):
        task_set(APPOINTMENT, task_file)
    with pytest.raises(ArgumentError, match="task_file"):
        task_set(ENV_ID, None, task_file)


def test_choosing_from_a_file(task_file: Path) -> None:
    tasks = task_set(ENV_ID, task_file)
    config = EpisodeConfig(ENV_ID, task_file=task_file)
    assert config.choose_tasks("task2_1") == ("task2_1",)
    assert config.variations == range(1)
    with pytest.raises(ArgumentError, match="one variation, 0, not 1"):
        config.require_variations([1])
    with pytest.raises(FhirGymError, match="no splits"):
        replace(config, split="test")
    with pytest.raises(UnknownNameError, match="task2_1"):
        find_task(tasks, "task2_99")


def test_agreement_of_an_episode(task_file: Path, tmp_path: Path, capsys: Any) -> None:
    """The exit code and the output of the command if a verdict differs."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "Patient.ndjson").write_text('{"resourceType": "Patient", "id": "S1", "birthDate": "1980-01-01"}\n')
    right = {"task_id": "task1_5", "actions": ['FINISH(["Patient not found"])'], "refsol_verdict": True}
    wrong = {**right, "refsol_verdict": False, "task_class": "task1/absent"}
    for episodes, status in (([right], 0), ([right, wrong], 1)):
        path = tmp_path / f"episodes{status}.jsonl.gz"
        with gzip.open(path, "wt") as file:
            file.writelines(f"{json.dumps(episode)}\n" for episode in episodes)
        arguments = ["--tasks", str(task_file), "--world", str(folder), "--episodes", str(path), "--show", "1"]
        assert main(arguments) == status
        out = capsys.readouterr()
        assert json.loads(out.out)["episodes"] == len(episodes)
        assert ("task1/absent" in out.err) is bool(status)


@pytest.mark.parametrize(("file", "episodes"), [("graded.jsonl", 1_800), ("gold.jsonl", 300)])
def test_verdicts_agree_with_the_benchmark(file: str, episodes: int, shared_dir: Path, capsys: Any) -> None:
    data = shared_dir / "medagentbench"
    names = ["--tasks", str(data / "test_data_v2.json"), "--world", str(data), "--episodes", str(data / file)]
    assert main([*names, "--show", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["episodes"] == report["agree"] == episodes
    assert report["status_agree"] == episodes


def test_both_versions_of_the_file(shared_dir: Path) -> None:
    for name, count in (("test_data_v1.json", 100), ("test_data_v2.json", 300)):
        tasks = task_set(ENV_ID, shared_dir / "medagentbench" / name, shared_dir / "medagentbench" / "funcs_v1.json")
        assert len(tasks) == count
        kinds = [task.kind for task in tasks.values()]
        assert kinds.count("query") == kinds.count("action") == count // 2
        assert sorted({task.difficulty for task in tasks.values()}) == [1, 2, 3]
