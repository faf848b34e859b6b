"""Exclusive locks of files. The operating system releases a lock when its process ends, even if it is killed."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self
from weakref import finalize

__all__ = ["FileLock"]

if sys.platform == "win32":
    import errno
    import msvcrt

    _PLACE = 1 << 30  # the byte to lock; other processes cannot read a locked byte, so it is behind the content

    def _lock(descriptor: int, mode: int) -> None:
        os.lseek(descriptor, _PLACE, os.SEEK_SET)
        msvcrt.locking(descriptor, mode, 1)

    def _wait(descriptor: int) -> None:
        while True:
            try:
                return _lock(descriptor, msvcrt.LK_LOCK)
            except OSError as error:
                if error.errno != errno.EDEADLOCK:  # the system gives up after ten attempts, but the wait may be longer
                    raise

    def _try(descriptor: int) -> bool:
        try:
            _lock(descriptor, msvcrt.LK_NBLCK)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _wait(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def _try(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class FileLock:
    """A lock that this object holds on a file. Another lock of the same file is refused, in this process too.

    The file contains the id of the process that holds the lock. `release`, the end of a `with` block, the end of
    this object and the end of the process release the lock.

    Args:
        path: The file; it is created if it does not exist.
        wait: Whether to wait while the lock is held elsewhere.
        delete: Whether to delete the file on release. Windows deletes no open file, so the file remains there.

    Raises:
        BlockingIOError: The lock is held elsewhere, and `wait` is False.
        OSError: The file cannot be opened or locked.
    """

    def __init__(self, path: Path, *, wait: bool = False, delete: bool = False) -> None:
        self.path, self._delete = path, delete
        descriptor = _open(path, wait)
        while not _is_at(path, descriptor):  # the last holder deleted the file after it was opened here
            os.close(descriptor)
            descriptor = _open(path, wait)
        self._close = finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, b"%d" % os.getpid())

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._delete and self._close.alive:
            with suppress(OSError):
                self.path.unlink()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @staticmethod
    def holder(path: Path) -> int | None:
        """Return the id of the process that locked a file last; None if the file does not tell."""
        with suppress(OSError, ValueError):
            return int(path.read_text("ascii")[:20])
        return None


def _open(path: Path, wait: bool) -> int:
    """Open and lock a file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if wait:
            _wait(descriptor)
        elif not _try(descriptor):
            raise BlockingIOError(f"{path} is locked")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether an open file is the file at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
