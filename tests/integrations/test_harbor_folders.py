"""The task folders for Harbor, without Harbor itself."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fhir_gym import EpisodeConfig
from fhir_gym.cli._app import main
from fhir_gym.errors import FhirGymError, TaskError
from fhir_gym.fhir import World
from fhir_gym.integrations.harbor import folder_name, task_files, write_dataset, write_task_folders
from fhir_gym.integrations.harbor.task_folders import BASE_URL
from fhir_gym.rollouts import Rollout, plan, run_plan

ENV_ID = "FHIRAgent/Appointment-v0"


@pytest.fixture(scope="module")
def rollout(hospital: World) -> Rollout:
    config = EpisodeConfig(ENV_ID, world=hospital, base_url=BASE_URL)
    return next(run_plan(plan(config, tasks="02a", variations=1_000), "gold"))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["publish", "harbor", *arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def files_below(folder: Path) -> Iterator[str]:
    return (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_agent_sees_neither_the_task_nor_the_answer(rollout: Rollout) -> None:
    """Harbor shows an agent the instruction; only its agent `oracle` gets the solution."""
    files = task_files(rollout)
    assert files["instruction.md"].startswith(rollout.prompt)
    assert "COPY" not in files["environment/Dockerfile"]  # so nothing of the folder is in the agent's image
    assert rollout.verdict is not None
    assert rollout.verdict.answer
    (answer,) = rollout.verdict.answer
    assert str(answer) in files["solution/requests.json"]
    for name, content in files.items():
        assert name.startswith("solution/") or str(answer) not in content, name
    for word in (ENV_ID, rollout.task.title, "variation"):
        assert word not in files["instruction.md"]


def test_the_server_starts_with_the_exported_episode(rollout: Rollout) -> None:
    files = task_files(rollout, image='registry.example/fhir-gym:1"')
    lines = [line.strip() for line in files["environment/docker-compose.yaml"].splitlines()]
    command, image = (
        json.loads(line.removeprefix(start))
        for start in ("command: ", "image: ")
        for line in lines
        if line.startswith(start)
    )
    assert image == 'registry.example/fhir-gym:1"'
    assert command[:4] == ["research", "harbor", "serve", ENV_ID]
    expected = [
        "--task=02a",
        "--variation=1000",
        f"--phrasing={rollout.task.phrasing}",
        f"--task-hash={rollout.task.hash}",
    ]
    assert set(expected) <= set(command)
    assert 'restart: "no" # a restarted server would begin the episode anew' in lines


def test_the_description_of_the_task(rollout: Rollout) -> None:
    described = tomllib.loads(task_files(rollout)["task.toml"])
    assert described["task"]["name"] == f"fhir-gym/{folder_name(rollout)}" == "fhir-gym/appointment-v0-02a-1000"
    assert (described["metadata"]["task"], described["metadata"]["variation"]) == ("02a", 1_000)
    assert described["metadata"]["phrasing"] == rollout.task.phrasing
    assert described["verifier"]["environment_mode"] == "separate"
    assert described["verifier"]["collect"] == [{"service": "fhir", "command": "fhir-gym research harbor verdict"}]
    assert described["artifacts"] == [{"source": "/tmp/fhir-gym-verdict", "service": "fhir"}]


def test_agents_without_mcp_get_a_folder_without_mcp(rollout: Rollout) -> None:
    files = task_files(rollout, mcp=False)
    assert "environment" not in tomllib.loads(files["task.toml"])
    assert not any("mcp" in content.lower() for content in files.values())
    (server,) = tomllib.loads(task_files(rollout)["task.toml"])["environment"]["mcp_servers"]
    assert (server["name"], server["url"]) == ("fhir", "http://fhir:8080/mcp")


def test_a_task_that_its_solution_does_not_solve_is_not_exported(rollout: Rollout) -> None:
    with pytest.raises(TaskError, match="solution of task 02a, variation 1000 fails"):
        task_files(rollout.model_copy(update={"success": False}))


def test_existing_folders_are_kept_unless_told_otherwise(hospital: World, tmp_path: Path) -> None:
    episodes = plan(ENV_ID, tasks="02a", variations=1_000, world=hospital)
    (path,) = write_task_folders(episodes, tmp_path)
    (path / "task.toml").write_text("mine")
    with pytest.raises(FhirGymError, match="appointment-v0-02a-1000 exists; use --overwrite"):
        list(write_task_folders(episodes, tmp_path))
    assert (path / "task.toml").read_text() == "mine"
    assert list(write_task_folders(episodes, tmp_path, overwrite=True)) == [path]
    assert (path / "task.toml").read_text() != "mine"


def test_equal_exports_are_equal_byte_for_byte(rollout: Rollout, tmp_path: Path) -> None:
    code = run(ENV_ID, "--tasks", "02a", "--variations", "1000", "--out", str(tmp_path))
    folder = tmp_path / "appointment-v0-02a-1000"
    files = task_files(rollout)
    assert code == 0
    assert sorted(files_below(folder)) == sorted(files)
    for name, content in files.items():
        assert (folder / name).read_text("utf-8") == content


def test_the_dataset_names_all_task_folders(hospital: World, tmp_path: Path) -> None:
    for task in ("02a", "01"):
        list(write_task_folders(plan(ENV_ID, tasks=task, variations=1_000, world=hospital), tmp_path / "front-desk"))
    write_dataset(tmp_path / "front-desk", "clinic")
    described = tomllib.loads((tmp_path / "front-desk" / "dataset.toml").read_text("utf-8"))
    assert described["dataset"]["name"] == "clinic/front-desk"
    names = [task["name"] for task in described["tasks"]]
    assert names == ["fhir-gym/appointment-v0-01-1000", "fhir-gym/appointment-v0-02a-1000"]
    assert len({task["digest"] for task in described["tasks"]}) == 2


def test_level_and_dials_choose_the_tasks(tmp_path: Path) -> None:
    arguments = ("--dial", "minutes=60", "--level", "4", "--variations", "1000", "--org", "clinic")
    assert run("FHIRAgent/Shift-v0", "--out", str(tmp_path), *arguments) == 0
    (folder,) = tmp_path.glob("*/")
    assert folder.name == "shift-v0-day-4-minutes-60-1000"
    assert tomllib.loads((folder / "task.toml").read_text("utf-8"))["task"]["name"] == f"clinic/{folder.name}"
    assert '"--task=day-4+minutes=60"' in (folder / "environment" / "docker-compose.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "quick-v1", "--tasks", "01"], "a suite has its own episodes"),
        (["--suite", "quick-v1", "--grading", "evidence"], "a suite has its own episodes"),
        (["--suite", "genetic-testing-v1"], "suite genetic-testing-v1 has no episodes of FHIRAgent/Appointment-v0"),
        (["--suite", "quick"], "unknown suite 'quick'; did you mean 'quick-v2'?"),
        (["--tasks", "1"], "unknown task '1'"),
        (["--variations", "5", "--split", "test"], "variation 5 is not in split 'test'"),
    ],
)
def test_a_wrong_export_is_one_clear_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ENV_ID, "--out", str(tmp_path), *arguments) != 0
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
