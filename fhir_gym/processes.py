"""Processes: workers that end with the process they work for, and what killed ones left behind."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import ParamSpec, TypeVar

__all__ = ["Workers", "end_with_parent", "is_running", "shielded", "temporary_folder", "workers"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_PREFIX = "fhir-gym-"

_watched: int | None = None
"""The process that already watches its parent: after a fork its thread is gone."""


class Workers:
    """Worker processes: see `workers`."""

    def __init__(self, count: int, start: Callable[[], None]) -> None:
        context = multiprocessing.get_context("spawn")  # SQLite connections and threads do not survive a fork
        self._told, self._tell = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(self._told, start))

    def submit(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Let a worker call a function."""
        with shielded():  # this may start one, which would otherwise print a traceback while it imports
            return self._pool.submit(function, *args, **kwargs)

    def stop(self) -> None:
        """End the workers where they are."""
        self._tell.close()

    def close(self) -> None:
        """Wait for what is under way; what is not is dropped."""
        self._pool.shutdown(cancel_futures=True)
        self._tell.close()
        self._told.close()


@contextmanager
def workers(count: int, start: Callable[[], None]) -> Iterator[Workers]:
    """Worker processes that end with the block: at once where an exception ends it, Ctrl-C for one.

    Args:
        count: How many.
        start: Called first in each; it has to be picklable.

    Yields:
        What takes their work.
    """
    pool = Workers(count, start)
    try:
        yield pool
    except BaseException:
        pool.stop()
        raise
    finally:
        pool.close()


def _begin(told: Connection, start: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the main process stops all
    end_with_parent()
    threading.Thread(target=_end_when, args=(told,), name="end_when_told", daemon=True).start()
    start()


def _end_when(told: Connection) -> None:
    told.poll(None)  # nothing is ever sent: it waits until the other end is closed
    os._exit(1)


@contextmanager
def shielded() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, where the system can; this one gets it afterwards.

    A worker that is interrupted before it is told to ignore Ctrl-C dies with a traceback, and its parent may wait
    forever to tell it what to do.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # starting later, it would let signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
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
