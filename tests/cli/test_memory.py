"""The commands `fhir-gym memory …`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fhir_gym.agents.memory import Memory, Provenance, Reflection
from fhir_gym.testing import ChatServer
from tests.cli.conftest import Cli
from tests.reflexion.conftest import Study

SOURCE = Provenance(env_id="FHIRAgent/Appointment-v0", task="03", variation=1, phrasing=0, trial=2, success=False)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(Study()) as server:
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "memory.jsonl"
    reflections = [
        Reflection(kind="micro", text="Use both names.", resource_type="Patient", operation="search", source=SOURCE),
        Reflection(kind="micro", text="Set \x1b[31mstatus.", resource_type="Slot", operation="update", support=3),
        Reflection(kind="macro", text="Read first.", situation="Cancel an appointment of <name>.", source=SOURCE),
    ]
    Memory(reflections, models={"agent": "m"}, training={"counts": {"runs": 2}}).save(path)
    return path


def test_show_prints_all_reflections(cli: Cli, path: Path) -> None:
    done = cli("memory", "show", path)
    assert done.code == 0
    assert "hashed (1024 dimensions)" in done.out and "agent m" in done.out and "runs 2" in done.out
    assert "3 of 3 reflections" in done.out
    assert "search Patient" in done.out and "Appointment-v0 03, variation 1, trial 2" in done.out
    assert "\\x1b[31mstatus" in done.out and "\x1b" not in done.out


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (["--resource", "Patient"], ["Use both names."]),
        (["--operation", "updateResource"], ["Set \x1b[31mstatus."]),
        (["--task", "03"], ["Use both names.", "Read first."]),
        (["--task", "03", "--resource", "Slot"], []),
        (["--query", "cancel my appointment"], ["Read first."]),
    ],
)
def test_show_filters(cli: Cli, path: Path, options: list[str], texts: list[str]) -> None:
    done = cli("memory", "show", path, "--json", *options)
    assert [reflection["text"] for reflection in json.loads(done.out)["reflections"]] == texts


def test_show_names_what_is_wrong(cli: Cli, path: Path) -> None:
    done = cli("memory", "show", path, "--operation", "merge")
    assert done.code == 2 and "unknown operation 'merge'" in done.err
    path.write_text(path.read_text("utf-8").replace('"version": 1', '"version": 7'), "utf-8")
    done = cli("memory", "show", path)
    assert done.code == 1 and done.err.count("\n") == 1
    assert "has memory format version 7; this fhir_gym reads version 1" in done.err


def test_train_needs_a_model(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", "memory", "--out", tmp_path / "m.jsonl")
    assert done.code == 2 and "give --model, or --config" in done.err
    config = tmp_path / "memory.toml"
    config.write_text('tokenz = 3\n[agent]\nmodel = "m"')
    done = cli("train", "memory", "--config", config, "--out", tmp_path / "m.jsonl")
    assert done.code == 2 and "memory.toml: unknown field 'tokenz'. Fields: agent, evaluator" in done.err
    config.write_text('variations = "1000"\n[agent]\nmodel = "m"')
    done = cli("train", "memory", "--config", config, "--out", tmp_path / "m.jsonl")
    assert done.code == 2 and "test variations are never trained on" in done.err
    done = cli("train", "memory", "--config", config, "--model", "m", "--out", tmp_path / "m.jsonl")
    assert done.code == 2 and "leave out --model" in done.err


@pytest.mark.slow
def test_train_writes_a_memory(cli: Cli, server: ChatServer, tmp_path: Path) -> None:
    out = tmp_path / "m.jsonl"
    config = tmp_path / "memory.toml"
    config.write_text(
        'env_ids = ["FHIRAgent/Appointment-v0"]\nguard = "1000"\n'
        f'[agent]\nmodel = "scripted"\nbase_url = "{server.base_url}"\n'
    )
    done = cli("train", "memory", "--config", config, "--tasks", "03,04b", "--variations", "0", "--out", out)
    assert done.code == 0, done.err
    assert "4 reflections from 3 runs, 1 of them successful" in done.err
    assert Memory.load(out).reflections
    done = cli("train", "memory", "--config", config, "--tasks", "03", "--out", out)
    assert done.code == 1 and "with other settings" in done.err


@pytest.mark.slow
def test_a_spent_budget_is_one_line(cli: Cli, server: ChatServer, tmp_path: Path) -> None:
    options = ["--model", "scripted", "--base-url", server.base_url, "--tasks", "03", "--max-tokens", "500"]
    done = cli("train", "memory", *options, "--out", tmp_path / "m.jsonl")
    *progress, error = done.err.splitlines()
    assert done.code == 1 and all(line.startswith("Training the memory: ") for line in progress)
    assert error.startswith("error: ") and "nothing is lost: run it again with a larger budget" in error
