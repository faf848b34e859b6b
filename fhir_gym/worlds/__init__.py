"""Worlds: the data a FHIR server starts with. Generate, import, load, upload, export, restore and remove them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fhir_gym.worlds.cache import cache_dir
from fhir_gym.worlds.catalogue import CachedWorld, Recipe, WorldInfo, available, cached_world, remove
from fhir_gym.worlds.files import Format, format_of
from fhir_gym.worlds.loading import Progress, build, load, write

if TYPE_CHECKING:
    from fhir_gym.worlds.comparing import Comparison, Difference, RestoreReport, compare, restore
    from fhir_gym.worlds.exporting import ExportFormat, export
    from fhir_gym.worlds.importing import ImportReport, import_files, import_server
    from fhir_gym.worlds.uploading import UploadReport, upload

__all__ = [
    "CachedWorld",
    "Comparison",
    "Difference",
    "ExportFormat",
    "Format",
    "ImportReport",
    "Progress",
    "Recipe",
    "RestoreReport",
    "UploadReport",
    "WorldInfo",
    "available",
    "build",
    "cache_dir",
    "cached_world",
    "compare",
    "export",
    "format_of",
    "import_files",
    "import_server",
    "load",
    "remove",
    "restore",
    "upload",
    "write",
]

_HOMES = {
    "Comparison": "comparing",
    "Difference": "comparing",
    "ExportFormat": "exporting",
    "ImportReport": "importing",
    "RestoreReport": "comparing",
    "UploadReport": "uploading",
    "compare": "comparing",
    "export": "exporting",
    "import_files": "importing",
    "import_server": "importing",
    "restore": "comparing",
    "upload": "uploading",
}
"""Names that are loaded on first use: their modules load an HTTP client, which `gymnasium.make` does not need."""


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fhir_gym.worlds.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
