"""The commands `fhir-gym mcp …`: wrong usage and missing files end with one clear line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fhir_gym.cli import mcp
from tests.cli.conftest import Cli

ENV = "FHIRAgent/Appointment-v0"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (None, None),
        ("8000", ("127.0.0.1", 8000)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("localhost:9", ("localhost", 9)),
        ("[::1]:9", ("::1", 9)),
    ],
)
def test_addresses(text: str | None, address: tuple[str, int] | None) -> None:
    assert mcp.parse_address(text) == address


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("fhir", "--http", "here"), 2, "'here' is not an address"),
        (("fhir", "--http", ":8000"), 2, "':8000' is not an address"),
        (("fhir", "--http", "127.0.0.1:70000"), 2, "is not an address"),
        (("fhir", "--out", "rollouts.jsonl"), 2, "--out"),
        (("fhir", "--max-steps", 5), 2, "need an ENV_ID"),
        (("fhir", "FHIRAgent/Appointments-v0"), 2, "did you mean 'FHIRAgent/Appointment-v0'"),
        (("fhir", "--world", "hospital-smal"), 2, "did you mean 'hospital-small'"),
        (("fhir", ENV, "--feedback", "all"), 2, "feedback"),
        (("memory", "missing.memory"), 1, "missing.memory"),
    ],
)
def test_wrong_usage(cli: Cli, arguments: tuple[object, ...], code: int, message: str) -> None:
    outcome = cli("mcp", *arguments)
    assert outcome.code == code and outcome.err.count("\n") == 1
    assert message in outcome.err


def test_a_file_of_something_else_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text("hello\n")
    outcome = cli("mcp", "fhir", ENV, "--out", tmp_path / "notes.jsonl")
    assert outcome.code == 1 and outcome.err.count("\n") == 1 and "notes.jsonl" in outcome.err
    assert (tmp_path / "notes.jsonl").read_text() == "hello\n"


@pytest.mark.parametrize("command", [("fhir",), ("fhir", ENV), ("spec",)])
def test_the_missing_extra_is_named(cli: Cli, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    outcome = cli("mcp", *command)
    assert (outcome.code, outcome.err) == (1, "error: MCP needs: pip install '.[mcp]' in the clone of fhir_gym\n")
