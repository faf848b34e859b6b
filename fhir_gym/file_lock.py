"""Exclusive locks of files. The operating system releases a lock when its process ends, even if it is killed."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

__all__ = ["FileLock"]

if sys.platform == "win32":
    import errno
    import msvcrt

    _PLACE = 1 << 30  # the byte to lock; other processes cannot read a locked byte, so it is behind the content

    def _lock(file: BinaryIO, mode: int) -> None:
        os.lseek(file.fileno(), _PLACE, os.SEEK_SET)
        msvcrt.locking(file.fileno(), mode, 1)

    def _wait(file: BinaryIO) -> None:
        while True:
            try:
                return _lock(file, msvcrt.LK_LOCK)
            except OSError as error:
                if error.errno != errno.EDEADLOCK:  # the system gives up after ten attempts, but the wait may be longer
                    raise

    def _try(file: BinaryIO) -> bool:
        try:
            _lock(file, msvcrt.LK_NBLCK)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _wait(file: BinaryIO) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)

    def _try(file: BinaryIO) -> bool:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class FileLock:
    """A lock that this object holds on a file. Another lock of the same file is refused, in this process too.

    The file contains the id of the process that holds the lock. `release`, the end of a `with` block and the end of
    the process release the lock.

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
        while True:
            self._file = path.open("ab")
            try:
                if wait:
                    _wait(self._file)
                elif not _try(self._file):
                    raise BlockingIOError(f"{path} is locked")
                if _is_at(path, self._file):
                    break
            except BaseException:
                self._file.close()
                raise
            self._file.close()  # the last holder deleted the file after this object opened it
        self._file.truncate(0)
        self._file.write(b"%d" % os.getpid())
        self._file.flush()

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._delete and not self._file.closed:
            with suppress(OSError):
                self.path.unlink()
        self._file.close()

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


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Return whether an open file is the file at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
