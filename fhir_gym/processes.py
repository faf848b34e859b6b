"""Worker processes that end when their parent ends, and temporary folders that do not outlive a killed process."""

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
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fhir_gym.errors import InfraError

__all__ = ["end_with_parent", "is_running", "temporary_folder", "worker_pool"]

_PREFIX = "fhir-gym-"

_watched: int | None = None
"""Id of the process whose thread waits for the end of the parent process.

A forked child has another id, so it starts its own thread.
"""


_prepared: Any = None
"""What a worker process has prepared for its calls."""


@contextmanager
def worker_pool(count: int, prepare: Callable[[], Any]) -> Iterator[Callable[..., Future[Any]]]:
    """Provide worker processes for a `with` block. If an exception such as Ctrl-C ends the block, they are killed.

    Args:
        count: Number of workers.
        prepare: Picklable function that each worker calls first.

    Yields:
        A function that calls its first argument in a worker, with what the worker prepared and the other arguments.

    Raises:
        InfraError: A worker died.
    """
    context = multiprocessing.get_context("spawn")  # SQLite connections and threads do not survive a fork
    receiver, sender = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(receiver, prepare))

    def submit(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        with _sigint_blocked():  # the call may start a worker, in which an early Ctrl-C would print a traceback
            return pool.submit(_call, function, *arguments)

    try:
        yield submit
    except BaseException as error:
        sender.close()  # kills the workers
        if isinstance(error, BrokenProcessPool):
            raise InfraError(
                "a worker process died: it ran out of memory, or the main script starts the workers without the guard "
                '`if __name__ == "__main__":` that worker processes need'
            ) from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)  # waits for running calls
        sender.close()
        receiver.close()


def _begin(receiver: Connection, prepare: Callable[[], object]) -> None:
    global _prepared
    # Ctrl-C reaches the whole process group; the main process stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    threading.Thread(target=_exit_on_stop, args=(receiver,), name="exit_on_stop", daemon=True).start()
    _prepared = prepare()


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(_prepared, *arguments)


def _exit_on_stop(receiver: Connection) -> None:
    receiver.poll(None)  # the parent never sends anything; this waits until the parent closes its end
    os._exit(1)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Delay Ctrl-C until the `with` block ends, so that processes started in the block do not receive the signal.

    If Ctrl-C interrupts a worker during its start, the worker dies with a traceback, and its parent may wait forever.
    On Windows, this function does nothing.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # if the tracker started inside the block, it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """End this `multiprocessing` process as soon as its parent ends, even if the parent is killed.

    In other processes, and after the first call, this function does nothing.
    """
    global _watched
    parent = multiprocessing.parent_process()
    if parent is None or _watched == os.getpid():
        return
    _watched = os.getpid()
    threading.Thread(target=_watch, args=(parent,), name="end_with_parent", daemon=True).start()


def _watch(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)  # no process could read a result or an error now


def is_running(process: int) -> bool:
    """Whether a process may exist. On Windows, the result is False, because files in use cannot be deleted there."""
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
    """Provide a temporary folder for a `with` block, then delete it. Also delete folders that killed processes left.

    Yields:
        The path of the folder.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        number = left.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdecimal() and not is_running(int(number)):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as folder:
        yield Path(folder)
