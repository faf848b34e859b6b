from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from fhir_gym.cli import _console


def test_table_elsewhere_than_on_a_terminal_is_plain_and_uncut(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    _console.table(("name", "n"), [])
    assert capsys.readouterr().out == "name  n\n"


def test_json_keeps_brackets_and_other_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"[red]a :o:": ["Zoë\x7f", None, 1.5]}
    _console.print_json(value)
    out = capsys.readouterr().out
    assert json.loads(out) == value
    assert "Zoë" in out


def test_progress_is_silent_elsewhere_than_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with _console.progress("Working") as update:
        update(1, 2)
    assert capsys.readouterr() == ("", "")


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
