"""Load the packs of other installed distributions on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

from fhir_gym.errors import PluginError
from fhir_gym.plugins import PACKS, call_plugin, entry_points_of, load_plugin, plugin_error, warn_about
from fhir_gym.registration import is_env_id
from fhir_gym.tasks.core.pack import Pack

_tried: set[EntryPoint] = set()


def load_installed(register: Callable[[Pack], None], env_id: str | None = None) -> None:
    """Load the entry points that may define a pack, and register the packs that they define.

    An entry point with an env id as its name is loaded only for that id. Any other entry point may define any pack.

    Args:
        register: Function that registers a pack.
        env_id: Env id of the requested pack, which is not registered yet; None for all packs.

    Raises:
        PluginError: The requested pack cannot be loaded. Other failures cause one warning each.
    """
    for name, point in entry_points_of(PACKS).items():
        if name == env_id:
            if not _is_being_imported(point.module):
                _load(point, register)
        elif point not in _tried and (env_id is None or not is_env_id(name)):
            _try(point, register)


def load_unnamed(register: Callable[[Pack], None]) -> None:
    """Load the entry points whose name is not an env id, and register their packs."""
    for name, point in entry_points_of(PACKS).items():
        if point not in _tried and not is_env_id(name):
            _try(point, register)


def _try(point: EntryPoint, register: Callable[[Pack], None]) -> None:
    if _is_being_imported(point.module):
        return
    _tried.add(point)
    try:
        _load(point, register)
    except PluginError as error:
        warn_about(error)


def _is_being_imported(module: str) -> bool:
    """Whether a module or its parent package is still being imported. If so, the import itself registers the pack."""
    parts = module.split(".")
    found = [sys.modules.get(".".join(parts[: n + 1])) for n in range(len(parts))]
    return any(getattr(getattr(one, "__spec__", None), "_initializing", False) for one in found)


def _load(point: EntryPoint, register: Callable[[Pack], None]) -> None:
    """Import the entry point's module. If the entry point names a function, call it."""
    loaded: Any = load_plugin(point)
    pack = loaded if point.attr else getattr(loaded, "PACK", None)
    if isinstance(pack, Pack):
        call_plugin(point, lambda: register(pack))
    elif point.attr:
        if not callable(loaded):
            raise plugin_error(point, "is neither a module, a Pack nor a function")
        call_plugin(point, loaded)
