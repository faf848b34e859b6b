"""`fhir-gym research art …`: outputs are deterministic and readable, and are overwritten only with `--overwrite`."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.art_curation import rephrase
from fhir_gym.cli import main
from fhir_gym.rollouts import read_rollouts
from fhir_gym.tasks.packs.action_reasoning.file_task import read_cases
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS
from fhir_gym.testing import ChatServer
from tests.cli.conftest import Cli

FEW = ("--per-family", 12)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task file, its review sheet and its review page."""
    folder = tmp_path_factory.mktemp("generated")
    sheets = ("--review", folder / "sheet.csv", "--review-html", folder / "review.html", "--sample", 10)
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in ("research", "art", "generate", "--out", folder / "tasks.json", *FEW, *sheets)])
    assert not left.value.code
    return folder


@pytest.fixture
def made(generated: Path, tmp_path: Path) -> Path:
    """A copy of the generated folder."""
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    return tmp_path


def fill(sheet: Path, verdicts: Mapping[int, str]) -> None:
    rows = list(csv.DictReader(io.StringIO(sheet.read_text("utf-8"), newline="")))
    for number, verdict in verdicts.items():
        rows[number]["verdict"] = verdict
    with sheet.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_mine(cli: Cli) -> None:
    outcome = cli("research", "art", "mine")
    assert outcome.code == 0
    for word in ("sparse", "cluster", "edge", "window", "demographic", "critically low", "void result"):
        assert word in outcome.out
    plain = json.loads(cli("research", "art", "mine", "--json").out)
    assert plain["world"] == "cohort-mini"
    assert {offer["lab"] for offer in plain["offers"]} == set(LABS)


