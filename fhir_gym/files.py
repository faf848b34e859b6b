"""Write files atomically: write a temporary file in the same folder, then let it replace the target.

A reader never sees a partial file. Invalid input, Ctrl-C, a full disk or a killed process never destroys the old
content.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Self
from weakref import finalize

from fhir_gym.errors import FhirGymError
from fhir_gym.processes import is_running

__all__ = [
    "LOCK",
    "FileLock",
    "atomic_write",
    "lock_folder",
    "new_folder",
    "require_writable",
    "resolve",
    "why_not_writable",
    "write_file",
    "write_files",
]

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
        folders: Folders to delete on release if they are empty, an inner one before the one that contains it.

    Raises:
        BlockingIOError: The lock is held elsewhere, and `wait` is False.
        OSError: The file cannot be opened or locked.
    """

    def __init__(self, path: Path, *, wait: bool = False, delete: bool = False, folders: Sequence[Path] = ()) -> None:
        self.path, self._delete, self._folders = path, delete, folders
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
                for folder in self._folders:
                    folder.rmdir()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @staticmethod
    def holder(path: Path) -> int | None:
        """Return the id of the process that locked a file last; None if the file does not contain it."""
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


LOCK = ".lock"
"""Name of the file by which a run locks its folder."""


@contextmanager
def atomic_write(path: str | PathLike[str], error: type[FhirGymError] = FhirGymError) -> Iterator[BinaryIO]:
    """Replace a file when the `with` block ends. After an exception, the file remains unchanged.

    Missing folders are created. If the path is a symbolic link, the file that it points to is replaced. A pipe or a
    terminal is written directly.

    Args:
        path: Path of the file.
        error: Exception to raise if the file cannot be written.

    Yields:
        The open file.
    """
    require_writable(path, error)
    try:
        with ExitStack() as stack:
            file, finish = _begin(Path(path), stack)
            yield file
            finish()
    except OSError as failure:
        raise error(f"{path} cannot be written: {failure.strerror or failure}") from failure


def write_files(files: Mapping[Path, str | bytes], error: type[FhirGymError] = FhirGymError) -> None:
    """Write all files. If one file cannot be written, all files remain unchanged. Missing folders are created.

    Args:
        files: The content of each file.
        error: Exception to raise if a file cannot be written.
    """
    for path in files:
        require_writable(path, error)
    path = Path()
    try:
        with ExitStack() as stack:
            finishing = []
            for path, content in files.items():
                file, finish = _begin(path, stack)
                file.write(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
                file.flush()
                finishing.append(finish)
            for finish in finishing:
                finish()
    except OSError as failure:
        raise error(f"{path} cannot be written: {failure.strerror or failure}") from failure


def write_file(path: Path, content: str | bytes, error: type[FhirGymError] = FhirGymError) -> None:
    """Write one file; see `write_files`."""
    write_files({path: content}, error)


@contextmanager
def new_folder(path: Path, error: type[FhirGymError] = FhirGymError) -> Iterator[Path]:
    """Create a folder when the `with` block ends without an exception. An empty folder at the path is replaced.

    Args:
        path: Path of the folder.
        error: Exception to raise if the folder is not empty or cannot be written.

    Yields:
        A temporary folder, which then moves to the path.
    """
    whole = resolve(path)
    try:
        if whole.exists() and (not whole.is_dir() or any(whole.iterdir())):
            raise error(f"{path} exists and is not an empty folder; choose another folder")
        part = whole.with_name(f".{whole.name}.{os.getpid()}.part")
        part.mkdir(parents=True)
        try:
            yield part
            if whole.exists():
                whole.rmdir()  # Windows cannot replace a folder
            part.rename(whole)
        finally:
            shutil.rmtree(part, ignore_errors=True)  # after a success, it was already moved
    except OSError as failure:
        raise error(f"{path} cannot be written: {failure.strerror or failure}") from failure


def require_writable(path: str | PathLike[str], error: type[FhirGymError] = FhirGymError) -> None:
    """Raise `error` if `why_not_writable` gives a reason why a file cannot be written."""
    reason = why_not_writable(path)
    if reason is not None:
        raise error(reason)


def why_not_writable(path: str | PathLike[str]) -> str | None:
    """Return why a file cannot be written, or None if no reason is found. The file is not opened for writing."""
    target = Path(path)
    try:
        if target.is_dir():
            return f"{path} cannot be written: it is a folder"
        if target.exists():
            return None if os.access(target, os.W_OK) else f"{path} cannot be written: Permission denied"
        folder = next(parent for parent in target.resolve().parents if parent.exists())
        if not folder.is_dir():
            return f"{path} cannot be written: {folder} is not a folder"
        allowed = os.access(folder, os.W_OK | os.X_OK)
    except (OSError, RuntimeError, ValueError) as failure:  # a loop of links, or an invalid file name
        return f"{str(path)!r} cannot be written: {failure}"
    return None if allowed else f"{path} cannot be written: {folder} is not writable"


def resolve(path: str | PathLike[str]) -> Path:
    """Return the absolute path without symbolic links, so that paths can be compared. Never raise an exception."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or an unknown home directory
        return Path(path).absolute()


def lock_folder(folder: Path, error: type[FhirGymError] = FhirGymError) -> FileLock:
    """Lock a folder, so that only one run uses it at a time.

    Args:
        folder: The folder; it is created if it does not exist, and deleted on release if it is still empty then.
        error: Exception to raise if another run uses the folder, or if the folder is not writable.
    """
    path = folder / LOCK
    try:
        new_folders = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(path, delete=True, folders=new_folders)
    except BlockingIOError:
        raise error(f"{folder} is in use by process {FileLock.holder(path) or 'unknown'}") from None
    except OSError as failure:
        raise error(f"{folder} cannot be written: {failure.strerror or failure}") from failure


def _begin(path: Path, stack: ExitStack) -> tuple[BinaryIO, Callable[[], None]]:
    """Return a temporary file and a function that moves the file to its target.

    After a failure, the stack deletes the temporary file.
    """
    whole = resolve(path)
    whole.parent.mkdir(parents=True, exist_ok=True)
    if whole.exists() and not whole.is_file():
        direct = stack.enter_context(whole.open("wb"))
        return direct, direct.flush
    _remove_leftovers(whole)
    part = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    stack.callback(_discard, part)
    file = stack.enter_context(part.open("wb"))

    def finish() -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()  # Windows cannot rename an open file
        if whole.exists():
            shutil.copymode(whole, part)
        part.replace(whole)

    return file, finish


def _discard(part: Path) -> None:
    with suppress(OSError):  # after a success, the file was already moved to its target
        part.unlink()


def _remove_leftovers(whole: Path) -> None:
    """Delete temporary files that killed processes have left."""
    for part in whole.parent.glob(f".{escape(whole.name)}.*.part"):
        number = part.name.split(".")[-2]
        if number.isdecimal() and not is_running(int(number)):
            _discard(part)
