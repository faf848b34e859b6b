"""Processes: workers that end with the process they work for, and what killed ones left behind."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

__all__ = ["end_with_parent", "is_running", "shielded", "temporary_folder"]

_PREFIX = "fhir-gym-"

_watched: int | None = None
"""The process that already watches its parent: after a fork its thread is gone."""


@contextmanager
def shielded() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, where the system can; this one gets it afterwards.

    A worker that is interrupted before it is told to ignore Ctrl-C dies with a traceback, and its parent may wait
    forever to tell it what to do.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """End this process as soon as its parent ends, also where that is killed and can tell nobody.

    For processes of `multiprocessing`, which each have a pipe that closes with their parent. Elsewhere, and when called
    again, it does nothing.
    """
    global _watched
    parent = multiprocessing.parent_process()
    if parent is None or _watched == os.getpid():
        return
    _watched = os.getpid()
    threading.Thread(target=_watch, args=(parent,), name="end_with_parent", daemon=True).start()


def _watch(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)  # nobody is left who could take a result, or an error


def is_running(process: int) -> bool:
    """Whether a process may be there; on Windows never, where a file in use cannot be deleted anyway."""
    if sys.platform == "win32":
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder in the system's own for temporary files, deleted at the end; those of killed processes are deleted too.

    Yields:
        Its path.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        number = left.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdecimal() and not is_running(int(number)):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as folder:
        yield Path(folder)
