"""Load worlds by name or path and build generated worlds on first use."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from fhir_gym.errors import UnknownNameError, WorldError
from fhir_gym.fhir import World, WorldBuilder
from fhir_gym.fhir.store.schema import APPLICATION_ID
from fhir_gym.files import why_not_writable
from fhir_gym.plugins import WORLDS, entry_points_of
from fhir_gym.types import Resource
from fhir_gym.worlds.cache import build_lock, remove_leftovers, sweep
from fhir_gym.worlds.catalogue import RECIPES, Recipe, cached_path, imported_worlds, installed_world

Progress = Callable[[int, int], None]
"""Callback with the number of processed resources and the total; the total is 0 as long as it is unknown."""

_APPLICATION = slice(68, 72)
"""Position of the application id in the header of an SQLite file."""

_STEP = 100  # number of resources between two progress callbacks


def load(name_or_path: str | Path, *, progress: Progress | None = None) -> World:
    """Open a world. A generated world is built on first use and cached.

    Concurrent processes build a world only once. A damaged cached file is rebuilt with a warning.

    Args:
        name_or_path: A name (see `available`), or the path of a world file.
        progress: Called during a build; None to print one line to standard error.

    Raises:
        UnknownNameError: No world or file has that name.
        WorldError: The file is not a world, or is not readable or writable.

    Examples:
        >>> from fhir_gym import worlds
        >>> with worlds.load("empty") as world:
        ...     world.manifest.total
        0
    """
    text = os.fspath(name_or_path)
    recipe = RECIPES.get(text)
    if recipe is not None and isinstance(name_or_path, str):
        return load_recipe(recipe, progress=progress)
    imported = imported_worlds()
    if text in imported and isinstance(name_or_path, str):
        return World.open(imported[text])
    installed = installed_world(text) if isinstance(name_or_path, str) else None
    if installed is not None:
        return load_recipe(installed, progress=progress) if isinstance(installed, Recipe) else World.open(installed)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        raise WorldError(f"{path} is a folder, not a world; import its files with `fhir-gym worlds import {path}`")
    if isinstance(name_or_path, Path) or path.exists() or path.name != text or path.suffix == ".sqlite":
        return World.open(path)
    raise UnknownNameError("world", text, [*RECIPES, *imported, *entry_points_of(WORLDS)])


def build(
    name: str,
    path: str | Path | None = None,
    *,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Build a generated world, even if it was built before.

    Args:
        name: Name of the world.
        path: World file to write; by default a file in the cache, where `load` finds seed 0.
        seed: Seed of the generator; the same seed gives the same content on every machine.
        overwrite: Whether to replace an existing world at `path`.
        progress: Called during the build.

    Returns:
        Path of the file, which is written atomically.

    Raises:
        UnknownNameError: No generated world has that name.
        WorldError: The file exists and must not be overwritten, or is not writable.
    """
    recipe = RECIPES.get(name) or installed_world(name)
    if not isinstance(recipe, Recipe):
        raise UnknownNameError("world", name, RECIPES)
    if path is not None:
        target = Path(path).expanduser()
        require_replaceable(target)
        if target.is_file() and not overwrite:
            raise WorldError(f"{target} already exists; replace it with --overwrite (overwrite=True in Python)")
        return _generate(recipe, target, seed, progress)
    target = cached_path(recipe, seed)
    sweep(target.parent)
    with build_lock(target):
        remove_leftovers(target)
        return _generate(recipe, target, seed, progress)


def require_replaceable(path: Path) -> None:
    """Check that a world can be written to a path.

    Raises:
        WorldError: The path is not writable, or an existing file is not a world.
    """
    wrong = why_not_writable(path)
    if wrong is None and path.exists() and not is_world(path):
        wrong = f"{path} exists and is not a world"
    if wrong is not None:
        raise WorldError(f"cannot write a world: {wrong}")


def is_world(path: Path) -> bool:
    """Return whether a file is empty or has the header of a world."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_APPLICATION.stop)
    return not head or int.from_bytes(head[_APPLICATION], "big") == APPLICATION_ID


def write(
    path: Path,
    resources: Iterable[Resource],
    *,
    name: str,
    seed: int | None,
    now: datetime,
    total: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Write resources to a new world file.

    Args:
        path: World file to write.
        resources: Resources, each with an id.
        name: Name of the world.
        seed: Seed of the generator; None if there is none.
        now: Current time of the world.
        total: Number of resources; 0 if unknown.
        progress: Called while writing.
    """
    if path.is_dir():
        raise WorldError(f"cannot write a world: {path} is a folder")
    with WorldBuilder(path, name=name, seed=seed, now=now) as builder:
        for done, resource in enumerate(resources):
            if progress and done % _STEP == 0:
                progress(done, total)
            builder.add(resource)
    if progress:
        progress(builder.manifest.total, builder.manifest.total)
    return path


def _generate(recipe: Recipe, path: Path, seed: int, progress: Progress | None) -> Path:
    resources = recipe.generate(seed)
    total = recipe.total
    if total is None:
        resources = list(resources)
        total = len(resources)
    return write(path, resources, name=recipe.name, seed=seed, now=recipe.now, total=total, progress=progress)


def load_recipe(recipe: Recipe, *, progress: Progress | None = None) -> World:
    """Open a recipe's world with seed 0, and build it first if it is not cached.

    Args:
        recipe: Any recipe, even if it is not in `RECIPES`.
        progress: Called during a build.
    """
    path = cached_path(recipe)
    sweep(path.parent)
    if path.exists() and (world := _open_sound(path)):
        return world
    with build_lock(path):
        if path.exists() and (world := _open_sound(path)):  # another process has built the world in the meantime
            return world
        if path.exists():
            warnings.warn(f"the cached world {path} is damaged and is rebuilt", UserWarning, stacklevel=3)
        remove_leftovers(path)
        if progress is None:  # `gymnasium.make` would be silent for seconds
            print(f"fhir_gym: building the world {recipe.name} (once)", file=sys.stderr)
        _generate(recipe, path, 0, progress)
    return World.open(path)


def _open_sound(path: Path) -> World | None:
    try:
        return World.open(path)
    except WorldError:
        return None
