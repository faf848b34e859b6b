"""The command `fhir-gym openenv serve` without the extra openenv; tests/integrations/test_openenv.py has the rest."""

from __future__ import annotations

import sys

import pytest

from tests.cli.conftest import Cli


def test_the_missing_extra_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv", None)
    monkeypatch.delitem(sys.modules, "fhir_gym.integrations.openenv", raising=False)
    outcome = cli("openenv", "serve", "FHIRAgent/Appointment-v0")
    assert (outcome.code, outcome.err) == (
        1,
        "error: OpenEnv needs: pip install '.[openenv]' in the clone of fhir_gym\n",
    )


@pytest.mark.parametrize(("option", "value"), [("--port", 0), ("--max-sessions", 0), ("--session-timeout", 0)])
def test_wrong_limits_are_usage_errors(cli: Cli, option: str, value: int) -> None:
    outcome = cli("openenv", "serve", option, value)
    assert outcome.code == 2 and option in outcome.err and outcome.err.count("\n") == 1
