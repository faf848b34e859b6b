"""Worlds that plugins provide through entry points."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

from fhir_gym.errors import PluginError
from fhir_gym.plugins import WORLDS, call_plugin, entry_points_of, load_plugin, plugin_error, warn_about
from fhir_gym.worlds.recipe import Recipe


def installed_world(name: str) -> Recipe | Path | None:
    """Return the recipe or the file of a plugin's world; None if no plugin provides that name.

    Raises:
        PluginError: The plugin is broken.
    """
    point = entry_points_of(WORLDS).get(name)
    return None if point is None else _resolved(point)


def installed_worlds(known: Collection[str] = ()) -> dict[str, Recipe | Path]:
    """Return all plugin worlds by name; a broken plugin causes a warning.

    Args:
        known: Names to skip because other worlds have them.
    """
    found = {}
    for name, point in entry_points_of(WORLDS).items():
        if name in known:
            continue
        try:
            found[name] = _resolved(point)
        except PluginError as error:
            warn_about(error)
    return found


def _resolved(point: EntryPoint) -> Recipe | Path:
    loaded = load_plugin(point)
    if callable(loaded):
        loaded = call_plugin(point, loaded)
    if isinstance(loaded, Recipe):
        return replace(loaded, name=point.name)  # the cached file is named after the entry point
    if isinstance(loaded, str | os.PathLike):
        return Path(loaded)
    raise plugin_error(point, f"returns a {type(loaded).__name__}; expected a Recipe or the path of a world file")
