from __future__ import annotations

import io
import json
import re
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from fhir_gym import read_rollouts, run, write_rollouts
from fhir_gym.agents import ScriptedAgent
from fhir_gym.cli import _console
from fhir_gym.fhir import WorldBuilder
from tests.cli.conftest import Cli


def test_a_table_without_a_terminal_is_plain_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    _console.table(("name", "n"), [("a [b]", 5), (long, 12)], title="Things")
    assert capsys.readouterr().out.splitlines() == [
        "Things",
        "name".ljust(300) + "   n",
        "a [b]".ljust(300) + "   5",
        long + "  12",
    ]


def test_table_on_a_terminal_takes_brackets_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(_console, "out", Console(file=screen, force_terminal=True, width=60, color_system=None))
    _console.table(("name", "n"), [("[bold]odd[/bold] [x]", 5)])
    shown = screen.getvalue()
    assert "[bold]odd[/bold] [x]" in shown
    assert "┃" in shown


def test_a_wide_table_continues_below_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(_console, "out", Console(file=screen, force_terminal=True, width=80, color_system=None))
    numbers = [f"number {n}" for n in range(9)]
    rows = [(f"{n} A task with a title", "model", *range(10 * n, 10 * n + 9)) for n in range(20)]
    _console.table(("task", "run", *numbers), rows, title="By task")
    shown = screen.getvalue().splitlines()
    assert max(map(len, shown)) <= 80
    assert [line.strip() for line in shown if "By task" in line] == ["By task", *["By task (further columns)"] * 2]
    assert all("".join(shown).count(name) == 1 for name in numbers), "no column is lost or repeated"
    assert sum("19 A task with a title │ model" in line for line in shown) == 3, "no row is folded"


@pytest.mark.parametrize(("columns", "printed"), [(1, 1), (2, 2), (3, 4)])  # the first of three heads both parts
def test_tables_fit_into_any_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, printed: int) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(_console, "out", Console(file=screen, force_terminal=True, width=20, color_system=None))
    _console.table([f"column {n}" for n in range(columns)], [["word " * 9] * columns])
    assert max(map(len, screen.getvalue().splitlines())) <= 20
    assert screen.getvalue().count("word") == 9 * printed


def test_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    _console.table(("name", "n"), [])
    assert capsys.readouterr().out == "name  n\n"


def test_json_keeps_brackets_and_other_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"[red]a :o:": ["Zoë\x7f", None, 1.5]}
    _console.print_json(value)
    out = capsys.readouterr().out
    assert json.loads(out) == value
    assert "Zoë" in out


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with _console.progress("Working") as update:
        update(1, 2)
    assert capsys.readouterr() == ("", "")


def test_progress_writes_lines_into_a_log_file(capsys: pytest.CaptureFixture[str]) -> None:
    with _console.progress("Training", lines=True) as update:
        for done in range(1_000):
            update(done, 1_000, f"success {done}%" if done < 995 else "evaluation")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 101
    assert lines[1] == "Training: 10 of 1,000, success 10%" and lines[-1] == "Training: 995 of 1,000, evaluation"


def test_progress_on_a_terminal_shows_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(_console, "err", Console(file=screen, force_terminal=True, width=80, color_system=None))
    with _console.progress("Working") as update:
        update(0, 0)
        update(3, 4)
    assert "Working" in screen.getvalue()
    assert "3/4" in screen.getvalue()


def test_control_characters_are_shown_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    _console.print_text("a\x1b[31mred :smile:\nc\x00")
    assert capsys.readouterr().out == "a\\x1b[31mred :smile:\nc\\x00\n"


def test_progress_that_never_began_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(_console, "err", Console(file=screen, force_terminal=True, width=80, color_system=None))
    with _console.progress("Working"):
        pass
    assert "Working" not in screen.getvalue()


HOSTILE = "ward\x1b]0;owned\x07\r\x9b31m\u202egnp.exe\u2066\x7f\u2028\udc9b"
SHOWN = "ward\\x1b]0;owned\\x07\\x0d\\x9b31m\\u202egnp.exe\\u2066\\x7f\\u2028\\udc9b"


