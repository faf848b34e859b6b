"""The cache folder of worlds, its file locks, and its copies of world files that come from other machines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from importlib.metadata import version
from pathlib import Path

from platformdirs import user_cache_path

from fhir_gym.errors import WorldError
from fhir_gym.fhir import World
from fhir_gym.fhir.store.schema import FORMAT
from fhir_gym.files import FileLock, atomic_write

VARIABLE = "FHIR_GYM_CACHE"
"""Environment variable that names another cache folder."""

_ENDINGS = (".partial", ".scratch")
_swept: set[Path] = set()


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
        lock = FileLock(path.with_name(f".{path.name}.lock"), wait=True)
    except OSError as error:
        raise WorldError(
            f"cannot write to the cache folder {path.parent}: {error.strerror}; set {VARIABLE} to use another folder"
        ) from error
    with lock:
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
            with suppress(BlockingIOError), FileLock(folder / f".{name}.lock"):  # otherwise a build is running
                remove_leftovers(folder / name)


def find_copy(path: Path, content_hash: str) -> World | None:
    """Open a world of another machine, if this machine has it; otherwise, return None.

    Args:
        path: Path of the file on the other machine. On a shared disk, this machine has the same file.
        content_hash: Content hash of the world.
    """
    for candidate in (path, _copy_path(content_hash)):
        try:
            world = World.open(candidate)
        except WorldError:  # there is no such file, or it is not this world
            continue
        if world.manifest.content_hash == content_hash:
            return world
        world.close()
    return None


def store_copy(content_hash: str, parts: Iterable[bytes]) -> World:
    """Store a world of another machine in the cache, and open it. Concurrent processes store a world only once.

    Args:
        content_hash: Content hash of the world.
        parts: The parts of the world file; not read if the cache contains the world.

    Raises:
        WorldError: The parts are not this world, or the cache folder is not writable.
    """
    path = _copy_path(content_hash)
    with build_lock(path):
        world = find_copy(path, content_hash)
        if world is None:
            with atomic_write(path, WorldError) as file:
                file.writelines(parts)
            world = find_copy(path, content_hash)
        if world is None:
            raise WorldError(f"{path} is not the world that was sent: its content has another hash")
        return world


def _copy_path(content_hash: str) -> Path:
    return cache_dir() / "copies" / f"{content_hash}-f{FORMAT}-{version('fhir-gym')}.sqlite"
