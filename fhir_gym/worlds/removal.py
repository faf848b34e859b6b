"""Remove worlds from the cache."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fhir_gym.errors import UnknownNameError, WorldError
from fhir_gym.worlds.cache import build_lock, remove_leftovers
from fhir_gym.worlds.catalogue import RECIPES, Recipe, cached_path, imported_path, imported_worlds, installed_world


@dataclass(frozen=True)
class CachedWorld:
    """The files of one world in the cache.

    Attributes:
        generated: Whether the world can be rebuilt; an imported world cannot be rebuilt after its removal.
        files: World files; for a generated world, the files of all seeds and generator versions.
        unfinished: Folder of an interrupted import from a server; the same import, if repeated, resumes from this
            folder.
    """

    name: str
    generated: bool
    files: tuple[Path, ...]
    unfinished: Path | None = None

    @property
    def bytes(self) -> int:
        """Total size on disk."""
        pages = self.unfinished.iterdir() if self.unfinished else ()
        return sum(path.stat().st_size for path in (*self.files, *pages))


def cached_world(name: str) -> CachedWorld:
    """Find the files of a world in the cache.

    Raises:
        UnknownNameError: No generated or imported world has that name.
        WorldError: The name is invalid.
    """
    if name in RECIPES:
        return _generated(RECIPES[name])
    path = imported_path(name)
    pages = path.with_name(f".{path.name}.spool")
    if not path.exists() and not pages.exists():
        if isinstance(recipe := installed_world(name), Recipe):
            return _generated(recipe)
        raise UnknownNameError("world", name, [*RECIPES, *imported_worlds()])
    return CachedWorld(name, False, (path,) if path.exists() else (), pages if pages.exists() else None)


def _generated(recipe: Recipe) -> CachedWorld:
    file = re.compile(rf"{re.escape(recipe.name)}-\d+-g\d+-f\d+-.*\.sqlite")
    paths = [path for path in cached_path(recipe).parent.glob("*.sqlite") if file.fullmatch(path.name)]
    return CachedWorld(recipe.name, True, tuple(sorted(paths)))


def remove(name: str) -> CachedWorld:
    """Remove a world from the cache. A generated world is rebuilt on its next use.

    Open sessions of the world keep working.

    Returns:
        The removed files.

    Raises:
        UnknownNameError: No generated or imported world has that name.
        WorldError: The name is invalid, or a file cannot be deleted.
    """
    world = cached_world(name)
    for path in world.files:
        try:
            with build_lock(path):
                remove_leftovers(path)
                path.unlink(missing_ok=True)
                with suppress(OSError):  # Windows cannot delete open files
                    path.with_name(f".{path.name}.lock").unlink()
        except OSError as error:
            raise WorldError(f"cannot remove {path}: {error.strerror or error}") from error
    if world.unfinished is not None:
        with build_lock(world.unfinished / "spool"):
            shutil.rmtree(world.unfinished, ignore_errors=True)
    return world
