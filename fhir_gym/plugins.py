"""Load plugins: entry points of other distributions, and objects that users name as ``module:name``.

The packs, agents and worlds of an installed distribution are available to the command line, `gymnasium.make` and worker
processes. The modules of the distribution are imported on first use.
"""

from __future__ import annotations

import importlib
import multiprocessing
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from fhir_gym.errors import PluginError, PluginWarning, UnknownNameError, in_one_line

__all__ = [
    "AGENTS",
    "PACKS",
    "SUITES",
    "WORLDS",
    "call_plugin",
    "entry_points_of",
    "find_object",
    "import_by_name",
    "load_plugin",
    "plugin_error",
    "warn_about",
]

PACKS = "fhir_gym.packs"
"""Entry point group of packs: a `Pack`, a module with a `PACK`, or a module or function that registers tasks."""
AGENTS = "fhir_gym.agents"
"""Entry point group of agents: an agent class, or a function that creates an agent."""
SUITES = "fhir_gym.suites"
"""Entry point group of suites: a `fhir_gym.suites.Suite`, or a function that returns one."""
WORLDS = "fhir_gym.worlds"
"""Entry point group of worlds: a `fhir_gym.worlds.Recipe`, the path of a world file, or a function that returns one."""


def entry_points_of(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group, sorted by name. If two distributions use the same name, the first wins."""
    points = sorted(entry_points(group=group), key=lambda point: (point.name, _distribution(point), point.value))
    return {point.name: point for point in reversed(points)}


def load_plugin(point: EntryPoint) -> Any:
    """Load the object of an entry point.

    Raises:
        PluginError: The object cannot be imported. The message names the distribution and the cause.
    """
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise plugin_error(point, f"cannot be loaded: {in_one_line(error)}") from error


def call_plugin(point: EntryPoint, function: Callable[[], Any]) -> Any:
    """Call the function of an entry point.

    Raises:
        PluginError: The function raises an exception. The message names the distribution and the cause.
    """
    try:
        return function()
    except Exception as error:
        raise plugin_error(point, f"fails: {in_one_line(error)}") from error


def plugin_error(point: EntryPoint, what: str) -> PluginError:
    """Create the error for an unusable entry point."""
    line = " ".join(what.split())
    return PluginError(f"{point.group} {point.name} ({point.value}) of {_distribution(point)} {line}")


def warn_about(error: PluginError) -> None:
    """Show a one-line warning about an unusable entry point that the user did not request.

    Worker processes never warn.
    """
    is_worker = multiprocessing.parent_process() is not None or "--multiprocessing-fork" in sys.orig_argv
    if not is_worker:
        warnings.warn_explicit(str(error), PluginWarning, "fhir-gym", 1)


def import_by_name(name: str) -> Any:
    """Import a module by its dotted name.

    Raises:
        UnknownNameError: There is no such module.
        PluginError: The import fails.
    """
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            here = [module.name for module in pkgutil.iter_modules([str(Path.cwd())])]
            raise UnknownNameError("module", name, here) from error
        raise PluginError(f"module {name} cannot be imported: {in_one_line(error)}") from error


def find_object(reference: str) -> Any:
    """Return the object that a reference such as ``my_agents:Searcher`` (module and name) refers to.

    Raises:
        UnknownNameError: The module or the name does not exist. The message suggests the most similar name.
        PluginError: The import of the module fails.
    """
    name, _, attribute = reference.partition(":")
    module = import_by_name(name)
    if not hasattr(module, attribute):
        public = [attribute_name for attribute_name in vars(module) if not attribute_name.startswith("_")]
        raise UnknownNameError(f"name in module {name}", attribute, public)
    return getattr(module, attribute)


def _distribution(point: EntryPoint) -> str:
    about = None if point.dist is None else point.dist.metadata
    if about is None or "Name" not in about:
        return "a distribution without a name"
    return " ".join(about[key] for key in ("Name", "Version") if key in about)