def obeyed(text: str) -> set[str]:
    """Return the control characters of a text, without line ends."""
    own = text.replace("\n", "").replace("\x1b[2K", "").replace("\x1b[?25l", "").replace("\x1b[?25h", "")
    return {
        character
        for character in own
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in "\u202e\u2066"
    }


def test_names_cannot_reach_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _console.print_text(HOSTILE)
    _console.note(HOSTILE)
    _console.print_raw(f"{HOSTILE}\n")
    _console.table((HOSTILE, "n"), [(f"{HOSTILE}\n2", 5)], title=HOSTILE)
    _console.fields([("name", f"{HOSTILE}\nx")])
    out, err = capsys.readouterr()
    assert out.count(SHOWN) == 6
    assert err == f"{SHOWN}\n"
    assert obeyed(out) == set()


def test_names_cannot_reach_a_terminal_in_tables_and_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=400, color_system=None)
    monkeypatch.setattr(_console, "out", console)
    monkeypatch.setattr(_console, "err", console)
    _console.table((HOSTILE, "[b]n"), [(f"[red]{HOSTILE}", 5)], title=f"[red]{HOSTILE}")
    with _console.progress(f"Building [b]{HOSTILE}") as update:
        update(1, 2, f"[b]{HOSTILE}")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", screen.getvalue())  # the progress bar writes these sequences
    assert obeyed(shown) == set()
    assert shown.count(f"[red]{SHOWN}") == 2
    assert f"[b]{SHOWN}" in shown


def test_json_is_the_same_value_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    _console.print_json({HOSTILE: [HOSTILE, "Zoë"]})
    out = capsys.readouterr().out
    assert json.loads(out) == {HOSTILE: [HOSTILE, "Zoë"]}
    assert obeyed(out) == set()
    assert "Zoë" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("worlds", "info", HOSTILE),
        ("worlds", "import", f"no-such-{HOSTILE}"),
        ("tasks", "list", HOSTILE),
        ("tasks", "show", "FHIRAgent/Appointment-v0", HOSTILE),
        ("report", f"{HOSTILE}.jsonl"),
        ("rollout", HOSTILE),
        ("dataset", f"{HOSTILE}.jsonl", "--out", "x.jsonl", "--format", HOSTILE),
        (HOSTILE,),
        ("worlds", "list", f"--{HOSTILE}"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]).partition("ward")[0],
)
def test_errors_show_names_without_obeying_them(cli: Cli, arguments: tuple[str, ...]) -> None:
    outcome = cli(*arguments)
    assert outcome.code in (1, 2)
    assert "ward" in outcome.err
    assert obeyed(outcome.out + outcome.err) == set()


def test_reports_show_names_without_obeying_them(cli: Cli, tmp_path: Path) -> None:
    name = HOSTILE.removesuffix("\udc9b")
    records = tmp_path / f"{name}.jsonl"
    agents = [ScriptedAgent([f"GET /Patient?{name}", name], name=f"{name}{n}") for n in range(2)]
    for agent in agents:
        write_rollouts(records, run("FHIRAgent/Appointment-v0", agent, tasks="02a", variations=[0]))
    for arguments in (("report", records), ("report", records, "--markdown"), ("report", records, "--json")):
        outcome = cli(*arguments)
        assert outcome.code == 0
        assert "\\u202egnp.exe" in outcome.out
        assert obeyed(outcome.out + outcome.err) == set()
    written = tmp_path / f"train{name}.jsonl"
    outcome = cli("dataset", records, "--out", written, "--failures", "--invalid")
    assert outcome.code == 0
    assert obeyed(outcome.out + outcome.err) == set()
    assert [rollout.agent.name for rollout in read_rollouts(records)] == [agent.name for agent in agents]


def test_names_of_world_files_are_shown_without_obeying_them(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / (HOSTILE.removesuffix("\udc9b") + ".sqlite")
    with WorldBuilder(path, name="ward", seed=0, now=datetime(2023, 11, 13, tzinfo=UTC)):
        pass
    for command in (("worlds", "info", path), ("worlds", "verify", path), ("worlds", "info", path, "--json")):
        outcome = cli(*command)
        assert outcome.code == 0
        assert "\\u202egnp.exe" in outcome.out
        assert obeyed(outcome.out + outcome.err) == set()
