"""Copies of world files that come from other machines; the cache keeps one copy of each."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from fhir_gym.errors import WorldError
from fhir_gym.fhir import World
from fhir_gym.fhir.store.schema import FORMAT
from fhir_gym.files import atomic_write
from fhir_gym.worlds.cache import build_lock, cache_dir


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
