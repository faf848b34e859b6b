"""The cache folder of worlds and its file locks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from platformdirs import user_cache_path

from fhir_gym.errors import WorldError

VARIABLE = "FHIR_GYM_CACHE"
"""Environment variable that names another cache folder."""

_ENDINGS = (".partial", ".scratch")
_swept: set[Path] = set()

if sys.platform == "win32":
    import errno
    import msvcrt

    def _acquire(descriptor: int) -> None:
        while True:
            try:
                return msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
            except OSError as error:
                if (
                    error.errno != errno.EDEADLOCK
                ):  # EDEADLOCK: the system stopped after ten attempts, but a build may take longer
                    raise

    def _try(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _acquire(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def _try(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def cache_dir() -> Path:
    """Return the cache folder: `FHIR_GYM_CACHE` if set, otherwise the platform's cache folder.

    Generated worlds in this folder can be deleted at any time; they are rebuilt on their next use. Imported worlds
    cannot be rebuilt.
    """
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else user_cache_path("fhir_gym", appauthor=False)


@contextmanager
def build_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file in the cache; wait while another process holds the lock.

    The operating system releases the lock when the process ends, so a killed build never blocks others.

    Args:
        path: The file to write; the lock file is next to it.

    Raises:
        WorldError: The folder is not writable.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock").open("ab")
    except OSError as error:
        raise WorldError(
            f"cannot write to the cache folder {path.parent}: {error.strerror}; set {VARIABLE} to use another folder"
        ) from error
    with lock:  # closing the file releases the lock
        try:
            _acquire(lock.fileno())
        except OSError as error:
            raise WorldError(
                f"cannot lock {lock.name}: {error.strerror}; set {VARIABLE} to use another folder"
            ) from error
        yield


def remove_leftovers(path: Path) -> None:
    """Delete the temporary files that killed builds of this file left behind; the caller must hold the file's lock."""
    for ending in _ENDINGS:
        for leftover in path.parent.glob(f".{escape(path.name)}.*{ending}"):
            leftover.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Delete the temporary files that killed builds left in a cache folder, once per process; skip running builds."""
    if folder in _swept:
        return
    _swept.add(folder)
    with suppress(OSError):  # cleaning up is optional: the folder may be missing or read-only
        names = {left.name.rsplit(".", 2)[0][1:] for left in folder.glob(".*.*") if left.suffix in _ENDINGS}
        for name in names:
            with (
                folder.joinpath(f".{name}.lock").open("ab") as lock,
                suppress(OSError),
            ):  # the lock is held: a build is running
                _try(lock.fileno())
                remove_leftovers(folder / name)