def test_generate_gives_the_same_bytes(cli: Cli, made: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    outcome = cli(
        *("research", "art", "generate", "--out", again / "tasks.json", *FEW, "--sample", 10),
        *("--review", again / "sheet.csv", "--review-html", again / "review.html"),
    )
    assert outcome.code == 0
    assert "36 tasks written" in outcome.err
    assert "Balance of kept tasks" in outcome.out
    for name in ("tasks.json", "sheet.csv", "review.html"):
        assert (again / name).read_bytes() == (made / name).read_bytes()
    assert len(read_cases(made / "tasks.json")) == 36
    other = cli("research", "art", "generate", "--out", again / "other.json", *FEW, "--seed", 1)
    assert other.code == 0
    assert (again / "other.json").read_bytes() != (made / "tasks.json").read_bytes()


def test_generate_as_json(cli: Cli, tmp_path: Path) -> None:
    found = json.loads(
        cli("research", "art", "generate", "--out", tmp_path / "tasks.json", "--per-family", 3, "--json").out
    )
    assert (found["tasks"], found["kept"], found["dropped"]) == (9, 9, [])
    assert found["balance"]["all"][""]["conditional"] == 3


def test_nothing_is_replaced_unasked(cli: Cli, made: Path) -> None:
    """A second run does not overwrite a sheet that a reviewer has filled in."""
    before = {path: path.read_bytes() for path in made.iterdir()}
    tasks, sheet, page, new = made / "tasks.json", made / "sheet.csv", made / "review.html", made / "new"
    for argv in (
        ("generate", "--out", tasks),
        ("generate", "--out", new, "--review", sheet),
        ("generate", "--out", new, "--review-html", page),
        ("generate", "--out", new, "--review", new),
        ("generate", "--out", made),
        ("audit", tasks, "--sheet", sheet),
        ("audit", tasks, "--html", page),
        ("audit", tasks, "--out", tasks),
        ("review", tasks, sheet, "--out", tasks),
        ("sweep", "--windows", "12h", "--out", sheet),
        ("sweep", "--windows", "12h", "--out", new, "--csv", sheet),
        ("sweep", "--windows", "12h", "--out", new, "--csv", new.with_suffix(".tasks.json"), "--overwrite"),
        ("sweep", "--windows", "12h", "--out", new, "--csv", tasks, "--tasks-file", tasks, "--overwrite"),
        ("review", tasks, sheet, "--out", sheet, "--overwrite"),
        ("audit", tasks, "--sheet", tasks, "--overwrite"),
        ("generate", "--out", sheet / "tasks.json"),
        ("generate", "--out", "/dev/null", "--overwrite"),
    ):
        outcome = cli("research", "art", *argv)
        assert outcome.code == (2 if "is already used" in outcome.err else 1), argv
        assert {path: path.read_bytes() for path in made.iterdir()} == before


def test_either_all_files_are_written_or_none(cli: Cli, made: Path) -> None:
    before = {path: path.read_bytes() for path in made.iterdir()}
    (made / "folder").mkdir()
    (made / "folder" / f".page.{os.getpid()}.part").mkdir()  # makes writing the last file fail
    argv = ("research", "art", "generate", "--out", made / "tasks.json", *FEW, "--seed", 1, "--overwrite")
    outcome = cli(*argv, "--review", made / "sheet.csv", "--review-html", made / "folder" / "page")
    assert (outcome.code, len(outcome.err.splitlines())) == (1, 1)
    assert "page cannot be written" in outcome.err
    assert {path: path.read_bytes() for path in made.iterdir() if path.is_file()} == before


def test_a_link_stays_one(cli: Cli, made: Path) -> None:
    (made / "link.json").symlink_to(made / "tasks.json")
    assert cli("research", "art", "generate", "--out", made / "link.json", "--per-family", 2, "--overwrite").code == 0
    assert (made / "link.json").is_symlink()
    assert len(read_cases(made / "tasks.json")) == 6


def test_a_world_that_offers_less(cli: Cli, tmp_path: Path) -> None:
    outcome = cli(
        "research", "art", "generate", "--out", tmp_path / "tasks.json", "--world", "hospital-small", "--per-family", 30
    )
    assert outcome.code == 0, outcome.err
    assert "aggregation: 16 of 30 tasks; the world has no more candidates" in outcome.err
    assert "76 tasks written" in outcome.err
    assert cli("research", "art", "audit", tmp_path / "tasks.json", "--world", "hospital-small").code == 0


def test_audit(cli: Cli, made: Path) -> None:
    tasks = made / "tasks.json"
    assert cli("research", "art", "audit", tasks).code == 0
    plain = json.loads(tasks.read_text())
    plain[3]["ground_truth"]["value"] += 1
    plain[5]["context"] = plain[5]["context"].replace("Lab code", "Code")
    plain[7] |= {"instruction": plain[8]["instruction"], "context": plain[8]["context"]}
    tasks.write_text(json.dumps(plain))
    outcome = cli("research", "art", "audit", tasks, "--out", made / "kept.json")
    assert outcome.code == 1
    for n in (3, 5, 7):
        assert plain[n]["id"] in outcome.out
    assert "disagrees: value is" in outcome.out
    assert len(read_cases(made / "kept.json")) == 33
    found = json.loads(cli("research", "art", "audit", tasks, "--json").out)
    assert [dropped["id"] for dropped in found["dropped"]] == [plain[n]["id"] for n in (3, 5, 7)]
    assert cli("research", "art", "audit", made / "kept.json").code == 0


def test_review(cli: Cli, made: Path) -> None:
    tasks, sheet, out = made / "tasks.json", made / "sheet.csv", made / "reviewed.json"
    rows = list(csv.DictReader(io.StringIO(sheet.read_text("utf-8"), newline="")))
    doubtful = [n for n, row in enumerate(rows) if row["why"] == "doubtful"]
    fill(sheet, {n: "accept" for n in range(len(rows))} | {0: "reject"} | ({doubtful[-1]: ""} if doubtful else {}))
    outcome = cli("research", "art", "review", tasks, sheet, "--out", out)
    assert outcome.code == 0
    assert f"rejected  {rows[0]['id']}" in outcome.out
    withheld = len([n for n in doubtful[-1:] if n])
    assert outcome.out.count("withheld") == withheld
    assert len(read_cases(out)) == 36 - 1 - withheld
    kept = json.loads(
        cli("research", "art", "review", tasks, sheet, "--out", out, "--overwrite", "--keep-unreviewed", "--json").out
    )
    assert kept == {"kept": 35, "rejected": [{"id": rows[0]["id"], "comment": ""}], "withheld": []}


def test_wrong_sheets(cli: Cli, made: Path) -> None:
    tasks, sheet, out = made / "tasks.json", made / "sheet.csv", made / "reviewed.json"
    fill(sheet, {0: "acept"})
    outcome = cli("research", "art", "review", tasks, sheet, "--out", out)
    assert (outcome.code, len(outcome.err.splitlines())) == (1, 1)
    assert "did you mean 'accept'" in outcome.err
    fill(sheet, {0: ""})
    plain = json.loads(tasks.read_text())
    gone = next(csv.DictReader(io.StringIO(sheet.read_text("utf-8"), newline="")))["id"]
    tasks.write_text(json.dumps([load for load in plain if load["id"] != gone]))
    outcome = cli("research", "art", "review", tasks, sheet, "--out", out)
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
    assert f"unknown task '{gone}'" in outcome.err
    assert not out.exists()


def test_a_rejection_is_one_line(cli: Cli, made: Path) -> None:
    tasks, sheet = made / "tasks.json", made / "sheet.csv"
    text = sheet.read_text("utf-8").replace(",sample,,,", ',sample,REJECT,"two\nlines",', 1)
    sheet.write_text(text, "utf-8")
    outcome = cli("research", "art", "review", tasks, sheet, "--out", made / "out.json", "--keep-unreviewed")
    assert outcome.out.count("\n") == 1
    assert outcome.out.endswith("  two lines\n")


def politely(request: Mapping[str, Any]) -> str:
    text = str(request["messages"][1]["content"]).partition("\n")[2]
    return f"Please help: {text}"


def test_generate_reworded(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rephrase, "cache_dir", lambda: tmp_path / "cache")
    with ChatServer(politely) as server:
        argv = ("research", "art", "generate", *FEW, "--rephrase-with", "scripted", "--base-url", server.base_url)
        outcome = cli(*argv, "--out", tmp_path / "a.json")
        assert outcome.code == 0, outcome.err
        assert "36 of 36 instructions reworded" in outcome.err
        asked = len(server.requests)
        assert cli(*argv, "--out", tmp_path / "b.json").code == 0
        assert len(server.requests) == asked
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert all(case.instruction.startswith("Please help: ") for case in read_cases(tmp_path / "a.json"))
    assert "reworded" in outcome.out
    with ChatServer(["It is 4."] * 9, models=("other",)) as server:
        argv = ("research", "art", "generate", *FEW[:1], 2, "--rephrase-with", "other", "--base-url", server.base_url)
        outcome = cli(*argv, "--out", tmp_path / "c.json")
    assert "0 of 6 instructions reworded" in outcome.err
    assert "answers rejected: lost the" in outcome.err


SWEEP = ("research", "art", "sweep", "--tasks", 12, "--windows", "12h,24h", "--shifts=-10%,0%,10%")


def test_sweep(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "sweep.jsonl"
    points = json.loads(cli(*SWEEP, "--out", out, "--json").out)
    assert [point["setting"] for point in points] == ["12h", "24h", "-10%", "0%", "+10%"]
    assert all(point["success"]["share"] == 1 for point in points)
    assert [point["changed"]["count"] for point in points if point["setting"] in ("24h", "0%")] == [0, 0]
    assert all(point["success"]["low"] < 1 for point in points)
    lines = out.read_bytes().splitlines(keepends=True)
    assert len(lines) == sum(point["tasks"] for point in points) == len(read_cases(tmp_path / "sweep.tasks.json"))

    whole = [rollout.line(timings=False) for rollout in read_rollouts(out)]
    out.write_bytes(b"".join(lines[:5]) + lines[5][:40])
    again = cli(*SWEEP, "--out", out, "--resume", "--csv", tmp_path / "curve.csv")
    assert again.code == 0
    assert f"{len(lines) - 5} episodes written" in again.err
    assert "By shift of the limits" in again.out
    assert [rollout.line(timings=False) for rollout in read_rollouts(out)] == whole
    curve = list(csv.DictReader(io.StringIO((tmp_path / "curve.csv").read_text())))
    assert [(row["kind"], row["value"]) for row in curve][:3] == [
        ("window", "12.0"),
        ("window", "24.0"),
        ("shift", "-0.1"),
    ]
    assert {row["success_share"] for row in curve} == {"1.0"}

    assert "--resume" in cli(*SWEEP, "--out", out).err

    other = cli(*SWEEP[:4], 15, *SWEEP[5:], "--out", out, "--resume")
    assert other.code == 1
    assert "another sweep" in other.err
    idle = json.loads(cli(*SWEEP, "--out", out, "--overwrite", "--agent", "idle", "--json").out)
    assert all(load["success"]["count"] == 0 for load in idle)


def test_sweep_of_a_file(cli: Cli, made: Path) -> None:
    outcome = cli(
        "research", "art", "sweep", "--tasks-file", made / "tasks.json", "--windows", "36h", "--out", made / "s.jsonl"
    )
    assert outcome.code == 0
    rows = [line.split() for line in outcome.out.splitlines()]
    assert rows[2][0] == "36h"
    assert {rollout.task.key.partition("@")[2] for rollout in read_rollouts(made / "s.jsonl")} == {"36h"}


def test_a_sweep_of_tasks_of_another_world(cli: Cli, made: Path) -> None:
    out = made / "s.jsonl"
    outcome = cli(
        *("research", "art", "sweep", "--tasks-file", made / "tasks.json", "--world", "hospital-small"),
        *("--windows", "36h", "--out", out),
    )
    assert (outcome.code, len(outcome.err.splitlines())) == (1, 1)
    assert "does not fit the world hospital-small" in outcome.err
    assert not out.exists()
    assert not out.with_suffix(".tasks.json").exists()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["mine", "--world", "cohort-min"], "cohort-mini"),
        (["generate"], "--out"),
        (["generate", "--out", "x", "--per-family", "0"], "per-family"),
        (["generate", "--out", "x", "--world", "empty"], "has no"),
        (["generate", "--out", "x", "--rephrase-with", "m", "--base-url", "nonsense"], "must be a URL such as"),
        (["audit", "missing.json"], "cannot be read"),
        (["review", "missing.json", "sheet.csv", "--out", "x"], "missing.json"),
        (["sweep"], "--windows"),
        (["sweep", "--windows", ""], "--windows"),
        (["sweep", "--windows", "12days"], "are not hours like"),
        (["sweep", "--shifts", "0.1"], "are not percentages like"),
        (["sweep", "--windows", "12h", "--agent", "golden"], "gold"),
        (["sweep", "--windows", "12h", "--resume", "--overwrite"], "combined"),
        (["sweep", "--windows", "12h", "--tasks-file", "missing.json"], "cannot be read"),
        (["swep"], ""),
    ],
    ids=" ".join,
)
def test_wrong_usage(cli: Cli, argv: list[str], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = cli("research", "art", *argv)
    assert outcome.code in (1, 2)
    assert told in outcome.err
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_many_tasks_of_a_file_are_summed_up(cli: Cli, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.json"
    assert cli("research", "art", "generate", "--out", tasks, "--per-family", 21).code == 0
    files = ("--task-file", tasks, "--out", tmp_path / "out.jsonl")
    outcome = cli("rollout", "FHIRAgent/ActionReasoning-v0", "--agent", "gold", *files)
    assert outcome.code == 0, outcome.err
    assert "63 tasks: use `fhir-gym report --by task` to show one row per task" in outcome.out
    assert "retrieval_0" not in outcome.out
    assert all(group in outcome.out for group in ("Retrieval", "Aggregation", "Threshold / conditional"))
