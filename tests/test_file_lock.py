"""A lock of a file has one holder, and ends with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fhir_gym import files
from fhir_gym.files import FileLock

HOLD = "import sys; from pathlib import Path; from fhir_gym.files import FileLock; lock = FileLock(Path(sys.argv[1]))"


def test_a_second_holder_in_the_same_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path):
        assert FileLock.holder(path) == os.getpid()
        with pytest.raises(BlockingIOError):
            FileLock(path)
    FileLock(path).release()
    assert path.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="kills a process with SIGKILL")
def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = f"{HOLD}; print('held', flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError):
            FileLock(path)
        assert FileLock.holder(path) == child.pid
        child.send_signal(signal.SIGKILL)
        child.wait()
    FileLock(path).release()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no open file")
def test_a_waiting_process_never_locks_a_deleted_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    first = FileLock(path, delete=True)
    opened = files._wait

    def wait(descriptor: int) -> None:
        first.release()  # the second lock has opened the file, which now is deleted
        opened(descriptor)

    monkeypatch.setattr(files, "_wait", wait)
    second = FileLock(path, wait=True)
    assert path.exists()
    with pytest.raises(BlockingIOError):
        FileLock(path)
    second.release()


@pytest.mark.parametrize(("content", "holder"), [("12", 12), ("", None), ("x", None), ("1" * 10_000, int("1" * 20))])
def test_the_holder_is_read_from_any_file(tmp_path: Path, content: str, holder: int | None) -> None:
    (tmp_path / "lock").write_text(content)
    assert FileLock.holder(tmp_path / "lock") == holder
    assert FileLock.holder(tmp_path / "missing") is None
