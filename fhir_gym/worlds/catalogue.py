"""Worlds that can be loaded by name (generated, imported or installed by plugins), and their removal from the cache."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from importlib.metadata import EntryPoint, version
from pathlib import Path
from types import MappingProxyType

from fhir_gym.errors import ArgumentError, PluginError, UnknownNameError, WorldError
from fhir_gym.fhir.store.schema import FORMAT
from fhir_gym.plugins import WORLDS, call_plugin, entry_points_of, load_plugin, plugin_error, warn_about
from fhir_gym.types import Resource
from fhir_gym.worlds import cohort, hospital
from fhir_gym.worlds.cache import build_lock, cache_dir, remove_leftovers, sweep


@dataclass(frozen=True)
class Recipe:
    """Specification of a generated world.

    Attributes:
        name: Name of the world.
        description: A one-line description of the content.
        version: Version of the generator; a new version invalidates cached files.
        now: Current time of the world.
        generate: Function from a seed to the resources.
        total: Number of resources, if it is known; the resources are then streamed to disk and not collected in memory.
    """

    name: str
    description: str
    version: int
    now: datetime
    generate: Callable[[int], Iterable[Resource]]
    total: int | None = None


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class WorldInfo:
    """A world that can be loaded by name.

    Attributes:
        name: Name for `load`.
        description: A one-line description of the content.
        path: Path of the world file, even if the file has not been built.
        built: Whether the file exists.
    """

    name: str
    description: str
    path: Path
    built: bool


def _nothing(seed: int) -> Iterable[Resource]:
    return ()


def _cohort(name: str, size: cohort.Size) -> Recipe:
    return Recipe(
        name,
        f"{size.patients} inpatients as in MedAgentBench, with {size.total - size.patients:,} records over five years",
        cohort.VERSION + hospital.VERSION,  # neither version decreases, so the sum changes whenever one of them changes
        cohort.NOW,
        partial(cohort.generate, size=size),
        size.total,
    )


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(
                "hospital-small",
                f"a synthetic hospital: {hospital.PATIENTS} patients with five years of records, a clinic with slots; "
                "about 5,000 resources",
                hospital.VERSION,
                hospital.NOW,
                hospital.generate,
            ),
            _cohort("cohort", cohort.FULL),
            _cohort("cohort-mini", cohort.MINI),
            Recipe("empty", "no resources at all", 1, hospital.NOW, _nothing),
        )
    }
)


def cached_path(recipe: Recipe, seed: int = 0) -> Path:
    """Return the path of a generated world in the cache.

    The file name contains everything that determines the file's bytes: the versions of the generator, the file layout
    and the package.
    """
    key = f"{recipe.name}-{seed}-g{recipe.version}-f{FORMAT}-{version('fhir-gym')}"
    return cache_dir() / "worlds" / f"{key}.sqlite"


def imported_path(name: str) -> Path:
    """Return the path of an imported world in the cache.

    Raises:
        ArgumentError: The name is invalid, or a generated world has the same name.
    """
    check_name(name)
    if name in RECIPES:
        raise ArgumentError(f"{name!r} is the name of a generated world; choose another name")
    return cache_dir() / "imported" / f"{name}.sqlite"


def check_name(name: str) -> None:
    """Check the name of an imported world.

    Raises:
        ArgumentError: The name is invalid.
    """
    if not _NAME.fullmatch(name):
        raise ArgumentError(
            f"invalid world name {name!r}: use at most 100 letters, digits, '.', '_' and '-', "
            "and start with a letter or digit"
        )


def imported_worlds() -> dict[str, Path]:
    """Return the paths of the imported worlds in the cache by name."""
    return {path.stem: path for path in sorted((cache_dir() / "imported").glob("[!.]*.sqlite"))}


def available() -> list[WorldInfo]:
    """List the worlds that can be loaded by name: generated worlds, then imported worlds, then worlds of plugins."""
    for folder in ("worlds", "imported"):
        sweep(cache_dir() / folder)
    infos = [_info(recipe) for recipe in RECIPES.values()]
    infos += [WorldInfo(name, "imported", path, True) for name, path in imported_worlds().items()]
    for name, installed in installed_worlds({info.name for info in infos}).items():
        infos.append(
            _info(installed)
            if isinstance(installed, Recipe)
            else WorldInfo(name, "installed", installed, installed.exists())
        )
    return infos


def _info(recipe: Recipe) -> WorldInfo:
    path = cached_path(recipe)
    return WorldInfo(recipe.name, recipe.description, path, path.exists())


def installed_world(name: str) -> Recipe | Path | None:
    """Return the recipe or the file of a plugin's world; None if no plugin provides that name.

    Raises:
        PluginError: The plugin is broken.
    """
    point = entry_points_of(WORLDS).get(name)
    return None if point is None else _resolved(point)


def installed_worlds(names: Collection[str] = ()) -> dict[str, Recipe | Path]:
    """Return all plugin worlds by name; a broken plugin causes a warning.

    Args:
        names: Names to skip because other worlds have them.
    """
    installed = {}
    for name, point in entry_points_of(WORLDS).items():
        if name in names:
            continue
        try:
            installed[name] = _resolved(point)
        except PluginError as error:
            warn_about(error)
    return installed


def _resolved(point: EntryPoint) -> Recipe | Path:
    loaded = load_plugin(point)
    if callable(loaded):
        loaded = call_plugin(point, loaded)
    if isinstance(loaded, Recipe):
        return replace(loaded, name=point.name)  # the cached file is named after the entry point
    if isinstance(loaded, str | os.PathLike):
        return Path(loaded)
    raise plugin_error(point, f"returns a {type(loaded).__name__}; expected a Recipe or the path of a world file")


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
