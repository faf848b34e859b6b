"""Worker processes that end with the process they work for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.process import BaseProcess

__all__ = ["end_with_parent"]

_watched: int | None = None
"""The process that already watches its parent: after a fork its thread is gone."""


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
