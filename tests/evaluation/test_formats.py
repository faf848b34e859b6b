from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fhir_gym.errors import RecordError
from fhir_gym.evaluation import FORMATS, Report, as_json, latex, long_csv, markdown, plain, read_runs, write_report
from fhir_gym.evaluation.plain import FORMAT_VERSION, long_rows
from fhir_gym.rollouts import Prices, write_rollouts
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli  # a fixture
from tests.evaluation.records import rollout, study
from tests.evaluation.test_report import golden

HOSTILE = [
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "+1",
    "-1",
    "a | b `c` *d* _e_ <script>alert(1)</script> [f](javascript:g) $h$ ~i~",
    "\\input{/etc/passwd} {x} $y$ & # ^ _ ~ % \\end{table}",
    "\x1b[31mred\x07\r\n\t\u202egnp\u2028.exe\x9b",
    "x" * 5_000,
    "%\n\\input{/etc/passwd}",
]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    """Three runs of an experiment, as they stand in a folder."""
    monkeypatch.chdir(tmp_path)
    for shift, name in enumerate(("baseline", "spec", "memory")):
        write_rollouts(Path("study", "rollouts", f"{name}.jsonl"), study(shift))
    return Report(read_runs(["study"]), ("task",), prices=Prices(1.0, 2.0))


@pytest.fixture
def hostile(tmp_path: Path) -> Report:
    """Runs whose agents, checks, errors and stop reasons are named by an attacker."""
    for number, name in enumerate(HOSTILE):
        records = [
            rollout("01", 0, False, agent=name, checks=((name, False),), settings={"model": name}),
            rollout("01", 1, None, agent=name, settings={"model": name}, error=name),
        ]
        write_rollouts(tmp_path / f"{number}.jsonl", records)
    return Report(read_runs([tmp_path / f"{number}.jsonl" for number in range(len(HOSTILE))]))


@pytest.mark.parametrize(("name", "write"), FORMATS.items())
def test_every_format(report: Report, name: str, write: Callable[[Report], str]) -> None:
    golden(f"study.{name}", write(report))


def test_json_is_the_plain_data(report: Report) -> None:
    data = json.loads(as_json(report))
    assert data == plain(report) and data["format"] == FORMAT_VERSION


def test_the_long_form_has_one_number_in_each_row(report: Report) -> None:
    rows = list(long_rows(report))
    assert len({row[:6] for row in rows}) == len(rows)
    assert {type(row.value) for row in rows} <= {int, float, str}
    found = {row[3:6]: row.value for row in rows if row.run == "spec"}
    statistics = report.statistics[1]
    assert found["", "", "success.share"] == statistics.success.value
    assert found["", "", "success.low"] == round(statistics.success.low, 6)
    assert found["failure mode", "other", "episodes"] == statistics.failure_modes.counts["other"]
    assert found["tool", "create", "errors"] == 4
    assert found["task", "01 Enter a new patient", "success.count"] == 3
    assert found["compared with", "baseline", "common"] == 8
    assert statistics.variance is not None
    assert found["", "", "variance.exact.total"] == pytest.approx(statistics.variance.exact.total, abs=1e-6)
    assert found["k", "2", "pass_at_k"] == pytest.approx(1.0)
    table = [*csv.reader(io.StringIO(long_csv(report)))]
    assert table[0] == ["run", "experiment", "configuration", "dimension", "group", "measure", "value"]
    assert len(table) == len(rows) + 1


def test_a_spreadsheet_takes_no_name_for_a_formula(hostile: Report) -> None:
    for row in csv.reader(io.StringIO(long_csv(hostile))):
        assert not [cell for cell in row[:6] if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
        assert len(row) == 7


def test_no_format_contains_control_characters(hostile: Report) -> None:
    for write in FORMATS.values():
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", write(hostile))


def test_markdown_tables_keep_their_columns(hostile: Report) -> None:
    text = markdown(hostile)
    for block in re.split(r"\n\n", text):
        if block.startswith("|"):
            assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in block.splitlines()}) == 1
    assert "<script" in text.replace("\\", "") and not re.search(r"(?<!\\)[<>\[\]`$~]", text)


def test_latex_has_no_command_of_a_name(hostile: Report) -> None:
    text = latex(hostile)
    assert r"\input" not in text
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") > 5
    for line in text.splitlines():
        if line.endswith(r" \\"):
            cell = re.sub(r"\\[{}]", "", line.removesuffix(r" \\"))
            assert not re.search(r"(?<!\\)[%$#_^~]", cell.replace("$-$", ""))
            assert cell.count("{") == cell.count("}")


def test_long_names_are_truncated(hostile: Report) -> None:
    for write in FORMATS.values():
        assert write is as_json or "x" * 300 not in write(hostile)


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the drawing of figures, which is slow and has tests of its own."""
    monkeypatch.setattr("fhir_gym.evaluation.formats.draw_figures", lambda report: ())


@pytest.mark.usefixtures("drawing")
def test_write_report_writes_all_formats(report: Report, tmp_path: Path) -> None:
    written = write_report(report, tmp_path / "out")
    names = ["report.md", "report.tex", "report.csv", "report.json", "report.html"]
    assert [path.name for path in written] == names
    assert written[0].read_text("utf-8") == markdown(report)
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be written"):
        write_report(report, tmp_path / "file")


def test_without_the_extra_the_texts_are_written(report: Report, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = cli("report", "study", "--out", "out")
    assert done.code == 1 and done.err.count("\n") == 1
    assert "pip install '.[report]' in the clone of fhir_gym; the report without figures is in out" in done.err
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "report.csv",
        "report.json",
        "report.md",
        "report.tex",
    ]


@pytest.mark.slow
def test_write_report_draws_the_figures(report: Report, tmp_path: Path) -> None:
    written = write_report(report, tmp_path)
    assert all(path.stat().st_size > 500 for path in written)
    assert {path.suffix for path in written} == {".md", ".tex", ".csv", ".json", ".html", ".svg", ".png"}


@pytest.mark.usefixtures("drawing")
def test_command_writes_a_folder(report: Report, cli: Cli) -> None:
    done = cli("report", "study", "--out", "out", "--price-in", "1", "--price-out", "2", "--by", "task")
    assert done.code == 0 and "out/report.json" in done.out
    assert json.loads(Path("out", "report.json").read_text("utf-8")) == plain(report)
    assert cli("report", "study", "--out", "out", "--json").code == 2


def test_command_prints_each_format(report: Report, cli: Cli) -> None:
    arguments = ("report", "study", "--by", "task", "--price-in", "1", "--price-out", "2", "--format")
    for name, write in FORMATS.items():
        assert cli(*arguments, name).out == write(report)
    assert "Paired differences" in cli(*arguments, "terminal").out
    assert cli(*arguments, "pdf").code == 2
    assert cli(*arguments, "csv", "--json").code == 2


def test_command_pools_experiments(report: Report, cli: Cli) -> None:
    write_rollouts(Path("again", "baseline.jsonl"), study(1))
    done = cli("report", "study", "again", "--pool", "--json")
    assert [run["name"] for run in json.loads(done.out)["runs"]] == ["baseline", "study spec", "study memory"]
