from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pytest

from fhir_gym.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


class Cli(Protocol):
    def __call__(self, *argv: object) -> Outcome: ...


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line in this process; return the exit code, standard output and standard error."""

    def run(*argv: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in argv])
        out, err = capsys.readouterr()
        return Outcome(int(left.value.code or 0), out, err)

    return run
