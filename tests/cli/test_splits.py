"""Every command that takes the number of a variation refuses one that does not exist or is not in the split."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

ENV_ID = "FHIRAgent/Appointment-v0"
UNKNOWN = "numbered from 0 to 1999"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("rollout", ENV_ID, "--tasks", "03", "--split", "train", "--variations", "1500"), "is not in split 'train'"),
        (("rollout", ENV_ID, "--tasks", "03", "--variations", "99999"), UNKNOWN),
        (("tasks", "show", ENV_ID, "03", "--variation", "2000"), UNKNOWN),
        (("tasks", "check", ENV_ID, "--tasks", "03", "--variations", "2000-2001"), UNKNOWN),
        (("tasks", "probe", ENV_ID, "--tasks", "03", "--train", "1001"), "variation 1000 is not in split 'train'"),
        (("publish", "harbor", ENV_ID, "--out", "x", "--split", "test", "--variations", "5"), "is not in split 'test'"),
        (("research", "harbor", "serve", ENV_ID, "--task", "03", "--variation", "2000"), UNKNOWN),
    ],
)
def test_the_refusal_is_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli(*command)
    assert done.code == 2 and message in done.err.splitlines()[-1] and not done.out
