"""The commands, as a user runs them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from fhir_gym import read_rollouts, task_keys
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.tasks import EXPERIMENTS
from tests.cli.conftest import Cli
from tests.worlds.serving import Watched, served
from tests.worlds.strict_server import strict_server

ENV = "FHIRAgent/Appointment-v0"


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_help_puts_every_command_into_a_panel(cli: Cli) -> None:
    outcome = cli("--help")
    assert outcome.code == 0
    panels = re.findall(r"─ (\w[\w ]+\w) ─", outcome.out)
    assert panels == ["Options", "Start", "Play and evaluate", "Data", "Train", "Serve and publish", "Research"]


@pytest.mark.parametrize("command", ["dataset", "demo", "publish harbor"])
def test_help_shows_no_type_for_flags(cli: Cli, command: str) -> None:
    outcome = cli(*command.split(), "--help")
    assert outcome.code == 0 and "--help" in outcome.out
    assert "<bool>" not in outcome.out and "<path>" in outcome.out


def test_version(cli: Cli) -> None:
    assert cli("--version").out.startswith("fhir-gym 0.")


def test_worlds_list_and_info(cli: Cli) -> None:
    listed = json.loads(cli("worlds", "list", "--json").out)
    assert {"hospital-small", "empty"} <= {load["name"] for load in listed}
    info = json.loads(cli("worlds", "info", "hospital-small", "--json").out)
    assert info["name"] == "hospital-small"
    assert info["counts"]["Patient"] > 0
    text = cli("worlds", "info", "hospital-small").out
    assert info["content_hash"] in text
    assert f"{info['counts']['Observation']:,}" in text


def test_worlds_build_is_reproducible(cli: Cli, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.sqlite", "b.sqlite")]
    for path in paths:
        assert cli("worlds", "build", "empty", "--seed", 3, "--out", path).out.strip() == str(path)
    first, second = (json.loads(cli("worlds", "info", path, "--json").out) for path in paths)
    assert first["content_hash"] == second["content_hash"]


def test_verify_detects_a_changed_world(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "people.ndjson").write_text('{"resourceType": "Patient", "id": "p", "birthDate": "1950-01-01"}')
    whole, changed = tmp_path / "whole.sqlite", tmp_path / "changed.sqlite"
    cli("worlds", "import", tmp_path, "--name", "ward", "--out", whole)
    outcome = cli("worlds", "verify", whole)
    assert (outcome.code, outcome.out.strip()) == (0, f"{whole} is intact (1 resources)")
    changed.write_bytes(whole.read_bytes().replace(b'"birthDate":"1950-01-01"', b'"birthDate":"1950-01-02"'))
    outcome = cli("worlds", "verify", changed)
    assert outcome.code == 1
    assert f"{changed} is damaged" in outcome.err
    assert not outcome.out


def test_import_then_info(cli: Cli, tmp_path: Path) -> None:
    people = [{"resourceType": "Patient", "id": f"p{n}", "name": [{"family": "O'Zoë-Lee"}]} for n in range(3)]
    (tmp_path / "people.ndjson").write_text("\n".join(map(json.dumps, people)))
    out = tmp_path / "ward.sqlite"
    outcome = cli("worlds", "import", tmp_path, "--name", "ward", "--out", out)
    assert outcome.code == 0
    info = json.loads(cli("worlds", "info", out, "--json").out)
    assert (info["name"], info["counts"]) == ("ward", {"Patient": 3})


def test_a_folder_of_bundles_is_recognised_and_dropped_records_are_listed(cli: Cli, tmp_path: Path) -> None:
    entry = {"resource": {"resourceType": "Patient", "id": "p", "shoeSize": 44}}
    (tmp_path / "a.json").write_text(json.dumps({"resourceType": "Bundle", "type": "collection", "entry": [entry]}))
    out = tmp_path / "ward.sqlite"
    outcome = cli("worlds", "import", tmp_path, "--name", "ward", "--out", out)
    assert outcome.code == 0 and "Patient.shoeSize (1)" in outcome.err
    again = cli("worlds", "import", tmp_path, "--name", "ward", "--out", out)
    assert again.code == 1 and "--replace" in again.err and again.err.count("\n") == 1
    assert cli("worlds", "import", tmp_path, "--name", "ward", "--out", out, "--replace").code == 0


def test_a_world_is_removed_if_one_means_it(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FHIR_GYM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "p.ndjson").write_text('{"resourceType": "Patient", "id": "p"}')
    cli("worlds", "import", tmp_path / "p.ndjson", "--name", "ward")
    asked = cli("worlds", "remove", "ward")
    assert asked.code == 2 and "--yes" in asked.err
    assert "removed ward (1 file" in cli("worlds", "remove", "ward", "--yes").out
    assert cli("worlds", "remove", "ward", "--yes").code == 2
    assert "not built" in cli("worlds", "remove", "empty", "--yes").err


def test_import_from_a_server(cli: Cli, hospital: World, tmp_path: Path) -> None:
    out = tmp_path / "copy.sqlite"
    with served(app := Watched(create_app(hospital))) as url:
        outcome = cli(
            "worlds", "import", url, "--types", "Patient,Location", "--fhir-header", "X-Key: a:b", "--out", out
        )
    assert outcome.code == 0, outcome.err
    assert f"read from {url}" in outcome.err
    assert app.headers[-1]["x-key"] == "a:b"
    info = json.loads(cli("worlds", "info", out, "--json").out)
    assert info["counts"] == {kind: hospital.manifest.counts[kind] for kind in ("Location", "Patient")}


def test_import_from_an_invalid_server(cli: Cli, tmp_path: Path) -> None:
    for url, complaint in (("ftp://x/fhir", "base URL of a FHIR server"), ("http://127.0.0.1:1/fhir", "cannot reach")):
        outcome = cli("worlds", "import", url, "--out", tmp_path / "w.sqlite")
        assert outcome.code != 0 and complaint in outcome.err
    outcome = cli("worlds", "import", "http://127.0.0.1:1/fhir", "--fhir-header", "nonsense")
    assert outcome.code != 0 and "Name: value" in outcome.err


def test_worlds_upload_compare_and_export(
    cli: Cli, empty_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "Bearer s3cret")
    (tmp_path / "Patient.ndjson").write_text('{"resourceType":"Patient","id":"a"}\n{"resourceType":"Patient","id":"b"}')
    world = tmp_path / "w.sqlite"
    cli("worlds", "import", tmp_path / "Patient.ndjson", "--out", world)
    access = ("--fhir-header-from-env", "Authorization:SECRET")
    with strict_server(empty_world, authorization="Bearer s3cret") as (url, server):
        before = cli("worlds", "compare", world, url, *access)
        assert before.code == 1 and before.out == "missing  Patient/a\nmissing  Patient/b\n"
        assert "2 missing" in before.err
        assert "all 2 resources" in cli("worlds", "upload", world, url, *access).out
        assert "equal: " in cli("worlds", "compare", world, url, *access).out
        server.session.load([{"resourceType": "Patient", "id": "b", "active": True}])
        outcome = cli("worlds", "compare", world, url, "--json", *access)
        refused = cli("worlds", "upload", world, url, "--fhir-header", "Authorization: Bearer 0ther")
    assert outcome.code == 1 and json.loads(outcome.out)["differences"][0]["path"] == "Patient.active"
    assert refused.code == 1 and "requires credentials" in refused.err and "0ther" not in refused.err
    unset = cli("worlds", "upload", world, url, "--fhir-header-from-env", "X:NO_SUCH_VARIABLE")
    assert unset.code == 2 and "is not set" in unset.err
    assert "2 resources in 1 file of" in cli("worlds", "export", world, tmp_path / "out").out


def test_tasks_list(cli: Cli) -> None:
    listed = json.loads(cli("tasks", "list", "--json").out)
    assert [row["key"] for row in listed if row["env"] == ENV] == list(task_keys(ENV))
    assert "02b" in cli("tasks", "list", ENV).out


def test_tasks_show(cli: Cli) -> None:
    outcome = cli("tasks", "show", ENV, "02a", "--variation", 4)
    assert outcome.code == 0
    assert "GET /Patient?" in outcome.out
    assert "Success: all" in outcome.out
    shown = json.loads(cli("tasks", "show", ENV, "02a", "--variation", 4, "--json").out)
    assert shown["prompt"] in outcome.out
    assert shown["verdict"]["success"] is True
    assert shown["solution"][-1].startswith("FINISH(")


def test_tasks_check_passes_and_prints_a_summary(cli: Cli) -> None:
    outcome = cli("tasks", "check", ENV, "--tasks", "02a", "--variations", 2)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "02a" in outcome.out
    assert "mistakes a decoy for the target" in outcome.out


def test_tasks_check_tries_each_environment_on_its_own_world(cli: Cli) -> None:
    other = "FHIRAgent/ActionReasoning-v0"
    outcome = cli("tasks", "check", other, "FHIRAgent/MedAgentBench-v0", "--tasks", "01", "--variations", 1, "--json")
    report = json.loads(outcome.out)
    assert report["world"] == "cohort-mini, hospital-small"
    assert [(task["env"], task["task"], task["variations"]) for task in report["tasks"]] == [
        (other, "01", 1),
        ("FHIRAgent/MedAgentBench-v0", "01", 1),
    ]
    alone = cli("tasks", "check", other, "--tasks", "01", "--variations", 1, "--world", "hospital-small", "--json")
    assert json.loads(alone.out)["world"] == "hospital-small"


def test_tasks_check_takes_numbers_of_variations(cli: Cli) -> None:
    for given, tried in (("2", 2), ("0-1,1000", 3)):
        outcome = cli("tasks", "check", ENV, "--tasks", "04a", "--variations", given, "--json")
        assert json.loads(outcome.out)["tasks"][0]["variations"] == tried
    for wrong in ("0", "ten", "3-1"):
        assert cli("tasks", "check", ENV, "--tasks", "04a", "--variations", wrong).code == 2, wrong


@pytest.mark.slow
def test_tasks_probe_names_the_leak(cli: Cli) -> None:
    few = ("tasks", "probe", ENV, "--tasks", "02a", "--train", 20, "--test", 20)
    report = json.loads(cli(*few, "--json").out)
    (found,) = report["tasks"]
    assert found["ranker"]["kind"] == "Patient"
    assert found["blind"]["tasks"] == ["02a", "02b"]
    outcome = cli(*few)
    assert outcome.code == (0 if report["sound"] else 1), outcome.out + outcome.err
    assert "within %" in outcome.out


def test_tasks_probe_without_scikit_learn(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    outcome = cli("tasks", "probe", ENV, "--tasks", "02a")
    assert outcome.code == 1
    assert "pip install scikit-learn" in outcome.err
    assert outcome.err.count("\n") <= 2


def test_experiment_list(cli: Cli) -> None:
    found = json.loads(cli("experiment", "list", "--json").out)
    assert [load["name"] for load in found] == list(EXPERIMENTS)
    assert [len(load["test"]) for load in found] == [43, 129, 129, 66, 129, 66]
    assert [len(load["train"]) for load in found] == [43, 86, 86, 42, 86, 42]
    assert found[3]["test"][0] == {"env": ENV, "task": "03", "variation": 1_000, "phrasing": 2}
    assert "Tasks that were not in training" in cli("experiment", "list").out


def test_rollout_then_dataset(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    outcome = cli("rollout", ENV, "--tasks", "01,02a", "--variations", "0-1", "--out", out)
    assert outcome.code == 0
    assert "100%" in outcome.out
    assert [(rollout.task.key, rollout.task.variation) for rollout in read_rollouts(out)] == [
        ("01", 0),
        ("01", 1),
        ("02a", 0),
        ("02a", 1),
    ]
    again = cli("rollout", ENV, "--tasks", "01,02a", "--variations", "0-1", "--out", out)
    assert again.code == 1
    assert "--resume" in again.err
    more = cli("rollout", ENV, "--tasks", "01,02a", "--variations", "0-2", "--out", out, "--resume")
    assert more.code == 0
    assert len(list(read_rollouts(out))) == 6
    for format, columns in (
        ("messages", {"messages"}),
        ("tools", {"messages", "tools"}),
        ("completion", {"completion"}),
    ):
        train = tmp_path / f"{format}.jsonl"
        assert cli("dataset", out, "--format", format, "--out", train).code == 0
        rows = lines(train)
        assert rows
        assert all(columns <= set(row) for row in rows)


def test_a_file_is_replaced_only_by_another_run(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    cli("rollout", ENV, "--tasks", "01", "--variations", "0-2", "--out", out)
    before = out.read_bytes()
    settings = ("model=m", "base_url=http://127.0.0.1:9/v1", "api_key=k", "retries=0")
    nobody = ("--agent", "chat", *(word for setting in settings for word in ("--set", setting)))
    assert cli("rollout", ENV, *nobody, "--tasks", "01", "--out", out, "--overwrite").code == 1
    assert out.read_bytes() == before
    assert cli("rollout", ENV, "--tasks", "02a", "--variations", 5, "--out", out, "--overwrite").code == 0
    assert [(rollout.task.key, rollout.task.variation) for rollout in read_rollouts(out)] == [("02a", 5)]


def test_a_run_that_no_server_serves_writes_nothing(cli: Cli, hospital: World, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    with served(create_app(hospital)) as url:
        pass
    outcome = cli("rollout", ENV, "--agent", "idle", "--fhir-server", url, "--out", out)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert "does not answer" in outcome.err
    assert not out.exists()


def test_failures_are_left_out_of_a_dataset(cli: Cli, tmp_path: Path) -> None:
    out, train = tmp_path / "rollouts.jsonl", tmp_path / "train.jsonl"
    cli("rollout", ENV, "--agent", "idle", "--tasks", "02b", "--variations", 0, "--out", out)
    outcome = cli("dataset", out, "--out", train)
    assert outcome.code == 0
    assert lines(train) == []
    assert "not successful" in outcome.err
    cli("dataset", out, "--out", train, "--failures")
    assert len(lines(train)) == 1


def test_a_dataset_can_be_a_folder(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, folder = tmp_path / "rollouts.jsonl", tmp_path / "folder"
    cli("rollout", ENV, "--tasks", "02b", "--variations", "0,1000", "--out", out)
    outcome = cli("dataset", out, "--format", "tools", "--hub", "--out", folder)
    assert (outcome.code, outcome.out) == (0, f"2 examples of 2 episodes written to {folder}\n")
    assert sorted(path.name for path in folder.rglob("*.*")) == ["README.md", "test.jsonl", "train.jsonl"]
    assert cli("dataset", out, "--hub", "--out", folder).code == 1
    assert cli("dataset", out, "--format", "minari", "--hub", "--out", tmp_path / "a-v0").code == 2
    monkeypatch.setitem(sys.modules, "minari.dataset.minari_storage", None)
    outcome = cli("dataset", out, "--format", "minari", "--out", tmp_path / "a-v0")
    assert (outcome.code, outcome.err) == (
        1,
        "error: a Minari dataset needs: pip install '.[minari]' in the clone of fhir_gym\n",
    )


def test_a_dataset_never_replaces_its_source(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    out.write_text("precious\n")
    assert cli("dataset", out, "--out", out).code == 2
    assert out.read_text() == "precious\n"


def test_demo(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = cli("demo", "--variations", 1)
    assert outcome.code == 0
    records = list(read_rollouts(tmp_path / "demo-output" / "rollouts.jsonl"))
    keys = ("01", "02a", "02b", "11a", "14a", "15a")
    assert [(record.agent.name, record.task.key) for record in records] == [
        (agent, key) for agent in ("gold", "random", "idle") for key in keys
    ]
    assert all(record.success for record in records if record.agent.name == "gold")
    assert not any(record.success for record in records if record.agent.name == "idle")
    assert len(lines(tmp_path / "demo-output" / "train.jsonl")) >= len(keys)
    for path in ("rollouts.jsonl", "train.jsonl"):
        assert path in outcome.out
    assert "nothing else changed" in outcome.out
    assert cli("demo", "--variations", 1).code == 0
    assert len(list(read_rollouts(tmp_path / "demo-output" / "rollouts.jsonl"))) == len(records)
